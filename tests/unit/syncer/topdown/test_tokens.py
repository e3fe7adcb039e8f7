"""Service account tokens of pods: issued, mounted and renewed, on virtual time."""

import asyncio
import base64
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from tapestry.apis import keys
from tapestry.apis.names import tokens_secret_name, virtual_cluster_label
from tapestry.client.transport import Request
from tapestry.controller.testing import in_virtual_time, running_clock
from tapestry.kube.objects import Object, annotations_of, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES, SECRETS, SERVICE_ACCOUNTS
from tapestry.kube.times import timestamp

from ..world import MAPPED, MOUNT, World, forbidden, has_condition, new_world, phase, rejecting

A_WHILE = 5.0


def api_access(seconds: int = 3600, audience: str = "", name: str = "kube-api-access") -> Object:
    """Return a volume like the one that the virtual cluster adds to every pod."""
    token = {"path": "token", "expirationSeconds": seconds, **({"audience": audience} if audience else {})}
    return {"name": name, "projected": {"sources": [{"serviceAccountToken": token}]}}


async def new_world_with_accounts(*names: str, **spec: Any) -> World:
    world = await new_world(**spec)
    for name in names or ("default",):
        await world.virtual.create(SERVICE_ACCOUNTS, object_named(name, "default"))
    return world


async def secrets(world: World) -> list[Object]:
    return await world.physical.list(SECRETS, MOUNT)


async def tokens_in(world: World) -> list[str]:
    """Return the tokens of the only pod that has any."""
    [secret] = await secrets(world)
    return [base64.b64decode(each).decode() for each in secret["data"].values()]


def issued(world: World) -> list[Request]:
    return [each for each in world.up.requests if each.path.endswith("/token")]


def token_requests(world: World) -> Sequence[Object]:
    return [json.loads(each.body or b"")["spec"] for each in issued(world)]


@in_virtual_time
async def test_pod_gets_bound_tokens_in_one_secret() -> None:
    world = await new_world_with_accounts("robot")
    async with world.syncer():
        volumes = [api_access(3607), api_access(7200, "vault", "vault")]
        pod = await world.add_pod(serviceAccountName="robot", volumes=volumes)
        await world.wait_for_pod(MAPPED)
        bound = {"apiVersion": "v1", "kind": "Pod", "name": "work", "uid": uid_of(pod)}
        assert token_requests(world) == [
            {"expirationSeconds": 3607, "audiences": [], "boundObjectRef": bound},
            {"expirationSeconds": 7200, "audiences": ["vault"], "boundObjectRef": bound},
        ]
        assert {each.path for each in issued(world)} == {"/api/v1/namespaces/default/serviceaccounts/robot/token"}
        [secret] = await secrets(world)
        assert secret["data"].keys() == {"kube-api-access.0", "vault.0"}
        assert len(set(secret["data"].values())) == 2
        [first, second] = (await world.twin())["spec"]["volumes"]
        mounted = {"name": name_of(secret), "items": [{"key": "kube-api-access.0", "path": "token"}]}
        assert first["projected"]["sources"] == [{"secret": mounted}]
        assert second["projected"]["sources"][0]["secret"]["items"][0]["key"] == "vault.0"


@in_virtual_time
async def test_token_takes_one_request_and_one_write() -> None:
    world = await new_world_with_accounts()
    await world.virtual.create(CONFIGMAPS, {**object_named("kube-root-ca.crt", "default"), "data": {"ca.crt": "x"}})
    async with world.syncer():
        await world.add_pod("warm-up", volumes=[{"name": "ca", "configMap": {"name": "kube-root-ca.crt"}}])
        await world.wait_for_pod(MAPPED, "warm-up")
        await asyncio.sleep(A_WHILE)
        world.up.requests.clear()
        world.down.requests.clear()
        await world.add_pod(volumes=[api_access(), {"name": "ca", "configMap": {"name": "kube-root-ca.crt"}}])
        await world.wait_for_pod(MAPPED)
        await asyncio.sleep(600)
        assert [str(each) for each in world.down.requests if each.path != "/version"] == [
            f"POST /api/v1/namespaces/{MOUNT}/secrets",
            f"POST /api/v1/namespaces/{MOUNT}/pods",
        ]
        virtual = [str(each) for each in world.up.requests if "/default/" in each.path]
        assert virtual == [
            "POST /api/v1/namespaces/default/serviceaccounts/default/token",
            "PATCH /api/v1/namespaces/default/pods/work/status",
        ]


