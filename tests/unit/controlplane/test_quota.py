"""Tests of quota usage counts."""

import asyncio
from random import Random

import pytest

from tapestry.apiserver.handlers.server import Server
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import CONFIGMAPS, PODS, RESOURCE_QUOTAS

from .conftest import RunControllers
from .objects import WIDGETS, define, new_map, new_pod, new_widget


def new_quota(**hard: str) -> Object:
    names = {name.replace("__", "/").replace("_", "."): amount for name, amount in hard.items()}
    return {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": names}}


async def wait_until_used(client: Client, **used: str) -> None:
    expected = {name.replace("__", "/").replace("_", "."): amount for name, amount in used.items()}
    await wait_for(
        client,
        RESOURCE_QUOTAS,
        "q",
        "default",
        until=lambda obj: value_at(obj, "status", "used") == expected,
        timeout=10,
    )


async def test_existing_objects_are_counted(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("quota", "accounts"):
        await client.create(PODS, new_pod("a", nodeName="n"))
        await client.create(CONFIGMAPS, new_map("m"))
        await client.create(RESOURCE_QUOTAS, new_quota(pods="5", count__configmaps="5", services="3"))
        await wait_until_used(client, pods="1", count__configmaps="2", services="0")  # one is the root CA
        quota = await client.get(RESOURCE_QUOTAS, "q", "default")
        assert quota["status"]["hard"] == quota["spec"]["hard"]


async def test_deleted_objects_free_quota(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("quota", "accounts"):
        await client.create(RESOURCE_QUOTAS, new_quota(pods="1"))
        await wait_until_used(client, pods="0")
        pod = await client.create(PODS, new_pod("a"))
        with pytest.raises(Forbidden, match="exceeded quota: q"):
            await client.create(PODS, new_pod("b"))
        await client.delete(PODS, pod)
        await wait_until_used(client, pods="0")
        await client.create(PODS, new_pod("b"))


async def test_terminated_pod_is_not_counted(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("quota", "accounts"):
        await client.create(RESOURCE_QUOTAS, new_quota(pods="1", count__pods="2"))
        await wait_until_used(client, pods="0", count__pods="0")
        pod = await client.create(PODS, new_pod("a"))
        await client.patch(PODS, pod, {"status": {"phase": "Succeeded"}}, subresource="status")
        await wait_until_used(client, pods="0", count__pods="1")


async def test_custom_resources_are_counted_once_defined(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("quota"):
        await client.create(RESOURCE_QUOTAS, new_quota(count__widgets_example_com="1"))
        await wait_until_used(client, count__widgets_example_com="0")
        await define(client)
        await client.create(WIDGETS, new_widget("w"))
        await wait_until_used(client, count__widgets_example_com="1")
        with pytest.raises(Forbidden, match="exceeded quota: q, requested: count/widgets"):
            await client.create(WIDGETS, new_widget("v"))


async def test_new_limit_applies_at_once(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("quota"):
        quota = await client.create(RESOURCE_QUOTAS, new_quota(count__configmaps="1"))
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


async def test_recount_includes_concurrent_creations(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("quota", "accounts"):
        await client.create(RESOURCE_QUOTAS, new_quota(pods="10"))
        await wait_until_used(client, pods="0")

        async def try_create(number: int) -> int:
            try:
                await client.create(PODS, new_pod(f"p{number}"))
            except Forbidden:
                return 0
            return 1

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(try_create(number)) for number in range(30)]
        assert sum(task.result() for task in tasks) == 10
        await wait_until_used(client, pods="10")


async def test_limit_is_never_exceeded(server: Server, client: Client, run_controllers: RunControllers) -> None:
    store, highest, random = server.verbs.store, 0, Random(7)

    def record_count(_: object) -> None:
        nonlocal highest
        highest = max(highest, store.count("configmaps"))

    async with run_controllers("quota"):
        await client.create(RESOURCE_QUOTAS, new_quota(count__configmaps="5"))
        await wait_until_used(client, count__configmaps="0")
        store.on_change("configmaps", record_count)
        rejected = created = 0

        async def create_and_delete(name: str) -> None:
            nonlocal rejected, created
            for number in range(60):
                try:
                    obj = await client.create(CONFIGMAPS, new_map(f"{name}-{number}"))
                except Forbidden:
                    rejected += 1
                    await asyncio.sleep(random.uniform(0, 0.05))
                    continue
                created += 1
                await asyncio.sleep(random.uniform(0, 0.05))
                await client.delete(CONFIGMAPS, obj)

        async with asyncio.TaskGroup() as group:
            for name in "abcdefgh":
                group.create_task(create_and_delete(name))
        await wait_until_used(client, count__configmaps="0")
    assert highest == 5
    assert created > 5  # quota of deleted objects was reused
    assert rejected > 0
