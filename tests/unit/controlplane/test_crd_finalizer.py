"""Tests of the deletion of CustomResourceDefinitions."""

from tapestry.client.client import Client
from tapestry.client.discovery import is_served
from tapestry.client.watch import wait_for
from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.objects import value_at
from tapestry.kube.resources import CRDS

from .conftest import RunControllers
from .objects import FINALIZER, WIDGETS, define, new_widget, wait_until_gone

NAME = "widgets.example.com"


async def test_definition_is_deleted_with_its_objects(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("none"):
        definition = await define(client)
        await client.create(WIDGETS, new_widget("w"))
        await client.delete(CRDS, definition)
        await wait_until_gone(client, CRDS, NAME)
        assert not await is_served(client, WIDGETS)
        await define(client)
        assert await client.list(WIDGETS) == []


async def test_definition_waits_for_object_with_finalizer(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("none"):
        definition = await define(client)
        await client.create(WIDGETS, new_widget("w", finalizers=[FINALIZER]))
        await client.delete(CRDS, definition)
        waiting = await wait_for(
            client, CRDS, NAME, until=lambda obj: obj is not None and is_condition_true(obj, "Terminating"), timeout=10
        )
        condition = find_condition(value_at(waiting, "status", "conditions"), "Terminating")
        assert condition is not None
        assert condition["reason"] == "InstanceDeletionInProgress"
        widget = await client.get(WIDGETS, "w", "default")
        await client.patch(WIDGETS, widget, {"metadata": {"finalizers": None}})
        await wait_until_gone(client, CRDS, NAME)
        assert not await is_served(client, WIDGETS)


async def test_unserved_definition_reports_why_it_remains(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("none"):
        definition = await define(client)
        versions = [{**definition["spec"]["versions"][0], "served": False}]
        definition = await client.patch(CRDS, definition, {"spec": {"versions": versions}})
        await client.delete(CRDS, definition)
        waiting = await wait_for(
            client, CRDS, NAME, until=lambda obj: obj is not None and is_condition_true(obj, "Terminating"), timeout=10
        )
        condition = find_condition(value_at(waiting, "status", "conditions"), "Terminating")
        assert condition is not None
        assert "serve a version" in condition["message"]
