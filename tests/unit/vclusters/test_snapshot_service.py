"""Snapshots as the service shows them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tapestry.apis.projects import QUOTAS
from tapestry.client.watch import wait_for
from tapestry.kube.objects import Object, value_at
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.errors import Code
from tapestry.vclusters.rest_routes import RPCS
from tapestry.vclusters.service import arguments_of

from .service_world import ROOT, ServiceWorld, service_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServiceWorld]:
    async with service_world(tmp_path) as each:
        yield each


async def test_snapshot_without_an_id_does_not_exist(world: ServiceWorld) -> None:
    for method in ("GetSnapshot", "DeleteSnapshot"):
        assert world.contract.project_of(method, GetMessageClass(RPCS[method].input_type)()) is None


async def test_quota_limits_snapshots_and_their_bytes(world: ServiceWorld) -> None:
    await world.create(wait_for_ready=True)
    named = {"name": "blue", "namespace": "shop"}

    async def limit(**limits: str) -> None:
        await world.call("UpdateQuota", ROOT, quota={"project": "shop", "limits": limits})

    await limit(snapshotBytes="1")
    too_large = await world.done((await world.call("SnapshotVCluster", **named)).operation_id)
    assert (too_large.error.code, too_large.error.reason) == (Code.RESOURCE_EXHAUSTED.number, "QUOTA_EXCEEDED")
    assert "snapshotBytes: requested" in too_large.error.message
    (failed,) = (await world.call("ListSnapshots", namespace="shop")).snapshots
    assert failed.status == api.SNAPSHOT_STATUS_FAILED
    assert not list((world.process.config.folder / "snapshots").glob("*"))
    assert (await world.call("GetVCluster", **named)).vcluster.status.phase == api.PHASE_RUNNING
    await limit(snapshots="1", snapshotBytes="1Gi")
    made = await world.done((await world.call("SnapshotVCluster", **named)).operation_id)
    assert not made.error.reason
    assert await world.reason("SnapshotVCluster", **named) == "QUOTA_EXCEEDED"
    assert await world.reason("SuspendVCluster", **named, create_snapshot=True) == "QUOTA_EXCEEDED"
    await world.call("DeleteSnapshot", id=made.snapshot_id)
    gone = {"snapshots": "0", "snapshotBytes": "0", "vclusters": "1"}
    await wait_for(world.client, QUOTAS, "shop", until=lambda quota: gone.items() <= used_of(quota).items(), timeout=30)
    assert gone.items() <= dict((await world.call("GetQuota", ROOT, project="shop")).used).items()


def used_of(quota: Object | None) -> dict[str, str]:
    used: dict[str, str] = value_at(quota, "status", "used", default={})
    return used


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        (api.SnapshotVClusterRequest(name="v"), {}),
        (api.SnapshotVClusterRequest(name="v", include_workloads=False), {"includeWorkloads": False}),
        (api.RestoreVClusterRequest(name="v", restore_workloads=False), {"restoreWorkloads": False}),
        (api.ResumeVClusterRequest(name="v", reconcile_workloads=False), {"reconcileWorkloads": False}),
    ],
)
def test_false_differs_from_what_is_not_set(message: Message, arguments: Object) -> None:
    assert arguments_of(message) == arguments
