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


class SetUps:
    """Set-up functions that note which of them were called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def named(self, name: str) -> Callable[[Manager], None]:
        return lambda _: self.called.append(name)


@pytest.fixture
def set_ups() -> SetUps:
    return SetUps()


@pytest.fixture
def registry(set_ups: SetUps) -> Registry:
    registry = Registry()
    registry.register("widgets", set_ups.named("widgets"), kinds=(WIDGET,))
    registry.register("gadgets", set_ups.named("gadgets"), kinds=(GADGET,))
    return registry


def test_reconcilers_and_kinds_are_known_in_the_order_they_came(registry: Registry) -> None:
    assert registry.names() == ["widgets", "gadgets"]
    assert registry.kinds == [WIDGET, GADGET]


def test_two_reconcilers_cannot_share_a_name(registry: Registry, set_ups: SetUps) -> None:
    with pytest.raises(ValueError, match="controller 'widgets' is registered twice"):
        registry.register("widgets", set_ups.named("another"))


async def test_a_manager_is_given_all_and_runs_nothing_of_them_yet(
    registry: Registry, set_ups: SetUps, world: Any
) -> None:
    manager = world.manager()
    registry.add_to_manager(manager)
    assert set_ups.called == []
    manager.setup()
    assert set_ups.called == ["widgets", "gadgets"]


async def test_a_manager_can_be_given_one_alone(registry: Registry, set_ups: SetUps, world: Any) -> None:
    manager = world.manager()
    registry.add_to_manager(manager, only="gadgets")
    manager.setup()
    assert set_ups.called == ["gadgets"]


async def test_asking_for_one_that_is_not_there_names_those_that_are(registry: Registry, world: Any) -> None:
    with pytest.raises(ValueError, match="there is no controller 'gadget'; known are: gadgets, widgets"):
        registry.add_to_manager(world.manager(), only="gadget")


async def test_an_empty_registry_says_so(world: Any) -> None:
    with pytest.raises(ValueError, match="known are: none"):
        Registry().add_to_manager(world.manager(), only="gadget")


def test_installed_packages_bring_theirs_by_entry_point() -> None:
    registry = Registry()
    registry.load_entry_points()
    assert {"at", "redismigration"} <= set(registry.names())
    assert {"At", "RedisMigration"} <= {kind.resource.kind for kind in registry.kinds}
