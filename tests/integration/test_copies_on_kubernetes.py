"""Copies of ConfigMaps, Secrets and tokens by a syncer between two real API servers."""

import base64
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tapestry.apis import keys
from tapestry.apis.names import tokens_secret_name, virtual_cluster_label
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.errors import Unauthorized
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import CONFIGMAPS, EVENTS, NAMESPACES, SECRETS, SERVICE_ACCOUNTS, Resource

from .bound_clusters import BoundClusters, Until, new_object, wait_for_all, wait_until, wait_until_gone

SELF_REVIEWS = Resource("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", namespaced=False)


@asynccontextmanager
async def running_syncer(clusters: BoundClusters) -> AsyncIterator[str]:
    """Run the syncer and wait for a virtual node.  Yield the name of the physical node."""
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all")
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        yield node


async def add(clusters: BoundClusters, resource: Resource, name: str, **content: Any) -> Object:
    metadata = {"name": f"{clusters.name}-{name}", "namespace": "default", **content.pop("metadata", {})}
    return await clusters.virtual.create(resource, new_object(resource.kind, metadata, **content))


async def change(clusters: BoundClusters, resource: Resource, name: str, **content: Any) -> None:
    await clusters.virtual.patch(resource, object_named(f"{clusters.name}-{name}", "default"), content)


async def remove(clusters: BoundClusters, resource: Resource, name: str) -> None:
    await clusters.virtual.delete(resource, object_named(f"{clusters.name}-{name}", "default"))


async def wait_for_copy(clusters: BoundClusters, resource: Resource, name: str, until: Until = bool) -> Object:
    """Wait for the copy to satisfy `until` and return it."""
    return await wait_until(clusters.physical, resource, await clusters.twin_name(name), until, clusters.mount)


async def wait_until_no_copy(clusters: BoundClusters, resource: Resource, name: str) -> None:
    await wait_until_gone(clusters.physical, resource, await clusters.twin_name(name), clusters.mount)


async def edit_copy(clusters: BoundClusters, resource: Resource, name: str, **content: Any) -> None:
    """Edit a copy as an owner could."""
    await clusters.physical.patch(resource, object_named(await clusters.twin_name(name), clusters.mount), content)


def volumes(clusters: BoundClusters, *given: tuple[str, str], optional: bool = False) -> list[Object]:
    fields = {"configMap": "name", "secret": "secretName"}
    return [
        {"name": f"v-{name}", kind: {fields[kind]: f"{clusters.name}-{name}", "optional": optional}}
        for kind, name in given
    ]


def says(**data: str) -> Until:
    return lambda obj: bool(obj.get("data") == data)


async def test_copies_follow_their_sources(
    clusters: BoundClusters, record_property: Callable[[str, object], None]
) -> None:
    """P13."""
    await add(clusters, CONFIGMAPS, "settings", data={"a": "1", "b": "2"}, binaryData={"c": "AA=="})
    await add(clusters, SECRETS, "legacy", data={"k": "dg=="}, metadata={"annotations": {"note": "above"}})
    async with running_syncer(clusters) as node:
        given = [("configMap", "settings"), ("secret", "legacy")]
        later = volumes(clusters, ("configMap", "later"), optional=True)
        await clusters.bind_pod("work", node, volumes=[*volumes(clusters, *given), *later])
        twin = await clusters.wait_for_twin("work")
        settings, legacy = (
            await wait_for_copy(clusters, CONFIGMAPS, "settings"),
            await wait_for_copy(clusters, SECRETS, "legacy"),
        )
        assert value_at(twin, "spec", "volumes", 0, "configMap", "name") == name_of(settings)
        assert (settings["data"], settings["binaryData"]) == ({"a": "1", "b": "2"}, {"c": "AA=="})
        assert legacy["data"] == {"k": "dg=="}
        assert "note" not in annotations_of(legacy)
        await edit_copy(clusters, CONFIGMAPS, "settings", metadata={"labels": {"owner": "x"}})
        began = time.monotonic()
        await change(clusters, CONFIGMAPS, "settings", data={"a": "3", "b": None}, binaryData=None)
        settings = await wait_for_copy(clusters, CONFIGMAPS, "settings", says(a="3"))
        record_property("figure", f"a ConfigMap's change was below after {1000 * (time.monotonic() - began):.0f} ms")
        assert "binaryData" not in settings
        assert labels_of(settings)["owner"] == "x"
        await change(clusters, SECRETS, "legacy", data={"k": "dw=="})
        await wait_for_copy(clusters, SECRETS, "legacy", says(k="dw=="))
        await add(clusters, CONFIGMAPS, "later", data={"l": "1"})
        await wait_for_copy(clusters, CONFIGMAPS, "later", says(l="1"))
        await remove(clusters, CONFIGMAPS, "later")
        await wait_until_no_copy(clusters, CONFIGMAPS, "later")
        await clusters.end_pod("work")
        await wait_until_no_copy(clusters, CONFIGMAPS, "settings")
        await wait_until_no_copy(clusters, SECRETS, "legacy")
    assert await clusters.virtual.list(CONFIGMAPS, "default", labels=keys.MANAGED_BY) == []


async def test_pod_waits_for_its_required_sources(clusters: BoundClusters) -> None:
    async with running_syncer(clusters) as node:
        await clusters.bind_pod("work", node, volumes=volumes(clusters, ("secret", "late")))
        pod = await clusters.wait_for_pod(
            "work", lambda pod: find_condition(pod["status"].get("conditions"), keys.MAPPED_CONDITION) is not None
        )
        condition = find_condition(pod["status"]["conditions"], keys.MAPPED_CONDITION) or {}
        assert (condition["status"], condition["reason"]) == ("False", "SecretMissing")
        assert condition["message"] == f"secrets default/{clusters.name}-late does not exist"
        await add(clusters, SECRETS, "late", stringData={"k": "v"})
        await clusters.wait_for_pod("work", lambda pod: is_condition_true(pod, keys.MAPPED_CONDITION))


