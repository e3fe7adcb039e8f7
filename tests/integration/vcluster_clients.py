"""The service of virtual clusters as a process, and clients of it by REST and by gRPC."""

import json
import re
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2

from tapestry.local.kubernetes import free_ports
from tapestry.vclusters.rest_routes import RPCS

from .servers import PlanesProcess

COLLECTION = "/v1/namespaces/shop/vclusters"
DETAILS = "grpc-status-details-bin"
DETAIL_TYPES = error_details_pb2.DESCRIPTOR.message_types_by_name
"""Messages of details, which `json_format` finds by name because they are imported."""
WITHOUT_LIMITS = """
import sys
from tapestry.vclusters.access import rate_limits
fast = rate_limits.Rate(1e6, 10**6)
rate_limits.ADDRESS_RATE = fast
rate_limits.RATES.update(dict.fromkeys(rate_limits.RATES, fast))
from tapestry.cli.main import main
sys.exit(main())
"""


class UnlimitedPlanesProcess(PlanesProcess):
    """A process of planes whose service of virtual clusters has no rate limits."""

    def command(self) -> Sequence[str | Path]:
        return [sys.executable, "-c", WITHOUT_LIMITS, *super().command()[1:]]


@dataclass
class Clients:
    http: aiohttp.ClientSession
    channel: grpc.aio.Channel
    base: str
    metadata: list[tuple[str, str]]
    process: PlanesProcess

    async def rest(self, method: str, path: str, **options: Any) -> Any:
        async with self.http.request(method, self.base + path, **options) as response:
            text = await response.text()
            assert response.status < 300, text
            return json.loads(text)

    async def rpc(self, method: str, **fields: Any) -> Any:
        rpc = RPCS[method]
        request, response = GetMessageClass(rpc.input_type), GetMessageClass(rpc.output_type)
        call = self.channel.unary_unary(
            f"/{rpc.containing_service.full_name}/{rpc.name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return json_format.MessageToDict(await call(request(**fields), metadata=self.metadata))

    async def operate(self, protocol: str, verb: str) -> Any:
        """Request an operation, and wait until it has ended."""
        if protocol == "grpc":
            names = {"scale": "ScaleVCluster", "suspend": "SuspendVCluster", "resume": "ResumeVCluster"}
            name = names.get(verb, "DeleteVCluster")
            started = await self.rpc(name, name=protocol, namespace="shop")
            ended = await self.rpc("WaitOperation", id=started["operationId"], timeout_seconds=60)
        else:
            path = f"{COLLECTION}/{protocol}"
            method, path = ("DELETE", path) if verb == "delete" else ("POST", f"{path}:{verb}")
            started = await self.rest(method, path)
            ended = await self.rest(
                "POST", f"/v1/operations/{started['operationId']}:wait", json={"timeoutSeconds": 60}
            )
        assert ended["done"], ended
        assert "error" not in ended, ended
        return ended


async def rest_answer(world: Clients, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Return the status, and the response or the error."""
    async with world.http.request(method, world.base + path, json=body) as response:
        text = await response.text()
        return response.status, json.loads(text) if text else {}


async def rpc_answer(world: Clients, method: str, request: Message) -> tuple[int, Any]:
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


@asynccontextmanager
async def clients(process: PlanesProcess, rest: int, rpc: int) -> AsyncIterator[Clients]:
    found = re.search(r"tap_\w+", process.output.read_text())
    assert found is not None
    authority = process.folder / "pki" / "ca.crt"
    context = ssl.create_default_context(cafile=str(authority))
    credentials = grpc.ssl_channel_credentials(authority.read_bytes())
    header = f"Bearer {found[0]}"
    async with (
        aiohttp.ClientSession(headers={"Authorization": header}, connector=aiohttp.TCPConnector(ssl=context)) as http,
        grpc.aio.secure_channel(f"127.0.0.1:{rpc}", credentials) as channel,
    ):
        yield Clients(http, channel, f"https://127.0.0.1:{rest}", [("authorization", header)], process)


@asynccontextmanager
async def service(folder: Path, process_class: type[PlanesProcess] = PlanesProcess) -> AsyncIterator[Clients]:
    rest, rpc = free_ports(2)
    flags = "--rest-address", f"127.0.0.1:{rest}", "--grpc-address", f"127.0.0.1:{rpc}"
    with process_class(folder / "planes", *flags) as process:
        process.wait_for_output("served by grpc")
        async with clients(process, rest, rpc) as each:
            yield each
