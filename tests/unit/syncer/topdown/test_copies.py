"""Copies of ConfigMaps and Secrets: creation, updates and deletion, on virtual time."""

import asyncio
import gc
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.controller.store import Store
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.errors import Invalid
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of, object_named, uid_of
from tapestry.kube.resources import CONFIGMAPS, SECRETS, Resource

from ..world import MAPPED, MOUNT, World, accept_all, forbidden, has_condition, new_world, phase, rejecting

HIDDEN = "aHVzaC1odXNo"
A_WHILE = 5.0
"""Seconds in which a syncer finishes its immediate work."""


def config(name: str, **more: Any) -> Object:
    """Return a volume of a ConfigMap."""
    return {"name": f"config-{label(name)}", "configMap": {"name": name, **more}}


def secret(name: str, **more: Any) -> Object:
    """Return a volume of a Secret."""
    return {"name": f"secret-{label(name)}", "secret": {"secretName": name, **more}}


def label(name: str) -> str:
    """Return a volume name for an object of that name."""
    return re.sub("[^a-z]", "-", name).strip("-") or "x"


async def add(world: World, resource: Resource, name: str, **content: Any) -> Object:
    data = {"data": {"k": HIDDEN if resource == SECRETS else "v"}}
    return await world.virtual.create(resource, {**object_named(name, "default"), **(content or data)})


async def change(world: World, resource: Resource, name: str, **content: Any) -> None:
    await world.virtual.patch(resource, object_named(name, "default"), content)


async def remove(world: World, resource: Resource, name: str) -> None:
    await world.virtual.delete(resource, object_named(name, "default"))


async def copies(world: World, resource: Resource = CONFIGMAPS) -> dict[str, Object]:
    """Return the physical objects of a kind, by their source."""
    found = await world.physical.list(resource, MOUNT)
    return {annotations_of(each).get(keys.VIRTUAL_NAME, name_of(each)): each for each in found}


async def edit(world: World, resource: Resource, name: str, **content: Any) -> None:
    """Edit a copy in the physical cluster."""
    await world.physical.patch(resource, (await copies(world, resource))[name], content)


# -- creation


@in_virtual_time
async def test_references_are_copied_before_the_twin() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings", data={"k": "v"}, binaryData={"b": "AA=="})
    data = {"username": HIDDEN, "password": HIDDEN}
    await add(world, SECRETS, "password", data=data, type="kubernetes.io/basic-auth")
    await add(world, SECRETS, "unrelated")
    async with world.syncer():
        await world.add_pod(volumes=[config("settings"), secret("password")])
        await world.wait_for_pod(MAPPED)
        settings, password = await copies(world), await copies(world, SECRETS)
        assert (settings.keys(), password.keys()) == ({"settings"}, {"password"})
        assert settings["settings"]["data"] == {"k": "v"}
        assert settings["settings"]["binaryData"] == {"b": "AA=="}
        assert password["password"]["data"] == data
        assert password["password"]["type"] == "kubernetes.io/basic-auth"
        mounted = (await world.twin())["spec"]["volumes"]
        assert mounted[0]["configMap"]["name"] == name_of(settings["settings"])
        assert mounted[1]["secret"]["secretName"] == name_of(password["password"])
        assert [each.split("/")[-1] for each in world.down.writes("POST")] == ["configmaps", "secrets", "pods"]


@in_virtual_time
async def test_every_reference_field_counts() -> None:
    world = await new_world()
    for name in ("a", "b", "kube-root-ca.crt"):
        await add(world, CONFIGMAPS, name)
    for name in ("s", "t", "u", "pull"):
        await add(world, SECRETS, name)
    variables = [
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "k"}}},
        {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]
    containers = [{"name": "c", "image": "busybox:1", "env": variables, "envFrom": [{"configMapRef": {"name": "b"}}]}]
    first = [{"name": "i", "image": "busybox:1", "envFrom": [{"secretRef": {"name": "t"}}]}]
    sources = [{"configMap": {"name": "kube-root-ca.crt"}}, {"secret": {"name": "u"}}]
    volumes = [{"name": "all", "projected": {"sources": sources}}]
    pull = [{"name": "pull"}]
    async with world.syncer():
        await world.add_pod(containers=containers, initContainers=first, volumes=volumes, imagePullSecrets=pull)
        await world.wait_for_pod(MAPPED)
        assert (await copies(world)).keys() == {"a", "b", "kube-root-ca.crt"}
        assert (await copies(world, SECRETS)).keys() == {"s", "t", "u", "pull"}