async def test_immutable_copies_are_replaced_and_edits_are_reverted(clusters: BoundClusters) -> None:
    await add(clusters, CONFIGMAPS, "fixed", data={"k": "1"}, immutable=True)
    account = {"annotations": {"kubernetes.io/service-account.name": "robot"}}
    await clusters.virtual.create(
        SERVICE_ACCOUNTS, new_object("ServiceAccount", {"name": clusters.name, "namespace": "default"})
    )
    token_type = "kubernetes.io/service-account-token"
    account["annotations"]["kubernetes.io/service-account.name"] = clusters.name
    await add(clusters, SECRETS, "token", data={"extra": "dg=="}, type=token_type, metadata=account)
    async with running_syncer(clusters) as node:
        await clusters.bind_pod("work", node, volumes=volumes(clusters, ("configMap", "fixed"), ("secret", "token")))
        await clusters.wait_for_pod("work", lambda pod: is_condition_true(pod, keys.MAPPED_CONDITION))
        before = await wait_for_copy(clusters, CONFIGMAPS, "fixed")
        assert before["immutable"] is True
        assert (await wait_for_copy(clusters, SECRETS, "token"))["type"] == "Opaque"
        await remove(clusters, CONFIGMAPS, "fixed")
        await add(clusters, CONFIGMAPS, "fixed", data={"k": "2"})
        after = await wait_for_copy(clusters, CONFIGMAPS, "fixed", says(k="2"))
        assert uid_of(after) != uid_of(before)
        assert "immutable" not in after
        await edit_copy(
            clusters, CONFIGMAPS, "fixed", data={"k": "edited", "more": "x"}, metadata={"labels": {"owner": "x"}}
        )
        restored = await wait_for_copy(clusters, CONFIGMAPS, "fixed", says(k="2"))
        assert labels_of(restored)["owner"] == "x"
        about = f"involvedObject.name={clusters.name}-fixed,reason=LocalChangeOverwritten"
        [event] = await wait_for_all(clusters.virtual, EVENTS, "default", bool, fields=about)
        assert (event["type"], event["involvedObject"]["kind"]) == ("Warning", "ConfigMap")


@asynccontextmanager
async def bearer(clusters: BoundClusters, folder: Path, token: str) -> AsyncIterator[Client]:
    """Client of the virtual API server that has only a token."""
    kubeconfig = yaml.safe_load(clusters.virtual_plane.kubeconfig.read_text())
    kubeconfig["users"][0]["user"] = {"token": token}
    path = folder / "bearer.yaml"
    path.write_text(yaml.safe_dump(kubeconfig))
    client = Client(HttpTransport(load_access([path], environ={})))
    try:
        yield client
    finally:
        await client.close()


async def token_of(clusters: BoundClusters, pod: Object, key: str) -> str:
    """Token that the twin of the pod mounts."""
    cluster = virtual_cluster_label(uid_of(await clusters.virtual.get(NAMESPACES, "kube-system")))
    binding = labels_of(await clusters.wait_for_twin(name_of(pod).removeprefix(f"{clusters.name}-")))[
        keys.CLUSTER_BINDING_UID
    ]
    name = tokens_secret_name(cluster, binding, "default", name_of(pod))
    secret = await wait_until(clusters.physical, SECRETS, name, bool, clusters.mount)
    return base64.b64decode(secret["data"][key]).decode()


async def test_token_authenticates_only_while_the_pod_exists(clusters: BoundClusters, tmp_path: Path) -> None:
    """P15."""
    await clusters.virtual.create(
        SERVICE_ACCOUNTS, new_object("ServiceAccount", {"name": clusters.name, "namespace": "default"})
    )
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"serviceAccountToken": {"path": "vault", "audience": "vault", "expirationSeconds": 600}},
    ]
    access = [{"name": "access", "projected": {"sources": sources}}]
    async with running_syncer(clusters) as node:
        pods = [
            await clusters.bind_pod(name, node, serviceAccountName=clusters.name, volumes=access)
            for name in ("works", "gone")
        ]
        for name in ("works", "gone"):
            await clusters.wait_for_pod(name, lambda pod: is_condition_true(pod, keys.MAPPED_CONDITION))
        async with bearer(clusters, tmp_path, await token_of(clusters, pods[0], "access.0")) as client:
            who = (await client.review(SELF_REVIEWS, {}))["status"]["userInfo"]
            assert who["username"] == f"system:serviceaccount:default:{clusters.name}"
            assert who["extra"]["authentication.kubernetes.io/pod-uid"] == [uid_of(pods[0])]
        async with bearer(clusters, tmp_path, await token_of(clusters, pods[0], "access.1")) as client:
            with pytest.raises(Unauthorized):  # the token is for another audience
                await client.review(SELF_REVIEWS, {})
        token = await token_of(clusters, pods[1], "access.0")
        await clusters.end_pod("gone")
        await wait_for_all(clusters.physical, SECRETS, clusters.mount, lambda found: len(found) == 1)
        async with bearer(clusters, tmp_path, token) as client:
            with pytest.raises(Unauthorized):
                await client.review(SELF_REVIEWS, {})
    created = [each for each in clusters.writes() if each["verb"] == "create" and each["resource"] == "secrets"]
    assert len(created) == 2
