"""Repeated and malformed requests to the service of virtual clusters, and the same ones by REST and by gRPC."""

import asyncio
import json
import ssl
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2

from tapestry.apis.operations import OPERATIONS
from tapestry.apis.planes import PLANES
from tapestry.apis.vclusters import VCLUSTERS
from tapestry.vclusters.rest_routes import ROUTES, RPCS, Route

from .plane_clients import client_of, together
from .vcluster_clients import COLLECTION, Clients, UnlimitedPlanesProcess, service
from .vcluster_mutations import random_http, random_rpc

DETAILS = "grpc-status-details-bin"
DETAIL_TYPES = error_details_pb2.DESCRIPTOR.message_types_by_name
"""Messages of details, which `json_format` finds by name because they are imported."""
ALLOWED_CODES = frozenset(grpc.StatusCode) - {
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DATA_LOSS,
}
ANSWER_SECONDS = 20.0
WORKERS = 64
FIRST_ROUTES = {each.method: each for each in reversed(ROUTES)}


# -- repeated requests


async def check_repeated_creates(world: Clients, count: int) -> None:
    fields = {"name": "blue", "requestId": "again", "waitForReady": True}

    async def create(number: int) -> tuple[str, str]:
        if number % 2:
            answer = await world.rest("POST", COLLECTION, json=fields)
        else:
            answer = await world.rpc(
                "CreateVCluster", name="blue", namespace="shop", request_id="again", wait_for_ready=True
            )
        return answer["operationId"], answer["vcluster"]["id"]

    answers = await together(create(number) for number in range(count))
    assert len(set(answers)) == 1, Counter(answers)
    async with client_of(world.process.kubeconfig) as management:
        for resource in (VCLUSTERS, PLANES, OPERATIONS):
            assert len(await management.list(resource)) == 1, resource.kind
    changed = {**fields, "labels": {"team": "web"}}
    status, answer = await rest(world, "POST", COLLECTION, changed)
    assert (status, reason_of(answer)) == (400, "REQUEST_ID_REUSED")
    request = GetMessageClass(RPCS["CreateVCluster"].input_type)()
    json_format.ParseDict({**changed, "namespace": "shop"}, request)
    _, details = await rpc(world, "CreateVCluster", request)
    assert details[0]["reason"] == "REQUEST_ID_REUSED"


def reason_of(answer: Any) -> Any:
    return answer["error"]["details"][0]["reason"]


@pytest.mark.timeout(120)
async def test_repeated_creates_have_one_effect(tmp_path: Path) -> None:
    async with service(tmp_path, UnlimitedPlanesProcess) as world:
        await check_repeated_creates(world, 100)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_thousand_repeated_creates_have_one_effect(tmp_path: Path) -> None:
    async with service(tmp_path, UnlimitedPlanesProcess) as world:
        await check_repeated_creates(world, 1000)


# -- malformed requests


async def send_http(world: Clients, context: ssl.SSLContext, content: bytes) -> int:
    """Send bytes to the REST listener, and return the status of the answer; 0 without one."""
    host, port = world.base.removeprefix("https://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        writer.write(content)
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(2):
                line = await reader.readline()
            return int(line.split()[1]) if line.startswith(b"HTTP/") else 0
        return 0
    finally:
        writer.transport.abort()


async def send_rpc(world: Clients, path: str, content: bytes) -> grpc.StatusCode:
    """Call an RPC with bytes, and return its code. A stream is over with its first message."""
    rpc = RPCS.get(path.rpartition("/")[2])
    options = {"metadata": world.metadata, "timeout": ANSWER_SECONDS}
    try:
        if rpc is not None and rpc.server_streaming:
            call = world.channel.unary_stream(path)(content, **{**options, "timeout": 1.0})
            await call.read()
            call.cancel()
        else:
            await world.channel.unary_unary(path)(content, **options)
    except grpc.aio.AioRpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


async def check_malformed_requests(world: Clients, count: int, seed: int) -> Counter[object]:
    """Send so many requests, of which most are malformed, and return how often each code was the answer."""
    random = Random(seed)
    context = ssl.create_default_context(cafile=str(world.process.folder / "pki" / "ca.crt"))
    await world.rest("PATCH", "/v1/projects/default/quota", json={"limits": {"vclusters": "3"}})
    numbers = iter(range(count))
    wrong: list[tuple[object, bytes]] = []
    answers: Counter[object] = Counter()

    async def work() -> None:
        for number in numbers:
            if number % 2:
                content = random_http(random, world.metadata[0][1])
                status = await send_http(world, context, content)
                answers[status] += 1
                if status >= 500 and status not in (501, 503):
                    wrong.append((status, content))
            else:
                path, content = random_rpc(random)
                code = await send_rpc(world, path, content)
                answers[code] += 1
                if code not in ALLOWED_CODES:
                    wrong.append((code, path.encode() + content))

    await together(work() for _ in range(WORKERS))
    log = world.process.log.read_text()
    traces = [line for line in log.splitlines() if "Traceback" in line or '"level":"error"' in line]
    assert not wrong, (seed, answers, wrong[:5])
    assert not traces, (seed, answers, traces[:3])
    assert answers[200] > 0, answers
    assert answers[400] > 0, answers
    assert answers[grpc.StatusCode.INVALID_ARGUMENT] > 0, answers
    await world.rest("GET", "/v1/vclusters")
    await world.rpc("ListVClusters")
    return answers


@pytest.mark.timeout(120)
async def test_malformed_requests(tmp_path: Path) -> None:
    async with service(tmp_path, UnlimitedPlanesProcess) as world:
        await check_malformed_requests(world, 5000, seed=20)


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(10))
async def test_many_malformed_requests(tmp_path: Path, seed: int) -> None:
    async with service(tmp_path, UnlimitedPlanesProcess) as world:
        await check_malformed_requests(world, 10_000, seed)


