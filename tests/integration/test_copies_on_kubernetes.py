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
async def running_syncer(site: BoundClusters) -> AsyncIterator[str]:
    """Run the syncer and wait for a virtual node.  Yield the name of the physical node."""
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_policy("all")
    with site.syncer():
        await site.wait_for_virtual_node(node)
        yield node


async def add(site: BoundClusters, resource: Resource, name: str, **content: Any) -> Object:
    metadata = {"name": f"{site.name}-{name}", "namespace": "default", **content.pop("metadata", {})}
    return await site.virtual.create(resource, new_object(resource.kind, metadata, **content))


async def change(site: BoundClusters, resource: Resource, name: str, **content: Any) -> None:
    await site.virtual.patch(resource, object_named(f"{site.name}-{name}", "default"), content)


async def remove(site: BoundClusters, resource: Resource, name: str) -> None:
    await site.virtual.delete(resource, object_named(f"{site.name}-{name}", "default"))


async def wait_for_copy(site: BoundClusters, resource: Resource, name: str, until: Until = bool) -> Object:
    """Wait for the copy to satisfy `until` and return it."""
    return await wait_until(site.physical, resource, await site.twin_name(name), until, site.mount)


async def wait_until_no_copy(site: BoundClusters, resource: Resource, name: str) -> None:
    await wait_until_gone(site.physical, resource, await site.twin_name(name), site.mount)


async def edit_copy(site: BoundClusters, resource: Resource, name: str, **content: Any) -> None:
    """Edit a copy as an owner could."""
    await site.physical.patch(resource, object_named(await site.twin_name(name), site.mount), content)


def volumes(site: BoundClusters, *given: tuple[str, str], optional: bool = False) -> list[Object]:
    fields = {"configMap": "name", "secret": "secretName"}
    return [
        {"name": f"v-{name}", kind: {fields[kind]: f"{site.name}-{name}", "optional": optional}} for kind, name in given
    ]


def says(**data: str) -> Until:
    return lambda obj: bool(obj.get("data") == data)


async def test_copies_follow_their_sources(site: BoundClusters, record_property: Callable[[str, object], None]) -> None:
    """P13."""
    await add(site, CONFIGMAPS, "settings", data={"a": "1", "b": "2"}, binaryData={"c": "AA=="})
    await add(site, SECRETS, "legacy", data={"k": "dg=="}, metadata={"annotations": {"note": "above"}})
    async with running_syncer(site) as node:
        given = [("configMap", "settings"), ("secret", "legacy")]
        later = volumes(site, ("configMap", "later"), optional=True)
        await site.bind_pod("work", node, volumes=[*volumes(site, *given), *later])
        twin = await site.wait_for_twin("work")
        settings, legacy = (
            await wait_for_copy(site, CONFIGMAPS, "settings"),
            await wait_for_copy(site, SECRETS, "legacy"),
        )
        assert value_at(twin, "spec", "volumes", 0, "configMap", "name") == name_of(settings)
        assert (settings["data"], settings["binaryData"]) == ({"a": "1", "b": "2"}, {"c": "AA=="})
        assert legacy["data"] == {"k": "dg=="}
        assert "note" not in annotations_of(legacy)
        await edit_copy(site, CONFIGMAPS, "settings", metadata={"labels": {"owner": "x"}})
        began = time.monotonic()
        await change(site, CONFIGMAPS, "settings", data={"a": "3", "b": None}, binaryData=None)
        settings = await wait_for_copy(site, CONFIGMAPS, "settings", says(a="3"))
        record_property("figure", f"a ConfigMap's change was below after {1000 * (time.monotonic() - began):.0f} ms")
        assert "binaryData" not in settings
        assert labels_of(settings)["owner"] == "x"
        await change(site, SECRETS, "legacy", data={"k": "dw=="})
        await wait_for_copy(site, SECRETS, "legacy", says(k="dw=="))
        await add(site, CONFIGMAPS, "later", data={"l": "1"})
        await wait_for_copy(site, CONFIGMAPS, "later", says(l="1"))
        await remove(site, CONFIGMAPS, "later")
        await wait_until_no_copy(site, CONFIGMAPS, "later")
        await site.end_pod("work")
        await wait_until_no_copy(site, CONFIGMAPS, "settings")
        await wait_until_no_copy(site, SECRETS, "legacy")
    assert await site.virtual.list(CONFIGMAPS, "default", labels=keys.MANAGED_BY) == []


async def test_pod_waits_for_its_required_sources(site: BoundClusters) -> None:
    async with running_syncer(site) as node:
        await site.bind_pod("work", node, volumes=volumes(site, ("secret", "late")))
        pod = await site.wait_for_pod(
            "work", lambda pod: find_condition(pod["status"].get("conditions"), keys.MAPPED_CONDITION) is not None
        )
        condition = find_condition(pod["status"]["conditions"], keys.MAPPED_CONDITION) or {}
        assert (condition["status"], condition["reason"]) == ("False", "SecretMissing")
        assert condition["message"] == f"secrets default/{site.name}-late does not exist"
        await add(site, SECRETS, "late", stringData={"k": "v"})
        await site.wait_for_pod("work", lambda pod: is_condition_true(pod, keys.MAPPED_CONDITION))


