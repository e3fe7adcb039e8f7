"""Definitions: their objects go first, whoever else runs."""

from tapestry.client.client import Client
from tapestry.client.discovery import is_served
from tapestry.client.waiting import wait_for
from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.objects import value_at
from tapestry.kube.resources import CRDS

from .conftest import Beside
from .objects import HELD, WIDGETS, a_widget, define, wait_until_gone

NAME = "widgets.example.com"


async def test_a_deleted_definition_takes_its_objects_with_it(client: Client, beside: Beside) -> None:
    async with beside("none"):
        definition = await define(client)
        await client.create(WIDGETS, a_widget("w"))
        await client.delete(CRDS, definition)
        await wait_until_gone(client, CRDS, NAME)
        assert not await is_served(client, WIDGETS)
        await define(client)
        assert await client.list(WIDGETS) == []


async def test_a_definition_waits_for_an_object_that_somebody_holds(client: Client, beside: Beside) -> None:
    async with beside("none"):
        definition = await define(client)
        await client.create(WIDGETS, a_widget("w", finalizers=[HELD]))
        await client.delete(CRDS, definition)
        waiting = await wait_for(
            client, CRDS, NAME, until=lambda obj: obj is not None and is_condition_true(obj, "Terminating"), timeout=10
        )
        condition = find_condition(value_at(waiting, "status", "conditions"), "Terminating")
        assert condition is not None
        assert condition["reason"] == "InstanceDeletionInProgress"
        held = await client.get(WIDGETS, "w", "default")
        await client.patch(WIDGETS, held, {"metadata": {"finalizers": None}})
        await wait_until_gone(client, CRDS, NAME)
        assert not await is_served(client, WIDGETS)


async def test_a_definition_without_a_version_that_is_served_says_why_it_stays(client: Client, beside: Beside) -> None:
    async with beside("none"):
        definition = await define(client)
        versions = [{**definition["spec"]["versions"][0], "served": False}]
        definition = await client.patch(CRDS, definition, {"spec": {"versions": versions}})
        await client.delete(CRDS, definition)
        waiting = await wait_for(
            client, CRDS, NAME, until=lambda obj: obj is not None and is_condition_true(obj, "Terminating"), timeout=10
        )
        condition = find_condition(value_at(waiting, "status", "conditions"), "Terminating")
        assert condition is not None
        assert "serve one" in condition["message"]