# -- the same requests by both protocols


async def rest(world: Clients, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with world.http.request(method, world.base + path, json=body) as response:
        text = await response.text()
        return response.status, json.loads(text) if text else {}


async def rpc(world: Clients, method: str, request: Message) -> tuple[int, Any]:
    """Return the number of the code, and the response or the details of the error."""
    descriptor = RPCS[method]
    call = world.channel.unary_unary(
        f"/{descriptor.containing_service.full_name}/{descriptor.name}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=GetMessageClass(descriptor.output_type).FromString,
    )
    try:
        return 0, json_format.MessageToDict(await call(request, metadata=world.metadata))
    except grpc.aio.AioRpcError as error:
        (details,) = [each[1] for each in error.trailing_metadata() or () if each[0] == DETAILS]
        return error.code().value[0], json_format.MessageToDict(status_pb2.Status.FromString(details))["details"]


TARGETS = {
    "namespace": "shop",
    "vcluster_name": "blue",
    "project": "default",
    "quota.project": "default",
    "project.name": "default",
    "host_cluster.name": "east",
}
"""Values of parameters of paths, except names and ids, which follow from the method."""
FIELDS: dict[str, dict[str, Any]] = {
    "CreateVCluster": {"name": "green", "spec": {"resources": {"cpuLimit": "1"}}},
    "UpdateVCluster": {"labels": {"team": "web"}},
    "ScaleVCluster": {"resources": {"cpuLimit": "2"}},
    "SuspendVCluster": {"createSnapshot": True},
    "CreateProject": {"project": {"name": "green"}},
    "UpdateProject": {"project": {"displayName": "all"}},
    "UpdateQuota": {"quota": {"limits": {"vclusters": "9"}}},
    "CreateHostCluster": {"hostCluster": {"name": "east"}},
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


def stable(value: Any, volatile: frozenset[str]) -> Any:
    """Return an answer without the fields that differ each time."""
    if isinstance(value, dict):
        return {key: stable(each, volatile) for key, each in value.items() if key not in volatile}
    return [stable(each, volatile) for each in value] if isinstance(value, list) else value


def named_target(method: str, parameter: str, operation: str, *, is_missing: bool) -> str:
    if is_missing:
        return "missing"
    if parameter == "id" and method.endswith("Operation"):
        return operation
    if parameter == "name" and method.endswith("Project"):
        return "default"
    return TARGETS.get(parameter, "blue")


def same_request(route: Route, operation: str, end: str, *, is_missing: bool) -> tuple[str, Any, Message]:
    """Return the path and the body of a request by REST, and the message of the same request by gRPC."""
    request = GetMessageClass(RPCS[route.method].input_type)()
    fields = json.loads(json.dumps(FIELDS.get(route.method, {})))
    if "end_time" in request.DESCRIPTOR.fields_by_name:
        fields["endTime"] = end  # each request adds records
    query = {} if route.body else dict(fields)
    is_write = "validate_only" in request.DESCRIPTOR.fields_by_name
    if is_write and route.body == "*":
        fields["validateOnly"] = True
    elif is_write:
        query["validateOnly"] = "true"
    path = route.template + (f"?{urlencode(query)}" if query else "")
    json_format.ParseDict({**fields, **({"validateOnly": True} if is_write else {})}, request)
    for parameter in route.parameters:
        text = named_target(route.method, parameter, operation, is_missing=is_missing)
        path = path.replace(f"{{{parameter}}}", text)
        *parents, last = parameter.split(".")
        target: Any = request
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, last, text)
    field = request.DESCRIPTOR.fields_by_name.get(route.body)
    body = fields if field is None else fields.get(field.json_name, {})
    return path, body if route.body else None, request


@pytest.mark.timeout(120)
async def test_both_protocols_answer_alike(tmp_path: Path) -> None:
    different = []
    codes: Counter[int] = Counter()
    async with service(tmp_path, UnlimitedPlanesProcess) as world:
        created = await world.rest("POST", COLLECTION, json={"name": "blue", "waitForReady": True})
        end = datetime.now(UTC).isoformat()
        for is_missing in (False, True):
            for route in FIRST_ROUTES.values():
                if RPCS[route.method].server_streaming:
                    continue
                path, body, request = same_request(route, created["operationId"], end, is_missing=is_missing)
                status, answer = await rest(world, route.http_method, path, body)
                code, expected = await rpc(world, route.method, request)
                found = answer["error"]["details"] if status >= 400 else answer
                codes[code] += 1
                volatile = VOLATILE | COUNTS.get(route.method, frozenset())
                if stable(found, volatile) != stable(expected, volatile) or (status < 400) != (code == 0):
                    different.append((route.method, is_missing, status, found, code, expected))
    assert not different
    assert codes[0] > len(FIRST_ROUTES) / 2, codes
