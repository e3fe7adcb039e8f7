"""Projects, quotas, access keys and audit records."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tapestry.vclusters.access.keys import parse_key
from tapestry.vclusters.access.roles import Caller, Role
from tapestry.vclusters.audit.chained_log import open_log
from tapestry.vclusters.audit.records import AuditEvent

from .service_world import ALICE, EVE, ROOT, ServiceWorld, service_world

SCOPED = Caller("alice", "key:a", roles={"shop": Role.ADMIN}, scopes={"shop": Role.VIEWER})


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServiceWorld]:
    async with service_world(tmp_path) as each:
        yield each


async def test_projects(world: ServiceWorld) -> None:
    member = {"kind": "User", "name": "bob", "role": "editor"}
    created = await world.call("CreateProject", ROOT, project={"name": "bank", "members": [member]})
    assert (created.name, created.members[0].role) == ("bank", "editor")
    changed: dict[str, Any] = {"name": "bank", "description": "money"}
    updated = await world.call("UpdateProject", ROOT, project=changed, update_mask={"paths": ["description"]})
    assert (updated.description, len(updated.members)) == ("money", 1)
    assert await world.reason("UpdateProject", ROOT, project=changed, etag=created.etag) == "ETAG_MISMATCH"
    assert [each.name for each in (await world.call("ListProjects", ALICE)).projects] == ["shop"]
    assert await world.reason("CreateProject", ROOT, project={"name": "bank"}) == "RESOURCE_EXISTS"
    await world.call("DeleteProject", ROOT, name="bank")
    assert await world.reason("GetProject", ROOT, name="bank") == "RESOURCE_NOT_FOUND"


async def test_quota_limits_creates(world: ServiceWorld) -> None:
    await world.call("UpdateQuota", ROOT, quota={"project": "shop", "limits": {"vclusters": "1"}})
    await world.create()
    found = await world.call("GetQuota", project="shop")
    assert (found.limits["vclusters"], found.used["vclusters"]) == ("1", "1")
    assert await world.reason("CreateVCluster", name="green", namespace="shop", project="shop") == "QUOTA_EXCEEDED"
    assert (await world.call("ListQuotas", ROOT)).total_count == 1
    bad = {"project": "shop", "limits": {"vclusters": "many"}}
    assert await world.reason("UpdateQuota", ROOT, quota=bad) == "FIELD_INVALID"


async def test_snapshots_count_for_the_quota(world: ServiceWorld) -> None:
    await world.done((await world.create()).operation_id)
    taken = await world.call("SnapshotVCluster", name="blue", namespace="shop")
    await world.done(taken.operation_id)
    used = (await world.call("GetQuota", project="shop")).used
    assert used["snapshots"] == "1"
    assert int(used["snapshotBytes"]) > 0


async def test_keys_have_no_more_rights_than_their_maker(world: ServiceWorld) -> None:
    created = await world.call("CreateAccessKey", access_key={"description": "laptop"})
    parsed = parse_key(created.key)
    assert parsed is not None
    assert (parsed.id, created.access_key.principal) == (created.access_key.id, "alice")
    scope = {"project": "shop", "role": "viewer"}
    for caller, key, reason in (
        (ALICE, {"platform_admin": True}, "PERMISSION_DENIED"),
        (ALICE, {"principal": "root"}, "PERMISSION_DENIED"),
        (ALICE, {"scopes": [{"project": "other", "role": "viewer"}]}, "PERMISSION_DENIED"),
        (ALICE, {"scopes": [{"project": "shop", "role": "owner"}]}, "FIELD_INVALID"),
        (SCOPED, {}, "PERMISSION_DENIED"),
        (SCOPED, {"scopes": [{"project": "shop", "role": "operator"}]}, "PERMISSION_DENIED"),
        (SCOPED, {"scopes": [scope]}, ""),
        (ROOT, {"principal": "bob", "scopes": [scope]}, ""),
    ):
        assert await world.reason("CreateAccessKey", caller, access_key=key) == reason, key
    assert await world.reason("GetAccessKey", EVE, id=parsed.id) == "RESOURCE_NOT_FOUND"
    assert (await world.call("ListAccessKeys")).total_count == 2
    assert (await world.call("ListAccessKeys", ROOT)).total_count == 3
    await world.call("DeleteAccessKey", id=parsed.id)
    assert await world.reason("GetAccessKey", id=parsed.id) == "RESOURCE_NOT_FOUND"


async def test_key_does_not_outlive_that_of_its_maker(world: ServiceWorld) -> None:
    end = datetime(2099, 1, 1, tzinfo=UTC)
    made = await world.call("CreateAccessKey", access_key={"expire_time": end})
    caller = Caller("alice", f"key:{made.access_key.id}", roles=ALICE.roles)
    assert await world.reason("CreateAccessKey", caller, access_key={}) == "FIELD_INVALID"
    assert await world.reason("CreateAccessKey", caller, access_key={"expire_time": end}) == ""


async def test_audit_records(world: ServiceWorld, tmp_path: Path) -> None:
    now = datetime(2031, 5, 1, tzinfo=UTC)
    async with open_log(tmp_path / "audit" / "here", "here", lambda: now) as log:
        for number in range(5):
            log.append(AuditEvent(time=now, stage="received", id=str(number), project="shop", method="GetVCluster"))
        await log.wait_until_durable()
        page = await world.call("ListAuditRecords", project="shop", page_size=3)
        rest = await world.call("ListAuditRecords", project="shop", page_size=3, page_token=page.next_page_token)
        assert [each.id for each in [*page.records, *rest.records]] == ["4", "3", "2", "1", "0"]
        assert not rest.next_page_token
        exported = [each async for each in world.contract.stream(world.admitted("ExportAuditRecords", ROOT))]
        assert len(exported) == 6
        verified = await world.call("VerifyAuditRecords", ROOT)
        assert (verified.is_complete, verified.records) == (True, 6)


async def test_host_clusters_are_added_by_the_command(world: ServiceWorld) -> None:
    assert (await world.call("ListHostClusters", ROOT)).total_count == 0
    assert await world.reason("CreateHostCluster", ROOT, host_cluster={"name": "east"}) == "NOT_SUPPORTED"
