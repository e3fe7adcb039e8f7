from collections.abc import Callable
from typing import Any

import pytest

from tapestry.controller.manager import Manager
from tapestry.controller.registry import Registry
from tapestry.kube.api_types import ApiStruct
from tapestry.kube.crds import Kind
from tapestry.kube.resources import Resource


class WidgetSpec(ApiStruct):
    size: int = 1


WIDGET = Kind(Resource("example.com", "v1", "Widget", "widgets"), WidgetSpec)
GADGET = Kind(Resource("example.com", "v1", "Gadget", "gadgets"), WidgetSpec)


class SetupRecorder:
    """Setup functions that record their calls."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def named(self, name: str) -> Callable[[Manager], None]:
        return lambda _: self.called.append(name)


@pytest.fixture
def set_ups() -> SetupRecorder:
    return SetupRecorder()


@pytest.fixture
def registry(set_ups: SetupRecorder) -> Registry:
    registry = Registry()
    registry.register("widgets", set_ups.named("widgets"), kinds=(WIDGET,))
    registry.register("gadgets", set_ups.named("gadgets"), kinds=(GADGET,))
    return registry


def test_names_and_kinds_keep_registration_order(registry: Registry) -> None:
    assert registry.names() == ["widgets", "gadgets"]
    assert registry.kinds == [WIDGET, GADGET]


def test_duplicate_name_is_rejected(registry: Registry, set_ups: SetupRecorder) -> None:
    with pytest.raises(ValueError, match="controller 'widgets' is registered twice"):
        registry.register("widgets", set_ups.named("another"))


async def test_add_to_manager_runs_nothing_yet(registry: Registry, set_ups: SetupRecorder, world: Any) -> None:
    manager = world.manager()
    registry.add_to_manager(manager)
    assert set_ups.called == []
    manager.setup()
    assert set_ups.called == ["widgets", "gadgets"]


async def test_late_setup_waits_for_the_caches(registry: Registry, set_ups: SetupRecorder, world: Any) -> None:
    async def reconcile(key: str) -> None: ...

    def late(manager: Manager) -> None:
        manager.controller("late", reconcile)
        set_ups.called.append("late")

    registry.register("late", late, after_sync=True)
    manager = world.manager()
    registry.add_to_manager(manager)
    manager.setup()
    assert set_ups.called == ["widgets", "gadgets"]
    async with world.running(manager):
        assert set_ups.called == ["widgets", "gadgets", "late"]


async def test_single_reconciler_can_be_added(registry: Registry, set_ups: SetupRecorder, world: Any) -> None:
    manager = world.manager()
    registry.add_to_manager(manager, only="gadgets")
    manager.setup()
    assert set_ups.called == ["gadgets"]


async def test_unknown_reconciler_error_lists_known_ones(registry: Registry, world: Any) -> None:
    with pytest.raises(ValueError, match="controller 'gadget' does not exist; known controllers: gadgets, widgets"):
        registry.add_to_manager(world.manager(), only="gadget")


async def test_empty_registry_error_says_so(world: Any) -> None:
    with pytest.raises(ValueError, match="known controllers: none"):
        Registry().add_to_manager(world.manager(), only="gadget")


def test_entry_points_register_reconcilers() -> None:
    registry = Registry()
    registry.load_entry_points()
    assert {"at", "redismigration"} <= set(registry.names())
    assert {"At", "RedisMigration"} <= {kind.resource.kind for kind in registry.kinds}
