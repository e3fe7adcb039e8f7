"""Tests of namespace deletion."""

from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import CONFIGMAPS, EVENTS, NAMESPACES, PODS

from .conftest import RunControllers
from .objects import FINALIZER, WIDGETS, define, new_map, new_namespace, new_pod, new_widget, wait_until_gone


async def test_namespace_is_deleted_with_its_content(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers():
        namespace = await client.create(NAMESPACES, new_namespace("x"))
        await define(client)
        await client.create(PODS, new_pod("p", "x"))
        await client.create(CONFIGMAPS, new_map("a", namespace="x"))
        await client.create(WIDGETS, new_widget("w", "x"))
        await client.create(EVENTS, {"metadata": {"name": "e", "namespace": "x"}, "involvedObject": {"namespace": "x"}})
        deleted = await client.delete(NAMESPACES, {"metadata": {"name": "x"}})
        assert value_at(deleted, "status", "phase") == "Terminating"
        await wait_until_gone(client, NAMESPACES, "x")
        for resource in (PODS, CONFIGMAPS, WIDGETS, EVENTS):
            assert await client.list(resource, "x") == []
        recreated = await client.create(NAMESPACES, new_namespace("x"))
        assert recreated["metadata"]["uid"] != namespace["metadata"]["uid"]


async def test_pods_are_deleted_first_and_status_reports_remaining(
    client: Client, run_controllers: RunControllers
) -> None:
    async with run_controllers():
        await client.create(NAMESPACES, new_namespace("x"))
        pod = await client.create(PODS, new_pod("p", "x", nodeName="n"))
        await client.create(CONFIGMAPS, new_map("a", namespace="x", finalizers=[FINALIZER]))
        await client.delete(NAMESPACES, {"metadata": {"name": "x"}})

        namespace = await wait_for(client, NAMESPACES, "x", until=lambda obj: remaining(obj, "pods"), timeout=10)
        assert namespace is not None
        assert not is_condition_true(namespace, "NamespaceFinalizersRemaining")
        configmap = await client.get(CONFIGMAPS, "a", "x")
        assert "deletionTimestamp" not in configmap["metadata"]  # a pod may still need it

        await client.delete(PODS, pod | {"metadata": {"name": "p", "namespace": "x"}}, grace_seconds=0)
        namespace = await wait_for(client, NAMESPACES, "x", until=lambda obj: remaining(obj, "configmaps"), timeout=10)
        assert namespace is not None
        condition = find_condition(namespace["status"]["conditions"], "NamespaceFinalizersRemaining")
        assert condition is not None
        assert condition["message"].endswith(f"finalizers remaining: {FINALIZER} in 1 resource instances")

        await client.patch(CONFIGMAPS, await client.get(CONFIGMAPS, "a", "x"), {"metadata": {"finalizers": None}})
        await wait_until_gone(client, NAMESPACES, "x")


def remaining(namespace: Object | None, plural: str) -> bool:
    found = find_condition(value_at(namespace, "status", "conditions"), "NamespaceContentRemaining")
    return found is not None and found["status"] == "True" and f"{plural}. has 1 resource instances" in found["message"]


async def test_other_finalizers_keep_an_empty_namespace(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers():
        await client.create(NAMESPACES, {**new_namespace("x"), "spec": {"finalizers": [FINALIZER]}})
        await client.delete(NAMESPACES, {"metadata": {"name": "x"}})
        namespace = await wait_for(
            client, NAMESPACES, "x", until=lambda obj: value_at(obj, "spec", "finalizers") == [FINALIZER], timeout=10
        )
        assert namespace is not None
        await client.replace(NAMESPACES, {**namespace, "spec": {}}, subresource="finalize")
        await wait_until_gone(client, NAMESPACES, "x")
        assert "x" not in [each["metadata"]["name"] for each in await client.list(NAMESPACES)]
