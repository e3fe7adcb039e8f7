"""Registry of reconcilers by name, with entry points for third-party packages.

A registry is an ordinary value that is filled in one place.  Nothing registers itself on import.  Third-party packages
add reconcilers through the entry point group `tapestry.controllers`, a function that takes the registry:

    [project.entry-points."tapestry.controllers"]
    at = "at.controller:register"
"""

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tapestry.controller.manager import Manager, Setup
from tapestry.kube.crds import Kind

ENTRY_POINT_GROUP = "tapestry.controllers"


class Registry:
    """Named reconcilers and their kinds, in the order of registration."""

    def __init__(self) -> None:
        self._setups: dict[str, tuple[Setup, bool]] = {}
        """Setup functions, and whether they wait for the caches, by name."""
        self.kinds: list[Kind[Any]] = []

    def register(self, name: str, setup: Setup, *, kinds: tuple[Kind[Any], ...] = (), after_sync: bool = False) -> None:
        """Add a reconciler.  It runs only after `add_to_manager` and the manager's setup.

        With `after_sync`, its setup function is called after the caches of the others are synced.
        """
        if name in self._setups:
            raise ValueError(f"controller {name!r} is registered twice; give one of them another name")
        self._setups[name] = setup, after_sync
        self.kinds.extend(kinds)

    def names(self) -> list[str]:
        return list(self._setups)

    def add_to_manager(self, manager: Manager, *, only: str | None = None) -> None:
        """Register every reconciler, or the one named `only`, with the manager."""
        if only is not None and only not in self._setups:
            known = ", ".join(sorted(self._setups)) or "none"
            raise ValueError(f"controller {only!r} does not exist; known controllers: {known}")
        for name, (setup, after_sync) in self._setups.items():
            if only is None or name == only:
                manager.register(name, setup, after_sync=after_sync)

    def load_entry_points(self) -> None:
        """Add the reconcilers of installed packages."""
        for entry in installed_entry_points():
            register = entry.load()
            register(self)


def installed_entry_points() -> Iterator[EntryPoint]:
    return iter(sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name))