@in_virtual_time
async def test_pods_share_a_copy() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings")
    async with world.syncer():
        await world.add_pod("first", volumes=[config("settings")])
        await world.wait_for_pod(MAPPED, "first")
        for name in ("second", "third"):
            await world.add_pod(name, volumes=[config("settings")])
            await world.wait_for_pod(MAPPED, name)
        assert len(world.down.writes("configmaps")) == 1


@in_virtual_time
async def test_many_pods_create_one_copy() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings")
    async with world.syncer():
        world.down.api.freeze()  # whether or not the cache shows it meanwhile
        for number in range(50):
            await world.add_pod(f"p{number}", volumes=[config("settings")])
        await asyncio.sleep(1)
        world.down.api.thaw()
        for number in range(50):
            await world.wait_for_pod(MAPPED, f"p{number}")
        assert len([each for each in world.down.requests if "configmaps" in each.path]) == 1
        assert len([each for each in world.up.requests if "configmaps" in each.path]) <= 32


@in_virtual_time
async def test_tenant_metadata_is_not_copied() -> None:
    world = await new_world()
    forged = {
        "labels": {keys.CLUSTER_BINDING_UID: "another", "app": "shop"},
        "annotations": {keys.VIRTUAL_NAME: "other", "kubectl.kubernetes.io/last-applied-configuration": HIDDEN},
        "finalizers": ["example.com/keep"],
    }
    await world.virtual.create(SECRETS, {"metadata": {**forged, "name": "s", "namespace": "default"}})
    async with world.syncer():
        await world.add_pod(volumes=[secret("s")])
        await world.wait_for_pod(MAPPED)
        found = (await copies(world, SECRETS))["s"]["metadata"]
        assert all(key.startswith(keys.PREFIX) for key in {**found["labels"], **found["annotations"]})
        assert "finalizers" not in found
        assert found["labels"][keys.VIRTUAL_NAMESPACE] == "default"


@in_virtual_time
async def test_service_account_token_becomes_opaque() -> None:
    world = await new_world()
    kind, of = "kubernetes.io/service-account-token", {"kubernetes.io/service-account.name": "default"}
    metadata = {"name": "legacy", "namespace": "default", "annotations": of}
    await add(world, SECRETS, "legacy", metadata=metadata, data={"token": HIDDEN}, type=kind)
    async with world.syncer():
        await world.add_pod(volumes=[secret("legacy")])
        await world.wait_for_pod(MAPPED)
        found = (await copies(world, SECRETS))["legacy"]
        assert (found["type"], found["data"]) == ("Opaque", {"token": HIDDEN})
        await asyncio.sleep(600)
        assert len(world.down.writes("secrets")) == 1


@in_virtual_time
async def test_bootstrap_token_is_not_copied() -> None:
    world = await new_world()
    await add(world, SECRETS, "join", data={"token-id": HIDDEN}, type="bootstrap.kubernetes.io/token")
    async with world.syncer():
        await world.add_pod(volumes=[secret("join")])
        await world.add_pod("without", volumes=[secret("join", optional=True)])
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "SecretRefused"))
        await world.wait_for_pod(MAPPED, "without")
        assert await copies(world, SECRETS) == {}


@in_virtual_time
async def test_rejected_pods_references_are_not_copied() -> None:
    world = await new_world()
    for namespace in ("default", "kube-system"):
        await world.virtual.create(SECRETS, {**object_named("s", namespace), "data": {"k": HIDDEN}})
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    host = {"name": "host", "hostPath": {"path": "/"}}
    async with world.syncer():
        await world.add_pod("refused", volumes=[secret("s"), host])
        await world.add_pod("daemon", volumes=[secret("s")], metadata={"ownerReferences": [owner]})
        await world.add_pod("system", namespace="kube-system", volumes=[secret("s")])
        await world.add_pod("elsewhere", node="vnode-east-2-n1", volumes=[secret("s")])
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "PodSecurity"), "refused")
        await change(world, SECRETS, "s", data={"k": "bmV3"})
        await asyncio.sleep(A_WHILE)
        assert await copies(world, SECRETS) == {}


