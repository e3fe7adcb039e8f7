"""Registry of controllers and kinds, loaded from entry points."""

from tapestry.controller.registry import Registry


def load_registry() -> Registry:
    registry = Registry()
    registry.load_entry_points()
    return registry
