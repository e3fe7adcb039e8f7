"""The methods of the contract on a management API with the orchestrator."""

import asyncio
import base64
from collections.abc import AsyncIterator, Coroutine, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf.message_factory import GetMessageClass

from tapestry.apis.operations import OPERATIONS
from tapestry.apis.vclusters import VCLUSTERS, OperationRequest, Phase, Verb
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import is_deleting, name_of, object_named
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES
from tapestry.kube.schemas import to_unstructured
from tapestry.vclusters.access.roles import Caller, Role
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.errors import ServiceError
from tapestry.vclusters.operations import new_journal, operation_object
from tapestry.vclusters.page_tokens import PageTokens
from tapestry.vclusters.rest_routes import RPCS
from tapestry.vclusters.serving import new_contract

from .management_world import management_world
from .service_world import ALICE, EVE, ROOT, VERA, ServiceWorld, service_world

OPERATOR = Caller("olga", "key:o", roles={"shop": Role.OPERATOR})
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


async def test_operation_in_a_journal_has_not_ended(tmp_path: Path) -> None:
    async with management_world(tmp_path) as management:
        contract = new_contract(management.process, PageTokens(b"key"), tmp_path / "audit", is_compatible=False)
        world = ServiceWorld(management.process, contract, management.orchestrator)
        id = (await world.create()).operation_id
        vcluster = await world.client.get(VCLUSTERS, "blue", "shop")
        request = OperationRequest(id, Verb.CREATE, "alice")
        journal = new_journal(request, Phase.PENDING, ["Place"], datetime.now(UTC))
        vcluster = await management.set_status(vcluster, Phase.CREATING, journal=to_unstructured(journal))
        record = operation_object(vcluster, journal, Phase.RUNNING, None, datetime.now(UTC))
        created = await world.client.create(OPERATIONS, {**record, "status": {}})
        await world.client.patch(OPERATIONS, created, {"status": record["status"]}, subresource="status")
        waiting = asyncio.create_task(world.done(id))
        assert not (await world.call("GetOperation", id=id)).done
        assert [each.done for each in (await world.call("ListOperations")).operations] == [False]
        assert await world.reason("DeleteOperation", id=id) == "OPERATION_RUNNING"
        assert not waiting.done()
        await management.set_status(vcluster, Phase.RUNNING, journal=None, lastOperation=id)
        assert (await waiting).done
        assert (await world.call("GetVCluster", **NAMED)).vcluster.status.phase == api.PHASE_RUNNING
        assert [each.done for each in (await world.call("ListOperations")).operations] == [True]


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


async def test_pages_are_of_one_revision(world: ServiceWorld) -> None:
    await together(world.create(f"vc{number}") for number in range(5))
    first = await world.call("ListVClusters", project="shop", page_size=2, order_by="-name")
    await world.create("vc9")
    names, token = [each.name for each in first.vclusters], first.next_page_token
    while token:
        page = await world.call("ListVClusters", project="shop", page_size=2, order_by="-name", page_token=token)
        names, token = [*names, *(each.name for each in page.vclusters)], page.next_page_token
        assert page.total_count == 5
    assert names == ["vc4", "vc3", "vc2", "vc1", "vc0"]
    assert await world.reason("ListVClusters", page_token=first.next_page_token) == "FIELD_INVALID"
    assert await world.reason("ListVClusters", order_by="size") == "FIELD_INVALID"
    assert (await world.call("ListVClusters", VERA)).total_count == 6
    assert (await world.call("ListVClusters", EVE)).total_count == 0


async def test_filters_of_a_list(world: ServiceWorld) -> None:
    await world.create("a", labels={"team": "a"}, wait_for_ready=True)
    await world.create("b", ROOT)
    for filters, names in (
        ({"label_selector": "team=a"}, ["a"]),
        ({"phases": [api.PHASE_RUNNING], "owner": "alice"}, ["a"]),
        ({"owner": "root"}, ["b"]),
        ({"namespace": "none"}, []),
    ):
        found = await world.call("ListVClusters", **filters)
        assert [each.name for each in found.vclusters] == names, filters
    assert await world.reason("ListVClusters", label_selector="a in (") == "FIELD_INVALID"


async def test_watch_resumes(world: ServiceWorld) -> None:
    created = await world.create(wait_for_ready=True)
    events = await world.watched(1)
    assert (events[0].type, events[0].vcluster.name) == (1, "blue")
    version = events[0].vcluster.resource_version
    deleted = await world.call("DeleteVCluster", **NAMED)
    await world.done(deleted.operation_id)
    types = []
    while 3 not in types:
        (event,) = await world.watched(1, resource_version=version)
        types.append(event.type)
        assert int(event.vcluster.resource_version) > int(version)
        version = event.vcluster.resource_version
    assert (set(types), event.vcluster.id) == ({2, 3}, created.vcluster.id)
    with pytest.raises(ServiceError, match="resourceVersion"):
        await world.watched(1, resource_version="99999999")


async def test_kubeconfigs_have_the_role_of_the_caller(world: ServiceWorld, tmp_path: Path) -> None:
    await world.create(wait_for_ready=True)
    for caller in (ALICE, OPERATOR):
        response = await world.call("GetVClusterKubeconfig", caller, **NAMED)
        text = base64.b64decode(response.kubeconfig).decode()
        file = tmp_path / f"{caller.user}.yaml"
        file.write_text(text)
        assert yaml.safe_load(text)["kind"] == "Config"
        async with Client(HttpTransport(load_access([file], environ={}))) as plane:
            content = {**object_named("c", "default"), "data": {}}
            if caller is ALICE:
                assert await plane.list(NAMESPACES)
                await plane.create(CONFIGMAPS, content)
            else:
                assert await plane.get(CONFIGMAPS, "c", "default")
                with pytest.raises(Forbidden, match="olga"):
                    await plane.create(CONFIGMAPS, content)
    assert await world.reason("GetVClusterKubeconfig", VERA, **NAMED) == "PERMISSION_DENIED"
    assert await world.reason("GetVClusterKubeconfig", **NAMED, validity_hours=-1) == "FIELD_INVALID"
    found = await world.call("GetVCluster", **NAMED, include_kubeconfig=True)
    assert found.vcluster.status.kubeconfig
    assert not (await world.call("GetVCluster", **NAMED)).vcluster.status.kubeconfig


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


async def test_snapshot_without_an_id_does_not_exist(world: ServiceWorld) -> None:
    for method in ("GetSnapshot", "DeleteSnapshot"):
        assert world.contract.project_of(method, GetMessageClass(RPCS[method].input_type)()) is None