@in_virtual_time
async def test_rejected_change_keeps_existing_copies_only() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings")
    await add(world, SECRETS, "s")
    async with world.syncer():
        await world.add_pod(volumes=[config("settings")])
        await world.wait_for_pod(MAPPED)
        await world.debug_pod(securityContext={"privileged": True}, envFrom=[{"secretRef": {"name": "s"}}])
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "PodSecurity"))
        await change(world, CONFIGMAPS, "settings", data={"k": "w"})
        await asyncio.sleep(60)
        assert (await copies(world))["settings"]["data"] == {"k": "w"}
        assert await copies(world, SECRETS) == {}


@pytest.mark.parametrize("name", ["../secrets/s", "a/b", "..", "UPPER", "a%2fb"])
@in_virtual_time
async def test_impossible_name_is_not_requested(name: str) -> None:
    world = await new_world()
    await add(world, SECRETS, "s")
    async with world.syncer():
        await world.add_pod(volumes=[config(name)])
        await world.add_pod("without", volumes=[config(name, optional=True)])
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "ConfigMapMissing"))
        await world.wait_for_pod(MAPPED, "without")
        requested = [each.path for each in world.up.requests if each.method == "GET" and "configmaps/" in each.path]
        assert [path for path in requested if not path.endswith("/kube-root-ca.crt")] == []
        assert await copies(world, SECRETS) == {}


# -- missing sources


@pytest.mark.parametrize(
    ("resource", "volume", "reason"), [(CONFIGMAPS, config, "ConfigMapMissing"), (SECRETS, secret, "SecretMissing")]
)
@in_virtual_time
async def test_pod_waits_for_required_source(resource: Resource, volume: Callable[[str], Object], reason: str) -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod(volumes=[volume("late")])
        pod = await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", reason))
        [condition] = pod["status"]["conditions"]
        assert condition["message"] == f"{resource.plural} default/late does not exist"
        await asyncio.sleep(600)
        assert await world.twins() == []
        await add(world, resource, "late")
        await world.wait_for_pod(MAPPED, timeout=1)
        assert (await copies(world, resource)).keys() == {"late"}


@in_virtual_time
async def test_optional_source_is_copied_later() -> None:
    world = await new_world()
    async with world.syncer():
        pull = [{"name": "pull"}]
        await world.add_pod(volumes=[config("c", optional=True), secret("s", optional=True)], imagePullSecrets=pull)
        await world.wait_for_pod(MAPPED)
        await asyncio.sleep(600)
        assert (await copies(world), await copies(world, SECRETS)) == ({}, {})
        await add(world, CONFIGMAPS, "c")
        for name in ("s", "pull"):
            await add(world, SECRETS, name)
        await asyncio.sleep(1)
        assert (await copies(world)).keys() == {"c"}
        assert (await copies(world, SECRETS)).keys() == {"s", "pull"}


@in_virtual_time
async def test_required_in_one_place_is_required() -> None:
    world = await new_world()
    containers = [
        {"name": "c", "image": "busybox:1", "envFrom": [{"configMapRef": {"name": "settings", "optional": True}}]}
    ]
    async with world.syncer():
        await world.add_pod(containers=containers, volumes=[config("settings")])
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "ConfigMapMissing"))


@in_virtual_time
async def test_references_of_ephemeral_container_are_copied() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "tools")
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        await world.debug_pod(envFrom=[{"configMapRef": {"name": "tools"}}])
        await asyncio.sleep(1)
        assert (await copies(world)).keys() == {"tools"}


# -- updates


