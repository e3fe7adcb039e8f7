"""Tables of phases: their checks and drawings.

A phase without a handler is terminal.  An object starts in the initial phase.  The phases that follow `Deleting` are
only for objects that are being deleted.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tapestry.controller.controller import Result
from tapestry.kube.objects import Object

DELETING = "Deleting"
"""Phase of an object that is being deleted.  A table that has it keeps its objects until a terminal phase."""


class Next(NamedTuple):
    """A transition to another phase, written to the status in one patch."""

    phase: str
    message: str = ""
    """Explanation of the transition for readers of the status."""
    status: Object | None = None
    """Fields to write with the phase, as a merge patch of the status.  Conditions are added to the existing ones."""
    reason: str = "Entered"
    """Reason of the condition of the new phase."""


Handler = Callable[[Object], Awaitable[Next | Result | None]]


@dataclass(frozen=True, slots=True)
class Phase:
    """One row of a machine's table.  Without a handler the phase is terminal."""

    handler: Handler | None = None
    to: tuple[str, ...] = ()
    timeout: float | None = None
    """Seconds in the phase, after which the object moves to `on_failure`."""
    retries: int | None = None
    """Failed attempts after which the object moves to `on_failure`.  None means unlimited."""
    on_failure: str = ""

    def limits(self) -> str:
        """Return the limits in words: `60 s, 3 retries`.  Empty if there are none."""
        timeout = [] if self.timeout is None else [f"{self.timeout:g} s"]
        retries = [] if self.retries is None else ["1 retry" if self.retries == 1 else f"{self.retries} retries"]
        return ", ".join(timeout + retries)


@dataclass(frozen=True, slots=True)
class PhaseTable:
    """The phases of one kind by name."""

    initial: str
    phases: Mapping[str, Phase]

    def reachable(self, start: str) -> dict[str, None]:
        """Return `start` and the phases that may follow it, directly or not, in the order of the table."""
        reached, pending = set(), [start]
        while pending:
            name = pending.pop()
            if name not in reached and name in self.phases:
                reached.add(name)
                pending.extend(self.phases[name].to)
        return dict.fromkeys(name for name in self.phases if name in reached)

    def errors(self) -> list[str]:
        errors = []
        if self.initial not in self.phases:
            errors.append(f"the initial phase {self.initial!r} is not in the table")
        for name, phase in self.phases.items():
            if (phase.handler is None) != (not phase.to):
                errors.append(f"{name}: needs both a handler and next phases, or neither")
            errors += [
                f"{name}: next phase {target!r} is not in the table" for target in phase.to if target not in self.phases
            ]
            if phase.on_failure and phase.on_failure not in phase.to:
                errors.append(f"{name}: on_failure {phase.on_failure!r} is not one of its next phases")
            if not phase.on_failure and (phase.timeout is not None or phase.retries is not None):
                errors.append(f"{name}: timeout and retries need on_failure")
        if DELETING in self.phases and self.phases[DELETING].handler is None:
            errors.append(f"{DELETING}: needs a handler")
        living, deleted = self.reachable(self.initial), self.reachable(DELETING)
        errors += [
            f"{name}: can be reached from {self.initial!r} and from {DELETING!r}; a deletion needs phases of its own"
            for name in living
            if name in deleted
        ]
        return errors + [
            f"{name}: cannot be reached from {self.initial!r}"
            for name in self.phases
            if name not in living and name not in deleted
        ]

    # -- drawings

    def starts(self) -> dict[str, str]:
        """Return the phases in which an object can start, and when."""
        return {self.initial: "created", **({DELETING: "deleted"} if DELETING in self.phases else {})}

    def mermaid(self) -> str:
        """Return the table as a mermaid state diagram."""
        ids = {name: name if name.isidentifier() else f"phase_{n}" for n, name in enumerate(self.phases)}
        lines = [f'state "{name}" as {ids[name]}' for name in self.phases if ids[name] != name]
        lines += [f"[*] --> {ids[name]}: {when}" for name, when in self.starts().items()]
        for name, phase in self.phases.items():
            for target in phase.to:
                label = ": " + (phase.limits() or "failure") if target == phase.on_failure else ""
                lines.append(f"{ids[name]} --> {ids[target]}{label}")
            if phase.handler is None:
                lines.append(f"{ids[name]} --> [*]")
        return "\n    ".join(["stateDiagram-v2", *lines])

    def tree(self) -> str:
        """Return the table as a tree of characters.  A phase that is drawn elsewhere is marked with an arrow."""
        drawn: set[str] = set()
        return "\n".join(
            line for start, when in self.starts().items() for line in self._branch(start, f"{when} ─▶ ", " ", drawn)
        )

    def _branch(self, name: str, lead: str, indent: str, drawn: set[str]) -> Iterator[str]:
        if name in drawn:
            yield f"{lead}{name} ↑"
            return
        drawn.add(name)
        phase = self.phases[name]
        limits = f"  ({phase.limits() or 'on failure'}, then {phase.on_failure})" if phase.on_failure else ""
        yield f"{lead}{name}{limits}{' ■' if phase.handler is None else ''}"
        for number, target in enumerate(phase.to, start=1):
            is_last = number == len(phase.to)
            corner, below = ("└─▶ ", "    ") if is_last else ("├─▶ ", "│   ")
            yield from self._branch(target, indent + corner, indent + below, drawn)
