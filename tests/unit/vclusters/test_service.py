"""The methods of the contract on a management API with the orchestrator."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf.message_factory import GetMessageClass

from tapestry.apis.vclusters import VCLUSTERS
from tapestry.kube.objects import is_deleting, name_of
from tapestry.kube.resources import NAMESPACES
from tapestry.planes.kubeconfigs import PlaneEndpoint
from tapestry.vclusters.access.roles import PROXY_METHOD
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.rest_routes import RPCS
from tapestry.vclusters.vcluster_kubeconfigs import kubeconfig

from .service_world import EVE, ROOT, ServiceWorld, service_world

NAMED = {"name": "blue", "namespace": "shop"}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServiceWorld]:
    async with service_world(tmp_path) as each:
        yield each


async def together(calls: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in calls]
    return [each.result() for each in tasks]


async def test_life_of_a_vcluster(world: ServiceWorld) -> None:
    created = await world.create(wait_for_ready=True)
    assert (created.vcluster.status.phase, created.vcluster.owner) == (api.PHASE_RUNNING, "alice")
    operation = await world.call("GetOperation", id=created.operation_id)
    assert (operation.verb, operation.done, operation.requested_by) == ("Create", True, "alice")
    for method, phase in (("SuspendVCluster", api.PHASE_SUSPENDED), ("ResumeVCluster", api.PHASE_RUNNING)):
        response = await world.call(method, **NAMED)
        ended = await world.done(response.operation_id)
        assert (ended.done, ended.phase_to, ended.error.message) == (True, phase, "")
    deleted = await world.call("DeleteVCluster", **NAMED, request_id="d1")
    assert (await world.done(deleted.operation_id)).done
    assert await world.reason("GetVCluster", **NAMED) == "RESOURCE_NOT_FOUND"
    again = await world.call("DeleteVCluster", **NAMED, request_id="d1")
    assert again.operation_id == deleted.operation_id
    found = await world.call("ListOperations", namespace="shop")
    assert [each.verb for each in found.operations][::-1] == ["Create", "Suspend", "Resume", "Delete"]


async def test_every_method_has_a_project(world: ServiceWorld) -> None:
    for method, rpc in RPCS.items():
        assert world.contract.project_of(method, GetMessageClass(rpc.input_type)()) in (None, "", "default"), method
    assert world.contract.project_of(PROXY_METHOD, api.GetVClusterRequest(id="none")) is None


async def test_repeated_requests_have_one_effect(world: ServiceWorld) -> None:
    responses = await together(world.create(request_id="r1") for _ in range(20))
    assert len({each.operation_id for each in responses}) == len({each.vcluster.id for each in responses}) == 1
    assert await world.reason("CreateVCluster", **NAMED, project="shop", request_id="r2") == "RESOURCE_EXISTS"
    fields: dict[str, Any] = {**NAMED, "project": "shop", "labels": {"a": "b"}, "request_id": "r1"}
    assert await world.reason("CreateVCluster", **fields) == "REQUEST_ID_REUSED"
    await world.done(responses[0].operation_id)
    scale: dict[str, Any] = {**NAMED, "resources": {"cpu_limit": "2"}, "request_id": "s1"}
    scaled = await together(world.call("ScaleVCluster", **scale) for _ in range(10))
    assert len({each.operation_id for each in scaled}) == 1
    await world.done(scaled[0].operation_id)
    assert (await world.call("ScaleVCluster", **scale)).operation_id == scaled[0].operation_id
    assert (await world.call("GetVCluster", **NAMED)).vcluster.spec.resources.cpu_limit == "2"


async def test_update_by_mask_and_etag(world: ServiceWorld) -> None:
    created = await world.create(wait_for_ready=True, labels={"team": "a"})
    mask = {"paths": ["labels", "deletion_protection"]}
    update: dict[str, Any] = {**NAMED, "update_mask": mask, "labels": {"team": "b"}, "deletion_protection": True}
    etag = (await world.call("GetVCluster", **NAMED)).vcluster.etag
    assert await world.reason("UpdateVCluster", **update, etag="old") == "ETAG_MISMATCH"
    dry = await world.call("UpdateVCluster", **update, etag=etag, validate_only=True)
    assert dict(dry.vcluster.labels) == {"team": "b"}
    updated = await world.call("UpdateVCluster", **update, etag=etag)
    assert (dict(updated.vcluster.labels), updated.operation_id) == ({"team": "b"}, "")
    assert updated.vcluster.id == created.vcluster.id
    assert await world.reason("DeleteVCluster", **NAMED) == "DELETION_PROTECTED"
    assert (
        await world.reason("UpdateVCluster", **{**update, "update_mask": {"paths": ["spec.none"]}}) == "FIELD_INVALID"
    )
    spec = {"sync": {"sync_nodes": True}}
    response = await world.call("UpdateVCluster", **NAMED, spec=spec, update_mask={"paths": ["spec.sync"]})
    assert (await world.done(response.operation_id)).verb == "Update"
    assert (await world.call("GetVCluster", **NAMED)).vcluster.spec.sync.sync_nodes


async def test_namespace_of_another_project_is_hidden(world: ServiceWorld) -> None:
    await world.create()
    request = world.admitted("CreateVCluster", EVE, name="x", namespace="shop", project="other").request
    assert world.contract.project_of("CreateVCluster", request) is None
    request = world.admitted("GetVCluster", EVE, name="none", namespace="shop").request
    assert world.contract.project_of("GetVCluster", request) is None


async def test_rejected_create_leaves_nothing(world: ServiceWorld) -> None:
    namespaces = {name_of(each) for each in await world.client.list(NAMESPACES)}
    checked = await world.create(namespace="new", validate_only=True)
    assert (checked.vcluster.owner, checked.vcluster.namespace, checked.operation_id) == ("alice", "new", "")
    for fields, reason in (
        ({"namespace": "new", "spec": {"replicas": 3}}, "FIELD_UNSUPPORTED"),
        ({"namespace": "new", "spec": {"network": {"pod_cidr": "none"}}}, "FIELD_INVALID"),
        ({"namespace": "new", "name": "X_"}, "FIELD_INVALID"),
        ({"namespace": "New_"}, "FIELD_INVALID"),
        ({"namespace": "tapestry-new"}, "FIELD_INVALID"),
    ):
        for is_dry_run in (True, False):
            request = {"name": "blue", "project": "shop", "validate_only": is_dry_run, **fields}
            assert await world.reason("CreateVCluster", **request) == reason, request
    assert {name_of(each) for each in await world.client.list(NAMESPACES)} == namespaces
    await world.call("UpdateQuota", ROOT, quota={"project": "shop", "limits": {"vclusters": "1"}})
    reasons = await together(
        world.reason("CreateVCluster", name="blue", namespace=f"new{number}", project="shop") for number in range(8)
    )
    assert sorted(reasons) == ["", *["QUOTA_EXCEEDED"] * 7]
    left = {name_of(each) for each in await world.client.list(NAMESPACES) if not is_deleting(each)} - namespaces
    assert left == {f"new{reasons.index('')}"}


async def test_cancel_and_invalid_requests(world: ServiceWorld) -> None:
    created = await world.create(spec={"replicas": 1, "storage": {}})
    await world.call("CancelOperation", id=created.operation_id)
    ended = await world.done(created.operation_id)
    assert ended.done
    assert (await world.call("CancelOperation", id=created.operation_id)).done
    assert await world.reason("CreateVCluster", name="x", namespace="shop", spec={"replicas": 3}) == "FIELD_UNSUPPORTED"
    assert await world.reason("CreateVCluster", name="X_", namespace="shop") == "FIELD_INVALID"
    assert await world.reason("CreateVCluster", name="", namespace="shop") == "FIELD_INVALID"
    assert len(await world.client.list(VCLUSTERS)) == 1


async def test_delete_repeated_until_its_end_is_one_operation(world: ServiceWorld) -> None:
    await world.create(wait_for_ready=True)
    ids = set()
    while world.contract.vclusters.objects.get(VCLUSTERS, "shop", "blue") is not None:
        ids.add((await world.call("DeleteVCluster", **NAMED, request_id="once")).operation_id)
        await asyncio.sleep(0)
    assert len(ids) == 1


def test_kubeconfig_has_the_address_of_the_ingress() -> None:
    endpoint = PlaneEndpoint("https://192.0.2.1:7443", "ca", "blue.planes")
    ingress = {"enabled": True, "hostname": "blue.api.example.com"}
    cases = (({}, endpoint.server, "blue.planes"), ({"ingress": ingress}, "https://blue.api.example.com", None))
    for spec, server, name in cases:
        issued = kubeconfig({"metadata": {"name": "blue"}, "spec": spec}, endpoint, {"token": "t"}, None)
        [cluster] = [each["cluster"] for each in yaml.safe_load(issued.text)["clusters"]]
        assert (issued.server, cluster["server"], cluster.get("tls-server-name")) == (server, server, name)
