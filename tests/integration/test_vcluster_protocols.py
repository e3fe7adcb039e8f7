"""The service of virtual clusters gives the same answer to the same request by REST and by gRPC."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.kube.objects import object_named
from tapestry.vclusters.rest_routes import ROUTES, RPCS, Route

from .plane_clients import client_of
from .vcluster_clients import COLLECTION, Clients, UnlimitedPlanesProcess, rest_answer, rpc_answer, service

FIELDS: dict[str, dict[str, Any]] = {
    "CreateVCluster": {"name": "green", "spec": {"resources": {"cpuLimit": "1"}}},
    "UpdateVCluster": {"labels": {"team": "web"}},
    "ScaleVCluster": {"resources": {"cpuLimit": "2"}},
    "SuspendVCluster": {"createSnapshot": True},
    "SnapshotVCluster": {"snapshotName": "one"},
    "CreateProject": {"project": {"name": "green"}},
    "UpdateProject": {"project": {"displayName": "all"}},
    "UpdateQuota": {"quota": {"limits": {"vclusters": "9"}}},
    "CreateHostCluster": {"hostCluster": {"name": "west"}},
    "CreateAccessKey": {"accessKey": {"description": "one"}},
    "WaitOperation": {"timeoutSeconds": 1},
    "ListAuditRecords": {"pageSize": 1},
}
"""Fields of requests beside those in their paths, which are in the body, or in the query without one."""
VOLATILE = frozenset(
    {
        *("operationId", "id", "key", "secret", "kubeconfig", "createTime", "updateTime", "deleteTime", "expiresAt"),
        *("resourceVersion", "lastTransitionTime", "lastUsedTime", "uid", "etag", "currentOperation"),
    }
)
"""Fields that differ between two answers to the same request."""
COUNTS = {"VerifyAuditRecords": frozenset({"records"})}
"""Fields that count earlier requests, by method."""
REJECTED = {
    "CreateVCluster": "NO_HOST_CAPACITY",
    "ResumeVCluster": "PHASE_NOT_ALLOWED",
    "DeleteProject": "PROJECT_NOT_EMPTY",
    "CreateHostCluster": "NOT_SUPPORTED",
}
"""Requests that the objects do not allow, with the reason."""


def stable(value: Any, volatile: frozenset[str]) -> Any:
    """Return an answer without the fields that differ each time."""
    if isinstance(value, dict):
        return {key: stable(each, volatile) for key, each in value.items() if key not in volatile}
    return [stable(each, volatile) for each in value] if isinstance(value, list) else value


async def targets(world: Clients) -> dict[str, str]:
    """Create an object of each kind. Return the values of parameters of paths: by their name, or by kind and name."""
    created = await world.rest("POST", COLLECTION, json={"name": "blue", "waitForReady": True})
    snapshot = await world.rest("POST", f"{COLLECTION}/blue:snapshot")
    await world.rest("POST", f"/v1/operations/{snapshot['operationId']}:wait")
    async with client_of(world.process.kubeconfig) as management:
        await management.create(
            HOST_CLUSTERS,
            object_named("east") | {"spec": {"secretRef": {"name": "east", "namespace": "tapestry-hosts"}}},
        )
    key = await world.rest("POST", "/v1/accesskeys", json={"description": "of the test"})
    return {
        "namespace": "shop",
        "name": "blue",
        "vcluster_name": "blue",
        "project": "default",
        "quota.project": "default",
        "project.name": "default",
        "host_cluster.name": "east",
        "HostCluster name": "east",
        "Project name": "default",
        "VCluster id": created["vcluster"]["id"],
        "Operation id": created["operationId"],
        "Snapshot id": snapshot["snapshot"]["id"],
        "AccessKey id": key["accessKey"]["id"],
        "resource_version": created["vcluster"]["resourceVersion"],
        "snapshot_id": snapshot["snapshot"]["id"],
    }


def target_of(method: str, parameter: str, known: dict[str, str]) -> str:
    kinds = ("HostCluster", "Project", "VCluster", "Operation", "Snapshot", "AccessKey")
    kind = next((each for each in kinds if method.endswith(each)), "")
    return known.get(f"{kind} {parameter}") or known[parameter]


def same_request(
    route: Route, known: dict[str, str], added: dict[str, str], *, is_missing: bool = False
) -> tuple[str, Any, Message]:
    """Return the path and the body of a request by REST, and the message of the same request by gRPC.

    `added` are fields of the requests that have them.
    """
    request = GetMessageClass(RPCS[route.method].input_type)()
    names = {each.json_name: each for each in request.DESCRIPTOR.fields}
    fields = FIELDS.get(route.method, {}) | {name: text for name, text in added.items() if name in names}
    query = {} if route.body else dict(fields)
    is_write = "validateOnly" in names
    whole = fields | ({"validateOnly": True} if is_write else {})
    if is_write and route.body != "*":
        query["validateOnly"] = "true"
    path = route.template + (f"?{urlencode(query)}" if query else "")
    json_format.ParseDict(whole, request)
    for parameter in route.parameters:
        text = "missing" if is_missing else target_of(route.method, parameter, known)
        path = path.replace(f"{{{parameter}}}", text)
        *parents, last = parameter.split(".")
        target: Any = request
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, last, text)
    field = request.DESCRIPTOR.fields_by_name.get(route.body)
    body = whole if field is None else fields.get(field.json_name, {})
    return path, body if route.body else None, request


@pytest.mark.timeout(120)
async def test_both_protocols_answer_alike(tmp_path: Path) -> None:
    different, rejected = [], {}
    async with service(tmp_path, UnlimitedPlanesProcess) as world:
        known = await targets(world)
        added = {
            "endTime": datetime.now(UTC).isoformat(),
            "snapshotId": known["snapshot_id"],
        }  # each request is audited
        for is_missing in (False, True):
            for route in ROUTES:
                if RPCS[route.method].server_streaming:
                    continue
                path, body, request = same_request(route, known, added, is_missing=is_missing)
                status, answer = await rest_answer(world, route.http_method, path, body)
                code, expected = await rpc_answer(world, route.method, request)
                found = answer["error"]["details"] if status >= 400 else answer
                if code and not is_missing:
                    rejected[route.method] = expected[0]["reason"]
                volatile = VOLATILE | COUNTS.get(route.method, frozenset())
                if stable(found, volatile) != stable(expected, volatile) or (status < 400) != (code == 0):
                    different.append((route, is_missing, status, found, code, expected))
    assert not different
    assert rejected == REJECTED


# -- streams


async def rest_messages(world: Clients, path: str) -> AsyncIterator[Any]:
    async with world.http.get(world.base + path) as response:
        async for line in response.content:
            if line.strip():
                yield json.loads(line)


async def rpc_messages(world: Clients, method: str, request: Message) -> AsyncIterator[Any]:
    rpc = RPCS[method]
    call = world.channel.unary_stream(
        f"/{rpc.containing_service.full_name}/{rpc.name}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=GetMessageClass(rpc.output_type).FromString,
    )(request, metadata=world.metadata)
    async for message in call:
        yield json_format.MessageToDict(message)


async def until_deletion(messages: AsyncIterator[Any]) -> list[Any]:
    """Return the messages of a stream until its end, or until the virtual cluster is gone."""
    found = []
    async for each in messages:
        found.append(each)
        if each.get("type") == "WATCH_EVENT_TYPE_DELETED":
            break
    return found


@pytest.mark.timeout(120)
async def test_both_protocols_stream_alike(tmp_path: Path) -> None:
    async with service(tmp_path, UnlimitedPlanesProcess) as world:
        known = await targets(world)
        deleted = await world.rest("DELETE", f"{COLLECTION}/blue")
        await world.rest("POST", f"/v1/operations/{deleted['operationId']}:wait")
        added = {"endTime": datetime.now(UTC).isoformat(), "resourceVersion": known["resource_version"]}
        lengths = {}
        for route in ROUTES:
            if not RPCS[route.method].server_streaming:
                continue
            path, _, request = same_request(route, known, added)
            by_rest = await until_deletion(rest_messages(world, path))
            by_rpc = await until_deletion(rpc_messages(world, route.method, request))
            assert by_rest == by_rpc, route
            lengths[route.template] = len(by_rest)
        assert len(lengths) == 4
        assert min(lengths.values()) >= 5, lengths