@in_virtual_time
async def test_change_is_copied_with_one_write() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings", data={"a": "1", "b": "2"})
    await add(world, SECRETS, "password", data={"p": HIDDEN})
    async with world.syncer():
        await world.add_pod(volumes=[config("settings"), secret("password")])
        await world.wait_for_pod(MAPPED)
        await edit(world, CONFIGMAPS, "settings", metadata={"labels": {"owner": "x"}, "annotations": {"seen": "y"}})
        await change(world, CONFIGMAPS, "settings", data={"a": "3", "b": None, "c": "4"})
        await change(world, SECRETS, "password", data={"p": "bmV3"})
        await asyncio.sleep(1)
        found = (await copies(world))["settings"]
        assert found["data"] == {"a": "3", "c": "4"}
        assert labels_of(found)["owner"] == "x"
        assert annotations_of(found)["seen"] == "y"
        assert (await copies(world, SECRETS))["password"]["data"] == {"p": "bmV3"}
        assert len(world.down.writes("PATCH", "configmaps")) == len(world.down.writes("PATCH", "secrets")) == 1
        assert await world.events("LocalChangeOverwritten") == []


@in_virtual_time
async def test_unchanged_source_causes_no_request() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings")
    async with world.syncer():
        await world.add_pod(volumes=[config("settings")])
        await world.wait_for_pod(MAPPED)
        await asyncio.sleep(A_WHILE)
        world.up.requests.clear()
        world.down.requests.clear()
        await change(world, CONFIGMAPS, "settings", metadata={"labels": {"a": "b"}})
        await edit(world, CONFIGMAPS, "settings", metadata={"labels": {"c": "d"}})
        await asyncio.sleep(3600)
        assert [each for each in (*world.up.requests, *world.down.requests) if "configmaps" in each.path] == []


@in_virtual_time
async def test_source_is_never_written() -> None:
    world = await new_world()
    before = [await add(world, CONFIGMAPS, "settings"), await add(world, SECRETS, "password")]
    async with world.syncer():
        await world.add_pod(volumes=[config("settings"), secret("password")])
        await world.wait_for_pod(MAPPED)
        await world.delete_pod(grace=0)
        await asyncio.sleep(60)
    assert await world.virtual.get(CONFIGMAPS, "settings", "default") == before[0]
    assert await world.virtual.get(SECRETS, "password", "default") == before[1]


@in_virtual_time
async def test_two_bindings_copy_independently() -> None:
    world = await new_world("east", "west")
    await add(world, CONFIGMAPS, "settings")
    async with world.syncer("east"), world.syncer("west"):
        await world.add_pod("a", node="vnode-east-n1", volumes=[config("settings")])
        await world.add_pod("b", node="vnode-west-n1", volumes=[config("settings")])
        await world.wait_for_pod(MAPPED, "a")
        await world.wait_for_pod(MAPPED, "b")
        assert len(await world.physical.list(CONFIGMAPS, MOUNT)) == 2
        await change(world, CONFIGMAPS, "settings", data={"k": "w"})
        await world.delete_pod("a", grace=0)
        await asyncio.sleep(A_WHILE)
        [left] = await world.physical.list(CONFIGMAPS, MOUNT)
        assert labels_of(left)[keys.CLUSTER_BINDING] == "west"
        assert left["data"] == {"k": "w"}


@in_virtual_time
async def test_immutable_copy_is_replaced() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "fixed", data={"k": "1"}, immutable=True)
    await add(world, SECRETS, "typed", data={"k": HIDDEN}, type="example.com/one")
    async with world.syncer():
        await world.add_pod(volumes=[config("fixed"), secret("typed")])
        await world.wait_for_pod(MAPPED)
        before = [(await copies(world))["fixed"], (await copies(world, SECRETS))["typed"]]
        assert before[0]["immutable"] is True
        await remove(world, CONFIGMAPS, "fixed")
        await add(world, CONFIGMAPS, "fixed", data={"k": "2"})
        await remove(world, SECRETS, "typed")
        await add(world, SECRETS, "typed", data={"k": HIDDEN}, type="example.com/two")
        await asyncio.sleep(A_WHILE)
        after = [(await copies(world))["fixed"], (await copies(world, SECRETS))["typed"]]
        assert after[0]["data"] == {"k": "2"}
        assert "immutable" not in after[0]
        assert after[1]["type"] == "example.com/two"
        assert {uid_of(each) for each in before}.isdisjoint(map(uid_of, after))
        assert await world.events("LocalChangeOverwritten") == []


@in_virtual_time
async def test_copy_becomes_immutable_with_its_source() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings")
    async with world.syncer():
        await world.add_pod(volumes=[config("settings")])
        await world.wait_for_pod(MAPPED)
        before = (await copies(world))["settings"]
        await change(world, CONFIGMAPS, "settings", immutable=True)
        await asyncio.sleep(1)
        after = (await copies(world))["settings"]
        assert after["immutable"] is True
        assert uid_of(after) == uid_of(before)