async def test_immutable_copies_are_replaced_and_edits_are_reverted(site: BoundClusters) -> None:
    await add(site, CONFIGMAPS, "fixed", data={"k": "1"}, immutable=True)
    account = {"annotations": {"kubernetes.io/service-account.name": "robot"}}
    await site.virtual.create(
        SERVICE_ACCOUNTS, new_object("ServiceAccount", {"name": site.name, "namespace": "default"})
    )
    token_type = "kubernetes.io/service-account-token"
    account["annotations"]["kubernetes.io/service-account.name"] = site.name
    await add(site, SECRETS, "token", data={"extra": "dg=="}, type=token_type, metadata=account)
    async with running_syncer(site) as node:
        await site.bind_pod("work", node, volumes=volumes(site, ("configMap", "fixed"), ("secret", "token")))
        await site.wait_for_pod("work", lambda pod: is_condition_true(pod, keys.MAPPED_CONDITION))
        before = await wait_for_copy(site, CONFIGMAPS, "fixed")
        assert before["immutable"] is True
        assert (await wait_for_copy(site, SECRETS, "token"))["type"] == "Opaque"
        await remove(site, CONFIGMAPS, "fixed")
        await add(site, CONFIGMAPS, "fixed", data={"k": "2"})
        after = await wait_for_copy(site, CONFIGMAPS, "fixed", says(k="2"))
        assert uid_of(after) != uid_of(before)
        assert "immutable" not in after
        await edit_copy(
            site, CONFIGMAPS, "fixed", data={"k": "edited", "more": "x"}, metadata={"labels": {"owner": "x"}}
        )
        restored = await wait_for_copy(site, CONFIGMAPS, "fixed", says(k="2"))
        assert labels_of(restored)["owner"] == "x"
        about = f"involvedObject.name={site.name}-fixed,reason=LocalChangeOverwritten"
        [event] = await wait_for_all(site.virtual, EVENTS, "default", bool, fields=about)
        assert (event["type"], event["involvedObject"]["kind"]) == ("Warning", "ConfigMap")


@asynccontextmanager
async def bearer(site: BoundClusters, folder: Path, token: str) -> AsyncIterator[Client]:
    """Client of the virtual API server that has only a token."""
    kubeconfig = yaml.safe_load(site.virtual_plane.kubeconfig.read_text())
    kubeconfig["users"][0]["user"] = {"token": token}
    path = folder / "bearer.yaml"
    path.write_text(yaml.safe_dump(kubeconfig))
    client = Client(HttpTransport(load_access([path], environ={})))
    try:
        yield client
    finally:
        await client.close()


async def token_of(site: BoundClusters, pod: Object, key: str) -> str:
    """Token that the twin of the pod mounts."""
    cluster = virtual_cluster_label(uid_of(await site.virtual.get(NAMESPACES, "kube-system")))
    binding = labels_of(await site.wait_for_twin(name_of(pod).removeprefix(f"{site.name}-")))[keys.CLUSTER_BINDING_UID]
    name = tokens_secret_name(cluster, binding, "default", name_of(pod))
    secret = await wait_until(site.physical, SECRETS, name, bool, site.mount)
    return base64.b64decode(secret["data"][key]).decode()


async def test_token_authenticates_only_while_the_pod_exists(site: BoundClusters, tmp_path: Path) -> None:
    """P15."""
    await site.virtual.create(
        SERVICE_ACCOUNTS, new_object("ServiceAccount", {"name": site.name, "namespace": "default"})
    )
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"serviceAccountToken": {"path": "vault", "audience": "vault", "expirationSeconds": 600}},
    ]
    access = [{"name": "access", "projected": {"sources": sources}}]
    async with running_syncer(site) as node:
        pods = [
            await site.bind_pod(name, node, serviceAccountName=site.name, volumes=access) for name in ("works", "gone")
        ]
        for name in ("works", "gone"):
            await site.wait_for_pod(name, lambda pod: is_condition_true(pod, keys.MAPPED_CONDITION))
        async with bearer(site, tmp_path, await token_of(site, pods[0], "access.0")) as client:
            who = (await client.review(SELF_REVIEWS, {}))["status"]["userInfo"]
            assert who["username"] == f"system:serviceaccount:default:{site.name}"
            assert who["extra"]["authentication.kubernetes.io/pod-uid"] == [uid_of(pods[0])]
        async with bearer(site, tmp_path, await token_of(site, pods[0], "access.1")) as client:
            with pytest.raises(Unauthorized):  # the token is for another audience
                await client.review(SELF_REVIEWS, {})
        token = await token_of(site, pods[1], "access.0")
        await site.end_pod("gone")
        await wait_for_all(site.physical, SECRETS, site.mount, lambda found: len(found) == 1)
        async with bearer(site, tmp_path, token) as client:
            with pytest.raises(Unauthorized):
                await client.review(SELF_REVIEWS, {})
    created = [each for each in site.writes() if each["verb"] == "create" and each["resource"] == "secrets"]
    assert len(created) == 2
