"""Owned objects in the physical cluster: selected by two labels and deleted as read, without affecting others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding, ClusterBindingSpec
from tapestry.apis.field_types import SecretReference
from tapestry.apis.ownership import OWNED_RESOURCES, capped_grace_seconds, delete_owned, owner_selector
from tapestry.client.client import Client
from tapestry.controller.testing import InProcessApi, run, running_clock, specimen
from tapestry.kube.errors import Forbidden, KubeError
from tapestry.kube.objects import Object, key_of, object_named
from tapestry.kube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)
from tapestry.kube.selectors import parse_label_selector

OURS = Binding("east", "uid-1", "cluster-1", ClusterBindingSpec("east", SecretReference("east", "s"))).owner_labels()
LABELS = owner_selector("cluster-1", "uid-1")
FOREIGN = [
    {},
    {keys.MANAGED_BY: keys.TAPESTRY},
    {**OURS, keys.CLUSTER_BINDING_UID: "uid-2"},
    {**OURS, keys.VIRTUAL_CLUSTER: "cluster-2"},
    {key: value for key, value in OURS.items() if key != keys.VIRTUAL_CLUSTER},
    {key: value for key, value in OURS.items() if key != keys.CLUSTER_BINDING_UID},
]


def new_object(
    name: str, namespace: str | None = "leased", labels: Object = OURS, resource: Resource = SECRETS, **rest: Any
) -> Object:
    return specimen(resource, name, namespace, labels=labels, **rest)


async def all_objects(client: Client) -> list[str]:
    return [f"{each.kind} {key_of(obj)}" for each in OWNED_RESOURCES for obj in await client.list(each)]


def new_cluster(*resources: Resource) -> Client:
    return Client(InProcessApi(resources or OWNED_RESOURCES, now=running_clock().now).connect())


@pytest.mark.parametrize("labels", FOREIGN)
def test_object_without_both_labels_is_foreign(labels: Object) -> None:
    assert parse_label_selector(LABELS).matches(OURS)
    assert not parse_label_selector(LABELS).matches(labels)


def test_only_owned_objects_are_deleted() -> None:
    async def scenario() -> None:
        client = new_cluster()
        for resource in OWNED_RESOURCES:
            place = "leased" if resource.namespaced else None
            await client.create(resource, new_object("ours", place, resource=resource))
            for number, labels in enumerate(FOREIGN):
                await client.create(resource, new_object(f"foreign-{number}", place, labels, resource=resource))
            if resource.namespaced:
                await client.create(resource, new_object("elsewhere", "other", resource=resource))
        before = await all_objects(client)
        foreign = [each for each in before if not each.endswith("ours")]
        assert await delete_owned(client, "leased", LABELS) == [each for each in before if each not in foreign]
        assert await all_objects(client) == foreign
        assert await delete_owned(client, "leased", LABELS) == []

    run(scenario())


def test_terminating_objects_are_reported_until_deleted() -> None:
    async def scenario() -> None:
        client = new_cluster()
        held = new_object("held", finalizers=["example.com/theirs"])
        await client.create(CONFIGMAPS, held)
        for _ in range(3):
            assert await delete_owned(client, "leased", LABELS) == ["ConfigMap leased/held"]
        await client.patch(CONFIGMAPS, object_named("held", "leased"), {"metadata": {"finalizers": []}})
        assert await delete_owned(client, "leased", LABELS) == []

    run(scenario())


def test_unserved_resource_is_skipped() -> None:
    async def scenario() -> None:
        client = new_cluster(SECRETS)
        await client.create(SECRETS, new_object("ours"))
        assert await delete_owned(client, "leased", LABELS) == ["Secret leased/ours"]

    run(scenario())


@dataclass
class InterceptingClient:
    """A client that runs a hook before each list or delete."""

    client: Client
    before_list: Callable[[Resource], None] = lambda _: None
    before_delete: Callable[[Object], Any] | None = None

    async def list(self, resource: Resource, namespace: str | None = None, *, labels: str = "") -> list[Object]:
        self.before_list(resource)
        return await self.client.list(resource, namespace, labels=labels)

    async def delete(self, resource: Resource, target: Object, *, grace_seconds: int | None = None) -> Object:
        if self.before_delete is not None:
            await self.before_delete(target)
        return await self.client.delete(resource, target, grace_seconds=grace_seconds)


def test_forbidden_resource_is_skipped() -> None:
    def hide(resource: Resource) -> None:
        if resource is PODS:
            raise Forbidden(403, "Forbidden", "not for you")

    async def scenario() -> None:
        client = new_cluster()
        await client.create(SECRETS, new_object("ours"))
        assert await delete_owned(InterceptingClient(client, hide), "leased", LABELS) == ["Secret leased/ours"]

    run(scenario())


def test_object_recreated_meanwhile_is_not_deleted() -> None:
    async def scenario() -> None:
        client = new_cluster()
        await client.create(SECRETS, new_object("ours"))

        async def replace(target: Object) -> None:
            await client.delete(SECRETS, target)
            await client.create(SECRETS, new_object("ours", labels={}))

        assert await delete_owned(InterceptingClient(client, before_delete=replace), "leased", LABELS) == [
            "Secret leased/ours"
        ]
        assert await all_objects(client) == ["Secret leased/ours"]

    run(scenario())


def test_one_failed_deletion_does_not_stop_others() -> None:
    async def refuse(target: Object) -> None:
        if target["metadata"]["name"] == "a":
            raise KubeError("a webhook says no")

    async def scenario() -> None:
        client = new_cluster()
        for name in ("a", "b"):
            await client.create(SECRETS, new_object(name))
        with pytest.raises(KubeError, match="a webhook says no"):
            await delete_owned(InterceptingClient(client, before_delete=refuse), "leased", LABELS)
        assert await all_objects(client) == ["Secret leased/a"]

    run(scenario())


@pytest.mark.parametrize(("requested", "grace"), [(None, 25), (0, 0), (10, 10), (25, 25), (3600, 25)])
def test_pod_grace_period_is_at_most_thirty_seconds(requested: int | None, grace: int) -> None:
    assert capped_grace_seconds({"spec": {"terminationGracePeriodSeconds": requested}}) == grace


def test_owned_resources_are_pods_and_their_dependencies() -> None:
    assert OWNED_RESOURCES[0] is PODS
    assert {CONFIGMAPS, SECRETS, SERVICES, ENDPOINT_SLICES} < set(OWNED_RESOURCES)
    assert {PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES} < set(OWNED_RESOURCES)
    assert DEPLOYMENTS not in OWNED_RESOURCES