# -- deletion


@in_virtual_time
async def test_copy_is_deleted_with_its_last_user() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings")
    async with world.syncer():
        for name in ("first", "second"):
            await world.add_pod(name, volumes=[config("settings")])
            await world.wait_for_pod(MAPPED, name)
        await world.delete_pod("first", grace=0)
        await asyncio.sleep(60)
        assert (await copies(world)).keys() == {"settings"}
        await world.start("second")
        await world.end(name="second")
        await world.wait_for_pod(phase("Succeeded"), "second")
        await asyncio.sleep(A_WHILE)
        assert await copies(world) == {}


@in_virtual_time
async def test_copy_is_deleted_and_recreated_with_its_source() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings", data={"k": "1"})
    async with world.syncer():
        await world.add_pod(volumes=[config("settings")])
        await world.wait_for_pod(MAPPED)
        await remove(world, CONFIGMAPS, "settings")
        await asyncio.sleep(1)
        assert await copies(world) == {}
        await add(world, CONFIGMAPS, "settings", data={"k": "2"})
        await asyncio.sleep(1)
        assert (await copies(world))["settings"]["data"] == {"k": "2"}


@in_virtual_time
async def test_safety_rule_2_pods_are_listed_before_copy_deletion() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings")
    async with world.syncer():
        await world.add_pod("first", volumes=[config("settings")])
        await world.wait_for_pod(MAPPED, "first")
        await asyncio.sleep(A_WHILE)
        await world.delete_pod("first", grace=0)
        await asyncio.sleep(0.1)
        world.up.api.freeze()
        await world.add_pod("second", volumes=[config("settings")])
        await asyncio.sleep(A_WHILE)
        assert (await copies(world)).keys() == {"settings"}
        world.up.api.thaw()
        await world.wait_for_pod(MAPPED, "second")


@in_virtual_time
async def test_deleting_copy_is_recreated_for_new_pod() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings")
    async with world.syncer():
        await world.add_pod("first", volumes=[config("settings")])
        await world.wait_for_pod(MAPPED, "first")
        await world.delete_pod("first", grace=0)
        await asyncio.sleep(0.5)
        world.down.api.freeze()
        await asyncio.sleep(1)
        assert await copies(world) == {}
        world.down.requests.clear()
        await world.add_pod("second", volumes=[config("settings")])
        await asyncio.sleep(1)
        assert [each.split("/")[-1] for each in world.down.writes("POST")] == ["configmaps", "pods"]
        world.down.api.thaw()
        await world.wait_for_pod(MAPPED, "second")


@in_virtual_time
async def test_restarted_syncer_repairs_only_differences() -> None:
    world = await new_world()
    for name in ("same", "changed", "gone", "unused"):
        await add(world, CONFIGMAPS, name)
    async with world.syncer():
        await world.add_pod(volumes=[config(name) for name in ("same", "changed", "gone")])
        await world.add_pod("leaves", volumes=[config("unused")])
        await world.wait_for_pod(MAPPED)
        await world.wait_for_pod(MAPPED, "leaves")
    await change(world, CONFIGMAPS, "changed", data={"k": "w"})
    await remove(world, CONFIGMAPS, "gone")
    await world.delete_pod("leaves", grace=0)
    world.down.requests.clear()
    async with world.syncer():
        await asyncio.sleep(60)
        found = await copies(world)
        assert found.keys() == {"same", "changed"}
        assert found["changed"]["data"] == {"k": "w"}
        assert sorted(each.split()[0] for each in world.down.writes("configmaps")) == ["DELETE", "DELETE", "PATCH"]


@in_virtual_time
async def test_unbinding_deletes_all_copies() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings")
    async with world.syncer():
        await world.add_pod(volumes=[config("settings")])
        await world.wait_for_pod(MAPPED)
        await world.virtual.delete(CLUSTER_BINDINGS, object_named("east"))
        await world.wait_until_twin_is_gone()
        await asyncio.sleep(120)
        assert await copies(world) == {}


# -- foreign changes