@in_virtual_time
async def test_tokens_are_renewed_after_80_percent() -> None:
    world = await new_world_with_accounts()
    async with world.syncer():
        await world.add_pod(volumes=[api_access(600)])
        await world.wait_for_pod(MAPPED)
        first = await tokens_in(world)
        await asyncio.sleep(475)
        assert await tokens_in(world) == first
        await asyncio.sleep(10)
        second = await tokens_in(world)
        assert second != first
        await asyncio.sleep(470)
        assert await tokens_in(world) == second
        await asyncio.sleep(10)
        assert len(issued(world)) == 3
        assert len(world.down.writes("PATCH", "secrets")) == 2


@in_virtual_time
async def test_new_leader_issues_nothing_early() -> None:
    world = await new_world_with_accounts()
    async with world.syncer():
        await world.add_pod(volumes=[api_access(600)])
        await world.wait_for_pod(MAPPED)
        await asyncio.sleep(300)
    world.up.requests.clear()
    async with world.syncer():
        await asyncio.sleep(170)
        assert issued(world) == []
        await asyncio.sleep(20)
        assert len(issued(world)) == 1


@in_virtual_time
async def test_late_syncer_issues_at_once() -> None:
    world = await new_world_with_accounts()
    async with world.syncer():
        await world.add_pod(volumes=[api_access(600)])
        await world.wait_for_pod(MAPPED)
        before = await tokens_in(world)
    await asyncio.sleep(3600)
    async with world.syncer():
        await asyncio.sleep(A_WHILE)
        assert await tokens_in(world) != before


@in_virtual_time
async def test_tokens_are_deleted_with_their_pod() -> None:
    world = await new_world_with_accounts()
    async with world.syncer():
        for name in ("deleted", "done", "stays"):
            await world.add_pod(name, volumes=[api_access()])
            await world.wait_for_pod(MAPPED, name)
        await world.delete_pod("deleted", grace=0)
        await world.start("done")
        await world.end(name="done")
        await world.wait_for_pod(phase("Succeeded"), "done")
        await asyncio.sleep(A_WHILE)
        [left] = await secrets(world)
        assert annotations_of(left)[keys.VIRTUAL_POD_NAME] == "stays"
        await asyncio.sleep(3600)
        assert {value_at(each, "boundObjectRef", "name") for each in token_requests(world)[3:]} == {"stays"}


@in_virtual_time
async def test_tokens_of_pod_deleted_during_downtime_are_deleted() -> None:
    world = await new_world_with_accounts()
    async with world.syncer():
        await world.add_pod(volumes=[api_access()])
        await world.wait_for_pod(MAPPED)
    await world.delete_pod(grace=0)
    async with world.syncer():
        await asyncio.sleep(60)
        assert await secrets(world) == []


@in_virtual_time
async def test_safety_rule_2_pod_is_read_before_token_deletion() -> None:
    world = await new_world_with_accounts()
    async with world.syncer():
        await world.add_pod(volumes=[api_access()])
        await world.wait_for_pod(MAPPED)
    [secret] = await secrets(world)
    other = {**annotations_of(secret), keys.VIRTUAL_POD_UID: "of a pod that has yet to be seen"}
    await world.physical.patch(SECRETS, secret, {"metadata": {"annotations": other}})
    pod = await world.pod()
    async with world.syncer():
        world.up.rejection = rejecting("GET", "/pods/work", forbidden("not now"))
        await asyncio.sleep(60)
        assert [uid_of(each) for each in await secrets(world)] == [uid_of(secret)]
        world.up.rejection = lambda _: None
        await asyncio.sleep(600)
        assert [annotations_of(each)[keys.VIRTUAL_POD_UID] for each in await secrets(world)] == [uid_of(pod)]


@in_virtual_time
async def test_recreated_pod_gets_its_own_tokens() -> None:
    world = await new_world_with_accounts()
    async with world.syncer():
        await world.add_pod(volumes=[api_access()])
        await world.wait_for_pod(MAPPED)
        before = await tokens_in(world)
        await world.delete_pod(grace=0)
        second = await world.add_pod(volumes=[api_access()])
        await world.wait_for_pod(MAPPED)
        await asyncio.sleep(A_WHILE)
        [secret] = await secrets(world)
        assert annotations_of(secret)[keys.VIRTUAL_POD_UID] == uid_of(second)
        assert await tokens_in(world) != before
        assert token_requests(world)[-1]["boundObjectRef"]["uid"] == uid_of(second)


