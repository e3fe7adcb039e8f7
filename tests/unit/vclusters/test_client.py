"""The client of the lifecycle API, against real listeners."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from tapestry.client.access import Access
from tapestry.client.credentials import Credentials, StaticAuthorization, bearer_header
from tapestry.client.http_transport import HttpTransport
from tapestry.client.transport import Response
from tapestry.kube.errors import TransportError
from tapestry.process.addresses import Address
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.client import ServiceClient, error_of, http_request
from tapestry.vclusters.errors import Code, ServiceError, quota_exceeded
from tapestry.vclusters.rest import serve_rest
from tapestry.vclusters.rest_routes import RPCS, Match, match_route
from tapestry.vclusters.transcoding import request_message

from .gateway_world import GatewayWorld
from .memory_service import MemoryService, served

World = tuple[ServiceClient, MemoryService, GatewayWorld]


def client_of(url: str, world: GatewayWorld, user: str = "root") -> ServiceClient:
    credentials = Credentials(StaticAuthorization(bearer_header(world.keys[user])))
    return ServiceClient(HttpTransport(Access(url, credentials)))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with served(tmp_path) as (gateway, service, url), client_of(url, gateway) as client:
        yield client, service, gateway


def example_fields(method: str) -> dict[str, Any]:
    """Return values for all plain fields of a request, and the names in its parts."""
    fields: dict[str, Any] = {}
    for each in RPCS[method].input_type.fields:
        if each.message_type is not None:
            names = {"name", "project", "id"} & set(each.message_type.fields_by_name)
            if names and not each.is_repeated:
                fields[each.name] = {sorted(names)[0]: "blue"}
        elif each.is_repeated or each.enum_type is not None:
            continue
        else:
            plain = {each.CPPTYPE_BOOL: True, each.CPPTYPE_STRING: "blue"}
            fields[each.name] = plain.get(each.cpp_type, 7) if each.type != each.TYPE_BYTES else "Ymx1ZQ=="
    return fields


@pytest.mark.parametrize("method", RPCS)
def test_server_reads_what_the_client_writes(method: str) -> None:
    fields = example_fields(method)
    expected = json_format.ParseDict(fields, GetMessageClass(RPCS[method].input_type)())
    request = http_request(method, fields)
    match = match_route(request.method, request.path)
    assert isinstance(match, Match)
    assert request_message(match, request.query.items(), request.body or b"") == expected


def test_names_in_paths_are_quoted() -> None:
    assert http_request("GetVCluster", {"namespace": "a/b", "name": "c:d"}).path == (
        "/v1/namespaces/a%2Fb/vclusters/c%3Ad"
    )
    assert http_request("GetVCluster", {"id": "x"}).path == "/v1/vclusters/x"
    with pytest.raises(ValueError, match="GetOperation needs id"):
        http_request("GetOperation", {})


async def test_repeated_write_has_one_effect(world: World) -> None:
    client, service, _ = world
    service.unavailable = 2
    created = await client.call("CreateVCluster", namespace="shop", name="blue")
    assert created["operationId"] == "op-0"
    assert len({each.request.request_id for each in service.calls}) == 1
    assert len(service.calls) == 3


async def test_client_waits_for_a_server_that_starts(tmp_path: Path) -> None:
    async with served(tmp_path) as (gateway, _, _):
        with socket.create_server(("127.0.0.1", 0)) as reserved:
            address = Address("127.0.0.1", reserved.getsockname()[1])
        async with client_of(f"http://{address}", gateway) as client, asyncio.TaskGroup() as group:
            listed = group.create_task(client.call("ListVClusters"))
            await asyncio.sleep(0)
            async with serve_rest(gateway.gateway, address, None):
                assert await listed == {}
        async with client_of(f"http://{address}", gateway) as client:
            with pytest.raises(TransportError):
                await client.call("ListVClusters")


async def test_errors_have_code_reason_and_details(world: World) -> None:
    client, service, _ = world
    service.error = quota_exceeded("shop", [])
    with pytest.raises(ServiceError) as caught:
        await client.call("GetVCluster", namespace="shop", name="blue")
    assert (caught.value.code, caught.value.reason) == (Code.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
    assert caught.value.body() == service.error.body()
    assert len(service.calls) == 1  # a quota does not refill with time


def test_answer_of_a_proxy_is_an_error() -> None:
    error = error_of(Response(404, {}, b"<html>"))
    assert (error.code, error.reason) == (Code.NOT_FOUND, "UNEXPECTED_RESPONSE")
    assert error_of(Response(302, {}, b"{}")).code is Code.UNKNOWN


async def test_items_come_from_all_pages(world: World) -> None:
    client, _, _ = world
    for name in "abcde":
        await client.call("CreateVCluster", namespace="shop", name=name)
    assert [each["name"] async for each in client.items("ListVClusters")] == list("abcde")


async def test_watch_continues_after_a_disconnect(world: World) -> None:
    client, service, _ = world
    for number in range(1, 4):
        cluster = api.VCluster(name=f"v{number}", resource_version=str(number))
        if number == 2:
            cluster.annotations["test"] = "disconnect"
        service.events.append(api.WatchVClusterResponse(type=2, vcluster=cluster))
    async with aclosing(client.watch()) as events:
        names = []
        async for event in events:
            names.append(event["vcluster"]["name"])
            if len(names) == 3:
                break
    assert names == ["v1", "v2", "v3"]
    assert [each.request.resource_version for each in service.calls] == ["", "2"]


async def test_watch_that_a_client_leaves_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path) as (gateway, service, url):
        for number in range(1, 2001):
            cluster = api.VCluster(name=f"v{number}", resource_version=str(number))
            cluster.annotations["text"] = "x" * 4000
            service.events.append(api.WatchVClusterResponse(type=1, vcluster=cluster))
        async with client_of(url, gateway) as client, aclosing(client.watch()) as events:
            assert (await anext(events))["vcluster"]["name"] == "v1"
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == []


async def test_watch_ends_with_an_expired_revision(world: World) -> None:
    client, service, _ = world
    service.error = ServiceError(Code.OUT_OF_RANGE, "RESOURCE_VERSION_EXPIRED", "list again")
    with pytest.raises(ServiceError, match="list again"):
        await anext(client.watch(resource_version="1"))


async def test_wait_reports_steps_until_the_end(world: World) -> None:
    client, _, _ = world
    created = await client.call("CreateVCluster", namespace="shop", name="blue")
    states: list[str] = []
    done = await client.wait_for_operation(
        created["operationId"], 10, lambda operation: states.append(operation["steps"][0]["state"])
    )
    assert (states, done["done"]) == (["Running", "Done"], True)


async def test_failed_operation_is_an_error(world: World) -> None:
    client, service, _ = world
    service.failure = "the host has no room"
    created = await client.call("CreateVCluster", namespace="shop", name="blue")
    with pytest.raises(ServiceError, match="the host has no room") as caught:
        await client.wait_for_operation(created["operationId"], 10)
    assert (caught.value.code, caught.value.reason) == (Code.INTERNAL, "STEP_FAILED")


async def test_wrong_key_is_not_tried_again(tmp_path: Path) -> None:
    async with served(tmp_path) as (gateway, service, url):
        gateway.keys["root"] = "tap_wrong"
        async with client_of(url, gateway) as client:
            with pytest.raises(ServiceError, match="the access key is not valid"):
                await client.call("ListVClusters")
    assert list(islice(service.calls, 1)) == []