@in_virtual_time
async def test_edited_copy_is_reset_with_an_event() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings", data={"k": "v"})
    source = await add(world, SECRETS, "password", data={"p": HIDDEN})
    async with world.syncer():
        await world.add_pod(volumes=[config("settings"), secret("password")])
        await world.wait_for_pod(MAPPED)
        ours = {"labels": {keys.VIRTUAL_NAMESPACE: "other", "theirs": "stays"}}
        await edit(world, CONFIGMAPS, "settings", metadata=ours)
        await edit(world, SECRETS, "password", data={"p": "ZWRpdGVk", "q": "ZWRpdGVk"}, metadata=ours)
        await asyncio.sleep(1)
        settings, password = (await copies(world))["settings"], (await copies(world, SECRETS))["password"]
        assert password["data"] == {"p": HIDDEN}
        for each in (settings, password):
            assert labels_of(each)[keys.VIRTUAL_NAMESPACE] == "default"
            assert labels_of(each)["theirs"] == "stays"
        reported = await world.events("LocalChangeOverwritten")
        assert {event["involvedObject"]["name"] for event in reported} == {"settings", "password"}
        assert {event["type"] for event in reported} == {"Warning"}
        assert uid_of(source) in [event["involvedObject"]["uid"] for event in reported]
        assert await world.virtual.get(SECRETS, "password", "default") == source


@in_virtual_time
async def test_repeated_edits_are_reset_with_backoff() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings", data={"k": "ours"})
    async with world.syncer():
        await world.add_pod(volumes=[config("settings")])
        await world.wait_for_pod(MAPPED)
        world.down.requests.clear()
        for _ in range(3600):
            if (await copies(world))["settings"]["data"] == {"k": "ours"}:
                await edit(world, CONFIGMAPS, "settings", data={"k": "theirs"})
            await asyncio.sleep(1)
        assert 8 <= len(world.down.writes("PATCH", "configmaps")) <= 24


@in_virtual_time
async def test_deleted_copy_is_recreated() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings")
    async with world.syncer():
        await world.add_pod(volumes=[config("settings")])
        await world.wait_for_pod(MAPPED)
        await world.physical.delete(CONFIGMAPS, (await copies(world))["settings"])
        await asyncio.sleep(2)
        assert (await copies(world)).keys() == {"settings"}


@in_virtual_time
async def test_safety_rule_1_foreign_object_keeps_its_name() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings")
    async with world.syncer():
        place = await world.twin_ref("settings")
        foreign = await world.physical.create(CONFIGMAPS, {**place, "data": {"their": "own"}})
        await world.add_pod(volumes=[config("settings")])
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "NameTaken"))
        await asyncio.sleep(600)
        assert await world.physical.list(CONFIGMAPS, MOUNT) == [foreign]
        assert await world.twins() == []
        await world.physical.delete(CONFIGMAPS, place)
        await world.wait_for_pod(MAPPED, timeout=61)


@in_virtual_time
async def test_safety_rule_1_copy_without_labels_is_foreign() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings")
    async with world.syncer():
        await world.add_pod(volumes=[config("settings")])
        await world.wait_for_pod(MAPPED)
        await edit(world, CONFIGMAPS, "settings", metadata={"labels": {keys.CLUSTER_BINDING_UID: "another"}})
        await change(world, CONFIGMAPS, "settings", data={"k": "w"})
        await asyncio.sleep(60)
        await world.delete_pod(grace=0)
        await asyncio.sleep(60)
        assert (await copies(world))["settings"]["data"] == {"k": "v"}


@in_virtual_time
async def test_copy_with_finalizer_does_not_serve_new_pods() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings")
    async with world.syncer():
        await world.add_pod("first", volumes=[config("settings")])
        await world.wait_for_pod(MAPPED, "first")
        await edit(world, CONFIGMAPS, "settings", metadata={"finalizers": ["example.com/keep"]})
        await world.delete_pod("first", grace=0)
        await asyncio.sleep(A_WHILE)
        await world.add_pod("second", volumes=[config("settings")])
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "NameTaken"), "second")
        await edit(world, CONFIGMAPS, "settings", metadata={"finalizers": []})
        await world.wait_for_pod(MAPPED, "second", timeout=2)