@in_virtual_time
async def test_pod_waits_for_its_service_account() -> None:
    world = await new_world_with_accounts()
    async with world.syncer():
        await world.add_pod(serviceAccountName="late", volumes=[api_access()])
        pod = await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "ServiceAccountMissing"))
        [condition] = pod["status"]["conditions"]
        assert condition["message"] == "serviceaccounts default/late does not exist"
        await asyncio.sleep(600)
        assert await world.twins() == []
        await world.virtual.create(SERVICE_ACCOUNTS, object_named("late", "default"))
        await world.wait_for_pod(MAPPED, timeout=31)


@in_virtual_time
async def test_rejected_token_is_reported() -> None:
    world = await new_world_with_accounts()
    async with world.syncer():
        world.up.rejection = rejecting("POST", "/serviceaccounts/default/token", forbidden("no tokens today"))
        await world.add_pod(volumes=[api_access()])
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "TokenRefused"))
        world.up.rejection = lambda _: None
        await world.wait_for_pod(MAPPED, timeout=31)


@in_virtual_time
async def test_safety_rule_1_foreign_secret_keeps_its_name() -> None:
    world = await new_world_with_accounts()
    cluster = virtual_cluster_label(uid_of(await world.virtual.get(NAMESPACES, "kube-system")))
    async with world.syncer() as parts:
        name = tokens_secret_name(cluster, parts.identity.binding_uid, "default", "work")
        foreign = await world.physical.create(SECRETS, {**object_named(name, MOUNT), "data": {"their": "b3du"}})
        await world.add_pod(volumes=[api_access()])
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "NameTaken"))
        await asyncio.sleep(600)
        assert await secrets(world) == [foreign]
        await world.physical.delete(SECRETS, foreign)
        await world.wait_for_pod(MAPPED, timeout=61)


@in_virtual_time
async def test_tokens_are_issued_at_most_once_a_minute() -> None:
    world = await new_world_with_accounts()
    async with world.syncer():
        await world.add_pod(volumes=[api_access()])
        await world.wait_for_pod(MAPPED)
        await asyncio.sleep(120)
        for _ in range(300):
            for secret in await secrets(world):
                edited = {"data": {"kube-api-access.0": "ZWRpdGVk"}}
                await world.physical.patch(SECRETS, object_named(name_of(secret), MOUNT), edited)
            await asyncio.sleep(1)
        assert 5 <= len(issued(world)) <= 8
        for secret in await secrets(world):
            await world.physical.delete(SECRETS, object_named(name_of(secret), MOUNT))
        await asyncio.sleep(61)
        assert len(await tokens_in(world)) == 1


@in_virtual_time
async def test_unreadable_renewal_is_due() -> None:
    world = await new_world_with_accounts()
    async with world.syncer():
        await world.add_pod(volumes=[api_access()])
        await world.wait_for_pod(MAPPED)
        await asyncio.sleep(120)
        [secret] = await secrets(world)
        await world.physical.patch(SECRETS, secret, {"metadata": {"annotations": {keys.TOKENS_RENEWAL: "soon"}}})
        await asyncio.sleep(1)
        [secret] = await secrets(world)
        due = running_clock().now() + timedelta(seconds=0.8 * 3600 - 1)
        assert annotations_of(secret)[keys.TOKENS_RENEWAL] == timestamp(due)


@in_virtual_time
async def test_undeliverable_token_is_not_issued() -> None:
    world = await new_world_with_accounts()
    async with world.syncer(silence_seconds=20):
        await world.add_pod(volumes=[api_access(600)])
        await world.wait_for_pod(MAPPED)
        await asyncio.sleep(300)
        world.down.cut()
        await asyncio.sleep(3600)
        assert len(issued(world)) == 1
        world.down.restore()
        await asyncio.sleep(15)
        assert len(issued(world)) == 2
        [secret] = await secrets(world)
        assert annotations_of(secret)[keys.TOKENS_RENEWAL] > world.timestamp()


@in_virtual_time
async def test_rejected_pod_gets_no_token() -> None:
    world = await new_world_with_accounts()
    async with world.syncer():
        await world.add_pod(volumes=[api_access(), {"name": "host", "hostPath": {"path": "/"}}])
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "PodSecurity"))
        await asyncio.sleep(60)
        assert issued(world) == []
