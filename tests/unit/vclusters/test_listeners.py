"""REST and gRPC: the same request gets the same answer, and nothing that a client sends is a server error."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tapestry.process.addresses import Address
from tapestry.vclusters.access.roles import Caller
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.errors import Violation, etag_mismatch, field_unsupported, quota_exceeded
from tapestry.vclusters.grpc import peer_address, serve_grpc
from tapestry.vclusters.openapi import openapi_document
from tapestry.vclusters.rest import serve_rest
from tapestry.vclusters.rest_routes import ROUTES, RPCS

from .gateway_world import FAST, GatewayWorld, gateway_world

LOOPBACK = Address("127.0.0.1", 0)


@dataclass
class Listeners:
    world: GatewayWorld
    http: aiohttp.ClientSession
    channel: grpc.aio.Channel
    base: str

    def headers(self, user: str = "alice") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.world.keys[user]}"} if user else {}

    async def rest(self, http_method: str, path: str, user: str = "alice", **options: Any) -> tuple[int, Any]:
        headers = {**self.headers(user), **options.pop("headers", {})}
        async with self.http.request(http_method, self.base + path, headers=headers, **options) as response:
            text = await response.text()
            return response.status, json.loads(text) if text else {}

    async def grpc(self, method: str, request: Message, user: str = "alice") -> tuple[int, Any]:
        """Call an RPC. Return the number of its status, and the response or the details of the error as JSON."""
        rpc = RPCS[method]
        metadata = [(key.lower(), value) for key, value in self.headers(user).items()]
        response_class = GetMessageClass(rpc.output_type)
        make = self.channel.unary_stream if rpc.server_streaming else self.channel.unary_unary
        call = make(
            f"/{rpc.containing_service.full_name}/{rpc.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response_class.FromString,
        )(request, metadata=metadata)
        try:
            if rpc.server_streaming:
                return 0, [json_format.MessageToDict(each) async for each in call]
            return 0, json_format.MessageToDict(await call)
        except grpc.aio.AioRpcError as error:
            (details,) = [each[1] for each in error.trailing_metadata() if each[0] == "grpc-status-details-bin"]
            status = json_format.MessageToDict(status_pb2.Status.FromString(details))
            return error.code().value[0], status["details"]


@asynccontextmanager
async def listeners(folder: Path) -> AsyncIterator[Listeners]:
    async with gateway_world(folder) as world:
        world.gateway.address_rate = FAST
        world.gateway.rates = dict.fromkeys(world.gateway.rates, FAST)
        async with (
            serve_rest(world.gateway, LOOPBACK, None) as rest,
            serve_grpc(world.gateway, LOOPBACK, None) as rpc,
            aiohttp.ClientSession() as http,
            grpc.aio.insecure_channel(str(rpc)) as channel,
        ):
            yield Listeners(world, http, channel, f"http://{rest}")


def example_request(route: Any) -> tuple[str, Message]:
    """Return a path and the message for it."""
    request = GetMessageClass(RPCS[route.method].input_type)()
    path = route.template
    for name in route.parameters:
        value = "shop" if "namespace" in name else "blue"
        path = path.replace(f"{{{name}}}", value)
        message = request
        *parents, last = name.split(".")
        for parent in parents:
            message = getattr(message, parent)
        setattr(message, last, value)
    return path, request


def answer_of(status: int, body: Any) -> Any:
    """Return what both protocols must have in common: the response, or the details of an error."""
    return body["error"]["details"] if status >= 400 else body


FIRST_ROUTES = {each.method: each for each in reversed(ROUTES)}


@pytest.mark.parametrize("user", ["root", "alice", "vera", ""])
async def test_both_protocols_answer_alike(tmp_path: Path, user: str) -> None:
    different = []
    async with listeners(tmp_path) as world:
        for route in FIRST_ROUTES.values():
            path, request = example_request(route)
            if RPCS[route.method].server_streaming:
                continue
            body = {"data": b"{}", "headers": {"Content-Type": "application/json"}} if route.body else {}
            status, answer = await world.rest(route.http_method, path, user, **body)
            code, expected = await world.grpc(route.method, request, user)
            if answer_of(status, answer) != expected or (status < 400) != (code == 0):
                different.append((route.method, status, answer, code, expected))
    assert not different


BROKEN_TIME = api.CreateVClusterRequest(name="blue", expire_time=Timestamp(seconds=2**40)).SerializeToString()
BROKEN_MASK = api.UpdateVClusterRequest(update_mask=FieldMask(paths=["notSnakeCase"])).SerializeToString()


@pytest.mark.parametrize(
    ("method", "content"),
    [
        ("GetVCluster", b"\xdd1\xc5"),
        ("WatchVCluster", b"\xdd1\xc5"),
        ("CreateVCluster", BROKEN_TIME),
        ("UpdateVCluster", BROKEN_MASK),
    ],
)
async def test_broken_message_is_an_error_of_the_client(tmp_path: Path, method: str, content: bytes) -> None:
    rpc = RPCS[method]
    async with listeners(tmp_path) as world:
        make = world.channel.unary_stream if rpc.server_streaming else world.channel.unary_unary
        call = make(f"/{rpc.containing_service.full_name}/{rpc.name}")(content)
        assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert rpc.input_type.full_name in await call.details()
    assert world.world.service.calls == []


async def test_errors_have_the_same_details(tmp_path: Path) -> None:
    errors = [
        quota_exceeded("shop", [Violation("vclusters", "2 of 1")]),
        field_unsupported(Violation("spec.replicas", "only 1")),
        etag_mismatch("blue", is_header=False),
    ]
    async with listeners(tmp_path) as world:
        for error in errors:
            world.world.service.error = error
            status, body = await world.rest("GET", "/v1/namespaces/shop/vclusters/blue")
            _, request = example_request(FIRST_ROUTES["GetVCluster"])
            code, details = await world.grpc("GetVCluster", request)
            assert (status, code) == (error.http_status, error.code.number)
            assert body["error"]["details"] == details == error.all_details


async def test_headers_of_rest(tmp_path: Path) -> None:
    async with listeners(tmp_path) as world:
        path = f"{world.base}/v1/namespaces/shop/vclusters"
        async with world.http.get(f"{path}/blue", headers=world.headers()) as response:
            assert response.headers["ETag"] == '"abc"'
            assert "RateLimit-Remaining" in response.headers
        async with world.http.get(f"{path}/blue", headers={**world.headers(), "If-None-Match": '"abc"'}) as response:
            assert response.status == 304
        headers = {**world.headers(), "Idempotency-Key": "r1", "If-Match": '"old"'}
        async with world.http.post(path, json={"name": "blue"}, headers=headers) as response:
            assert (response.status, response.headers["Location"]) == (202, "/v1/operations/op-1")
        call = world.world.service.calls[-1]
        assert (call.request.request_id, call.request.etag, call.incoming.is_etag_header) == ("r1", "old", True)
        async with world.http.get(f"{path}/blue") as response:
            assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        async with world.http.put(f"{path}/blue", headers=world.headers()) as response:
            assert response.status == 405
            assert "PATCH" in response.headers["Allow"]


async def test_rate_limit_says_when_to_retry(tmp_path: Path) -> None:
    async with listeners(tmp_path) as world:
        world.world.gateway.rates = dict.fromkeys(world.world.gateway.rates, world.world.gateway.address_rate)
        world.world.gateway.rates["expensive"] = type(FAST)(0.1, 1)
        path = f"{world.base}/v1/namespaces/shop/vclusters"
        async with world.http.post(path, json={"name": "a"}, headers=world.headers()) as response:
            assert response.status == 202
        async with world.http.post(path, json={"name": "b"}, headers=world.headers()) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "10")


@pytest.mark.parametrize("header", ["Origin", "Host"])
async def test_web_page_gets_no_rights_without_credentials(tmp_path: Path, header: str) -> None:
    async with listeners(tmp_path) as world:
        world.world.gateway.authenticator = replace(
            world.world.gateway.authenticator, anonymous=Caller("anonymous", "none", is_platform_admin=True)
        )
        assert (await world.rest("GET", "/v1/vclusters", ""))[0] == 200
        status, body = await world.rest("GET", "/v1/vclusters", "", headers={header: "evil.example"})
        assert (status, body["error"]["status"]) == (403, "PERMISSION_DENIED")


async def test_large_body_is_rejected(tmp_path: Path) -> None:
    async with listeners(tmp_path) as world:
        path = "/v1/namespaces/shop/vclusters"
        assert (await world.rest("POST", path, data=io.BytesIO(b"x" * (2 << 20))))[0] == 413

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(40):
                yield b"x" * (64 << 10)

        status, body = await world.rest("POST", path, data=chunks())
        assert (status, body["error"]["details"][0]["reason"]) == (413, "FIELD_INVALID")


@pytest.mark.parametrize(
    ("header", "status"), [("User-Agent", 400), ("Idempotency-Key", 400), ("If-Match", 400), ("Expect", 417)]
)
async def test_header_that_is_not_utf8_is_rejected(tmp_path: Path, header: str, status: int) -> None:
    async with listeners(tmp_path) as world:
        host, port = world.base.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = ["DELETE /v1/namespaces/shop/vclusters/blue HTTP/1.1", "Host: a", f"{header}: a\udc8d", "", ""]
        writer.write("\r\n".join(lines).encode(errors="surrogateescape"))
        assert (await reader.readline()).split()[1] == str(status).encode()
        writer.close()
        await writer.wait_closed()


async def test_request_waits_for_100_continue(tmp_path: Path) -> None:
    async with listeners(tmp_path) as world:
        path = "/v1/namespaces/shop/vclusters"
        status, body = await world.rest("POST", path, data=b'{"name": "b"}', headers={"Expect": "100-continue"})
        assert (status, body["operationId"]) == (202, "op-1")


async def test_body_in_no_encoding_is_rejected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with listeners(tmp_path) as world:
        for encoding in ("gzip", "deflate"):
            headers = {"Content-Encoding": encoding}
            status, body = await world.rest("GET", "/v1/hostclusters", data=b'{"vclusterName": "b"}', headers=headers)
            assert (status, body["error"]["details"][0]["reason"]) == (400, "FIELD_INVALID")
    assert [each for each in caplog.records if each.name == "aiohttp.server"] == []


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (
            "application/x-ndjson",
            '{"type":"WATCH_EVENT_TYPE_ADDED","vcluster":{"name":"one","resourceVersion":"one"}}\n',
        ),
        ("text/event-stream", 'id: one\ndata: {"type":"WATCH_EVENT_TYPE_ADDED","vcluster":{"name":"one","resourceV'),
    ],
)
async def test_watch_is_a_stream(tmp_path: Path, accept: str, expected: str) -> None:
    async with listeners(tmp_path) as world:
        world.world.service.error = etag_mismatch("blue", is_header=False)
        headers = {**world.headers(), "Accept": accept, "Last-Event-ID": "41"}
        async with world.http.get(f"{world.base}/v1/vclusters:watch", headers=headers) as response:
            text = await response.text()
        assert text.startswith(expected)
        assert text.count("WATCH_EVENT_TYPE_ADDED") == 2
        assert "ETAG_MISMATCH" in text
        assert world.world.service.calls[-1].request.resource_version == "41"
        code, details = await world.grpc("WatchVCluster", example_request(FIRST_ROUTES["WatchVCluster"])[1])
        assert (code, details[0]["reason"]) == (10, "ETAG_MISMATCH")


async def test_health_and_reflection(tmp_path: Path) -> None:
    async with listeners(tmp_path) as world:
        stub = health_pb2_grpc.HealthStub(world.channel)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(world.channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for response in stub.ServerReflectionInfo(iter([request])):
            names = {each.name for each in response.list_services_response.service}
        assert "vcluster.api.v1.VClusterService" in names


async def test_document_is_served_without_credentials(tmp_path: Path) -> None:
    async with listeners(tmp_path) as world:
        assert await world.rest("GET", "/openapi.json", "") == (200, openapi_document())


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.1:5000", "192.0.2.1"),
        ("ipv6:%5B2001:db8::1%5D:5000", "2001:db8::1"),
        ("unix:", "unix:"),
    ],
)
def test_peer_has_an_address(peer: str, address: str) -> None:
    assert peer_address(peer) == address