# -- faults


@in_virtual_time
async def test_changes_during_partition_are_copied_later() -> None:
    world = await new_world()
    await add(world, CONFIGMAPS, "settings")
    async with world.syncer(silence_seconds=20):
        await world.add_pod(volumes=[config("settings")])
        await world.wait_for_pod(MAPPED)
        world.down.cut()
        await change(world, CONFIGMAPS, "settings", data={"k": "w"})
        await asyncio.sleep(3600)
        world.down.restore()
        await asyncio.sleep(15)
        assert (await copies(world))["settings"]["data"] == {"k": "w"}


@in_virtual_time
async def test_forbidden_source_is_reported_until_allowed() -> None:
    world = await new_world()
    await add(world, SECRETS, "password")
    async with world.syncer():
        denied = forbidden('secrets "password" is forbidden: User "syncer" cannot get resource "secrets"')
        world.up.rejection = rejecting("GET", "/secrets/password", denied)
        await world.add_pod(volumes=[secret("password")])
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "NotGranted"))
        await asyncio.sleep(600)
        assert await world.twins() == []
        world.up.rejection = lambda _: None
        await world.wait_for_pod(MAPPED, timeout=61)


@in_virtual_time
async def test_safety_rule_7_rejected_secret_is_not_quoted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await new_world()
    await add(world, SECRETS, "password", data={"p": HIDDEN})
    async with world.syncer():
        causes = {"causes": [{"field": "data[p]", "message": f"{HIDDEN} is bad"}]}
        quoting = Invalid(422, "Invalid", f"data: {HIDDEN} is bad", details=causes)
        world.down.rejection = rejecting("POST", "/secrets", quoting)
        await world.add_pod(volumes=[secret("password")])
        pod = await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "RefusedBelow"))
        assert "data[p]" in str(pod["status"])
        world.down.rejection = lambda _: None
        await world.wait_for_pod(MAPPED)
        world.down.rejection = lambda request: quoting if request.method == "PATCH" else None
        await change(world, SECRETS, "password", data={"q": HIDDEN})
        await asyncio.sleep(60)
        assert len(world.down.writes("PATCH", "secrets")) > 3
        events = [
            event for reason in ("RefusedBelow", "LocalChangeOverwritten") for event in await world.events(reason)
        ]
        assert HIDDEN not in str([pod, events])
        assert HIDDEN not in str([record.__dict__ for record in caplog.records])


@in_virtual_time
async def test_safety_rule_7_caches_keep_no_secret_data() -> None:
    world = await new_world()
    applied = {"kubectl.kubernetes.io/last-applied-configuration": HIDDEN}
    metadata = {"name": "password", "namespace": "default", "annotations": applied}
    await world.virtual.create(SECRETS, {"metadata": metadata, "data": {"p": HIDDEN}})
    async with world.syncer():
        await world.add_pod(volumes=[secret("password")])
        await world.wait_for_pod(MAPPED)
        await change(world, SECRETS, "password", data={"q": HIDDEN})
        await asyncio.sleep(A_WHILE)
        assert len((await copies(world, SECRETS))["password"]["data"]) == 2
        remaining = [store.list() for store in stores()]
        assert "password" in str(remaining)
        assert HIDDEN not in str(remaining)


def stores() -> Iterator[Store]:
    """Return every cache of this process."""
    return (each for each in gc.get_objects() if isinstance(each, Store) and len(each))


@in_virtual_time
async def test_pod_waits_while_quota_rejects_its_secret() -> None:
    world = await new_world()
    await add(world, SECRETS, "password", data={"p": HIDDEN})
    async with world.syncer():
        full = forbidden('secrets "password" is forbidden: exceeded quota: mount')
        world.down.rejection = rejecting("POST", "/secrets", full)
        await world.add_pod(volumes=[secret("password")])
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "QuotaExceeded"))
        await asyncio.sleep(600)
        assert await world.phase_and_reason() == ("Pending", None)
        assert await world.condition(keys.ACCEPTED_CONDITION) == ("False", "QuotaExceeded")
        assert await world.twins() == []
        world.down.rejection = accept_all
        await world.wait_for_pod(MAPPED, timeout=301)
        assert await world.condition(keys.ACCEPTED_CONDITION) is None
