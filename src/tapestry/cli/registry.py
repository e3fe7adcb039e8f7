"""The registry of this process: our own controllers in a table, everybody else's by entry point."""

from tapestry.controller.registry import Registry


def load_registry() -> Registry:
    registry = Registry()
    registry.load_entry_points()
    return registry
