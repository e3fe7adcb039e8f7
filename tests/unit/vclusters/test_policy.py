"""Who may write what in the management API: the same by HTTP and in the process."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest

from tapestry.apis.operations import OPERATIONS
from tapestry.apis.projects import ACCESS_KEYS, PROJECTS, QUOTAS
from tapestry.apis.vclusters import VCLUSTERS
from tapestry.kube.errors import ApiError, Forbidden
from tapestry.kube.objects import Object, object_named
from tapestry.vclusters.api_errors import service_error

from .management_world import ManagementWorld, limit, management_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ManagementWorld]:
    async with management_world(tmp_path) as each:
        yield each


async def reason_of(write: Any) -> str:
    """Return the reason for which the policy rejects a write; empty if it does not."""
    try:
        await write
    except ApiError as error:
        found = service_error(error)
        return found.reason if found is not None else repr(error)
    return ""


async def together(writes: Iterable[Coroutine[Any, Any, str]]) -> list[str]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in writes]
    return [each.result() for each in tasks]


async def change(world: ManagementWorld, vcluster: Object, **spec: Any) -> Object:
    return await world.http.patch(VCLUSTERS, object_named("blue", "shop"), {"spec": spec})


@pytest.mark.parametrize("by_http", [True, False])
async def test_concurrent_creates_never_exceed_quota(world: ManagementWorld, by_http: bool) -> None:
    await limit(world, vclusters=1)
    client = world.http if by_http else world.client()

    async def create(number: int) -> str:
        vcluster = {**object_named(f"vc{number}", "shop"), "spec": {"project": "shop"}}
        return await reason_of(client.create(VCLUSTERS, vcluster))

    reasons = await together(create(number) for number in range(20))
    assert sorted(reasons) == ["", *["QUOTA_EXCEEDED"] * 19]


async def test_only_the_orchestrator_writes_status_and_records(world: ManagementWorld) -> None:
    vcluster = await world.create(project="shop")
    with pytest.raises(Forbidden):
        await world.http.patch(VCLUSTERS, vcluster, {"status": {"phase": "Running"}}, subresource="status")
    spec = {"verb": "Create", "vcluster": "blue", "vclusterUid": "u", "project": "shop", "principal": "eve"}
    with pytest.raises(Forbidden, match="only the orchestrator"):
        await world.http.create(OPERATIONS, {**object_named("op-" + "a" * 26, "shop"), "spec": spec})


async def test_deletion_protection(world: ManagementWorld) -> None:
    vcluster = await world.create(project="shop", deletionProtection=True)
    assert await reason_of(world.http.delete(VCLUSTERS, object_named("blue", "shop"))) == "DELETION_PROTECTED"
    assert await reason_of(world.http.delete(PROJECTS, object_named("shop"))) == "PROJECT_NOT_EMPTY"
    await world.run(vcluster)
    await change(world, vcluster, deletionProtection=False)
    await world.http.delete(VCLUSTERS, object_named("blue", "shop"))


WRONG_SPECS: list[Any] = [
    *("x", [1], {"operation": "x"}, {"operation": [1]}, {"operation": {"verb": "None", "id": "x", "principal": "a"}}),
    *({"resources": "x"}, {"resources": {"cpuLimit": "zz"}}, {"storage": {"persistenceSize": {}}}, {"expireTime": "x"}),
    *({"project": 4}, {"helmValues": 4}, {"plugins": "x"}, {"ingress": {"tls": 3}}, {"replicas": "x"}),
]


async def test_values_of_wrong_types_are_rejected(world: ManagementWorld) -> None:
    await limit(world, vclusters=3, snapshots=3, cpuLimits="4")
    await world.run(await world.create(project="shop", resources={"cpuLimit": "1"}))
    for spec in WRONG_SPECS:
        if isinstance(spec, dict):
            assert await reason_of(change(world, {}, **spec)) == "FIELD_INVALID", spec
        content = {"project": "shop", **spec} if isinstance(spec, dict) else spec
        written = world.http.create(VCLUSTERS, {**object_named("new", "shop"), "spec": content})
        assert await reason_of(written) == "FIELD_INVALID", spec
    for resource in (PROJECTS, QUOTAS, ACCESS_KEYS):
        written = world.http.create(resource, {**object_named("new"), "spec": "x"})
        assert await reason_of(written) == "FIELD_INVALID", resource
    no_spec = world.http.create(VCLUSTERS, object_named("new", "shop"))
    assert await reason_of(no_spec) == "QUOTA_EXCEEDED"  # it has no limit of CPUs


async def test_project_of_a_vcluster_exists(world: ManagementWorld) -> None:
    assert await reason_of(world.create(project="none")) == "RESOURCE_NOT_FOUND"


async def test_users_need_a_role(world: ManagementWorld) -> None:
    members = [{"kind": "User", "name": "vera", "role": "viewer"}, {"kind": "User", "name": "ed", "role": "editor"}]
    await world.http.patch(PROJECTS, object_named("shop"), {"spec": {"members": members}})
    await world.grant_everything("vera", "ed", "eve")
    expected = {"vera": "PERMISSION_DENIED", "eve": "RESOURCE_NOT_FOUND", "ed": ""}
    for user, reason in expected.items():
        vcluster = {**object_named(user, "shop"), "spec": {"project": "shop"}}
        assert await reason_of(world.user(user).create(VCLUSTERS, vcluster)) == reason
        key = {"principal": user, "secretSha256": "0" * 64, "platformAdmin": True}
        forged = {**object_named(f"key-{user}"), "spec": key}
        assert await reason_of(world.user(user).create(ACCESS_KEYS, forged)) == "PERMISSION_DENIED"
        raised = {"spec": {"members": [{"kind": "User", "name": user, "role": "admin"}]}}
        reason = "RESOURCE_NOT_FOUND" if user == "eve" else "PERMISSION_DENIED"
        assert await reason_of(world.user(user).patch(PROJECTS, object_named("shop"), raised)) == reason
