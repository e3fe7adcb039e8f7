"""Quotas: what is used is counted, as it comes and goes."""

import asyncio
from random import Random

import pytest

from tapestry.apiserver.server import Server
from tapestry.client.client import Client
from tapestry.client.waiting import wait_for
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import CONFIGMAPS, PODS, RESOURCE_QUOTAS

from .conftest import Beside
from .objects import WIDGETS, a_map, a_pod, a_widget, define


def a_quota(**hard: str) -> Object:
    names = {name.replace("__", "/").replace("_", "."): amount for name, amount in hard.items()}
    return {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": names}}


async def wait_until_used(client: Client, **used: str) -> None:
    wanted = {name.replace("__", "/").replace("_", "."): amount for name, amount in used.items()}
    await wait_for(
        client,
        RESOURCE_QUOTAS,
        "q",
        "default",
        until=lambda obj: value_at(obj, "status", "used") == wanted,
        timeout=10,
    )


async def test_what_is_there_already_is_counted(client: Client, beside: Beside) -> None:
    async with beside("quota", "accounts"):
        await client.create(PODS, a_pod("a", nodeName="n"))
        await client.create(CONFIGMAPS, a_map("m"))
        await client.create(RESOURCE_QUOTAS, a_quota(pods="5", count__configmaps="5", services="3"))
        await wait_until_used(client, pods="1", count__configmaps="2", services="0")  # one is the server's CA
        quota = await client.get(RESOURCE_QUOTAS, "q", "default")
        assert quota["status"]["hard"] == quota["spec"]["hard"]


async def test_what_goes_can_be_used_again(client: Client, beside: Beside) -> None:
    async with beside("quota", "accounts"):
        await client.create(RESOURCE_QUOTAS, a_quota(pods="1"))
        await wait_until_used(client, pods="0")
        pod = await client.create(PODS, a_pod("a"))
        with pytest.raises(Forbidden, match="exceeded quota: q"):
            await client.create(PODS, a_pod("b"))
        await client.delete(PODS, pod)
        await wait_until_used(client, pods="0")
        await client.create(PODS, a_pod("b"))


async def test_a_pod_that_has_ended_counts_no_longer(client: Client, beside: Beside) -> None:
    async with beside("quota", "accounts"):
        await client.create(RESOURCE_QUOTAS, a_quota(pods="1", count__pods="2"))
        await wait_until_used(client, pods="0", count__pods="0")
        pod = await client.create(PODS, a_pod("a"))
        await client.patch(PODS, pod, {"status": {"phase": "Succeeded"}}, subresource="status")
        await wait_until_used(client, pods="0", count__pods="1")


async def test_custom_resources_are_counted_as_soon_as_there_are_any(client: Client, beside: Beside) -> None:
    async with beside("quota"):
        await client.create(RESOURCE_QUOTAS, a_quota(count__widgets_example_com="1"))
        await wait_until_used(client, count__widgets_example_com="0")
        await define(client)
        await client.create(WIDGETS, a_widget("w"))
        await wait_until_used(client, count__widgets_example_com="1")
        with pytest.raises(Forbidden, match="exceeded quota: q, requested: count/widgets"):
            await client.create(WIDGETS, a_widget("v"))


async def test_a_new_limit_is_in_force_at_once(client: Client, beside: Beside) -> None:
    async with beside("quota"):
        quota = await client.create(RESOURCE_QUOTAS, a_quota(count__configmaps="1"))
        await wait_until_used(client, count__configmaps="0")
        quota = await client.get(RESOURCE_QUOTAS, "q", "default")
        await client.patch(RESOURCE_QUOTAS, quota, {"spec": {"hard": {"count/configmaps": "3"}}})
        await wait_for(
            client,
            RESOURCE_QUOTAS,
            "q",
            "default",
            until=lambda obj: value_at(obj, "status", "hard", "count/configmaps") == "3",
            timeout=10,
        )


async def test_counting_does_not_lose_what_is_being_made(client: Client, beside: Beside) -> None:
    async with beside("quota", "accounts"):
        await client.create(RESOURCE_QUOTAS, a_quota(pods="10"))
        await wait_until_used(client, pods="0")

        async def make(number: int) -> int:
            try:
                await client.create(PODS, a_pod(f"p{number}"))
            except Forbidden:
                return 0
            return 1

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(make(number)) for number in range(30)]
        assert sum(task.result() for task in tasks) == 10
        await wait_until_used(client, pods="10")


async def test_at_no_moment_is_there_more_than_allowed(server: Server, client: Client, beside: Beside) -> None:
    store, most, random = server.verbs.store, 0, Random(7)

    def look(_: object) -> None:
        nonlocal most
        most = max(most, store.count("configmaps"))

    async with beside("quota"):
        await client.create(RESOURCE_QUOTAS, a_quota(count__configmaps="5"))
        await wait_until_used(client, count__configmaps="0")
        store.on_change("configmaps", look)
        refused = made = 0

        async def come_and_go(name: str) -> None:
            nonlocal refused, made
            for number in range(60):
                try:
                    obj = await client.create(CONFIGMAPS, a_map(f"{name}-{number}"))
                except Forbidden:
                    refused += 1
                    await asyncio.sleep(random.uniform(0, 0.05))
                    continue
                made += 1
                await asyncio.sleep(random.uniform(0, 0.05))
                await client.delete(CONFIGMAPS, obj)

        async with asyncio.TaskGroup() as group:
            for name in "abcdefgh":
                group.create_task(come_and_go(name))
        await wait_until_used(client, count__configmaps="0")
    assert most == 5
    assert made > 5  # what went could be used again
    assert refused > 0
