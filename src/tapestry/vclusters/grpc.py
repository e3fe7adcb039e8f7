"""The gRPC listener: RPCs of the contract as calls of the gateway, with health checks and reflection."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, Protocol
from urllib.parse import unquote

import grpc
from cryptography import x509
from cryptography.x509.oid import NameOID
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tapestry.apiserver.access.certificates import fingerprint, is_issued_by
from tapestry.process.addresses import Address
from tapestry.vclusters.access.authentication import Credentials, Subject
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.errors import ServiceError, Violation, field_invalid
from tapestry.vclusters.gateway import Gateway, IncomingCall
from tapestry.vclusters.transcoding import MAX_BODY_BYTES

DETAILS_KEY = "grpc-status-details-bin"
GRACE_SECONDS = 1.0
MAX_CONCURRENT_RPCS = 1000
MAX_CACHED_CERTIFICATES = 1000
CODES = {each.value[0]: each for each in grpc.StatusCode}
DETAIL_TYPES = error_details_pb2.DESCRIPTOR.message_types_by_name
"""Messages of details, which `json_format` finds by name because they are imported."""
ALL_SERVICES = tuple(each.full_name for each in api.DESCRIPTOR.services_by_name.values())


class Context(Protocol):
    """The part of `grpc.aio.ServicerContext`, which has no types, that the handlers need."""

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: Any) -> NoReturn: ...

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...

    def auth_context(self) -> Mapping[str, Sequence[bytes]]: ...

    def peer(self) -> str: ...

    def time_remaining(self) -> float | None: ...


@dataclass(frozen=True)
class GrpcListener:
    """Handlers of all RPCs."""

    gateway: Gateway
    client_ca: Path | None = None
    """CA of client certificates, if the listener requires them."""

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        return [
            grpc.method_handlers_generic_handler(
                service.full_name, {rpc.name: self._handler(rpc) for rpc in service.methods}
            )
            for service in api.DESCRIPTOR.services_by_name.values()
        ]

    def _handler(self, rpc: MethodDescriptor) -> grpc.RpcMethodHandler:
        make = grpc.unary_stream_rpc_method_handler if rpc.server_streaming else grpc.unary_unary_rpc_method_handler
        respond = self._stream(rpc) if rpc.server_streaming else self._unary(rpc)
        return make(respond, response_serializer=GetMessageClass(rpc.output_type).SerializeToString)

    def _unary(self, rpc: MethodDescriptor) -> Callable[[bytes, Context], Any]:
        async def respond(content: bytes, context: Context) -> Message:
            try:
                response, _ = await self.gateway.call(incoming_call(rpc, content, context, self.client_ca))
            except ServiceError as error:
                await abort(context, error)
            return response

        return respond

    def _stream(self, rpc: MethodDescriptor) -> Callable[[bytes, Context], AsyncGenerator[Message, None]]:
        async def respond(content: bytes, context: Context) -> AsyncGenerator[Message, None]:
            try:
                async with aclosing(
                    self.gateway.stream(incoming_call(rpc, content, context, self.client_ca))
                ) as messages:
                    async for message in messages:
                        yield message
            except ServiceError as error:
                await abort(context, error)

        return respond


async def abort(context: Context, error: ServiceError) -> NoReturn:
    """End an RPC with the code and the details of an error."""
    status = status_pb2.Status(code=error.code.number, message=error.message)
    for each in error.all_details:
        json_format.ParseDict(each, status.details.add())
    await context.abort(CODES[error.code.number], error.message, ((DETAILS_KEY, status.SerializeToString()),))
    raise AssertionError("abort has raised")


def incoming_call(rpc: MethodDescriptor, content: bytes, context: Context, client_ca: Path | None) -> IncomingCall:
    """Return the call of an RPC. Raises ServiceError for bytes that are not its message.

    A deserializer of gRPC may not raise an error of the client: it would be logged as one of the server.
    """
    try:
        request = GetMessageClass(rpc.input_type).FromString(content)
        json_format.MessageToDict(request)  # fails for times and field masks that are out of their range
    except (DecodeError, json_format.Error, ValueError) as error:
        raise field_invalid(Violation("body", f"is not a {rpc.input_type.full_name}: {error}")) from error
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    return IncomingCall(
        rpc.name,
        request,
        Credentials(metadata.get("authorization", ""), certificate_of(context.auth_context(), client_ca)),
        peer_address(context.peer()),
        metadata.get("user-agent", ""),
        protocol="grpc",
        timeout=context.time_remaining(),
    )


def certificate_of(properties: Mapping[str, Sequence[bytes]], client_ca: Path | None) -> Subject | None:
    """Return the client certificate of a connection with mutual TLS, unless it has expired since the handshake."""
    pem = properties.get("x509_pem_cert")
    if not pem or client_ca is None:
        return None
    subject, expires = verified_certificate(pem[0], client_ca.read_bytes())
    return subject if datetime.now(UTC) < expires else None


@lru_cache(maxsize=MAX_CACHED_CERTIFICATES)
def verified_certificate(pem: bytes, authorities: bytes) -> tuple[Subject, datetime]:
    """Return a certificate that the handshake has verified as the API server has it, and its expiry."""
    certificate = x509.load_pem_x509_certificate(pem)
    names, groups = (
        [str(each.value) for each in certificate.subject.get_attributes_for_oid(oid)]
        for oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)
    )
    issuers = [each for each in x509.load_pem_x509_certificates(authorities) if is_issued_by(certificate, each)]
    subject = {
        "commonName": names,
        "organizationName": groups,
        "sha256": [fingerprint(certificate)],
        "chain": [fingerprint(each) for each in (certificate, *issuers)],
        "serialNumber": [f"{certificate.serial_number:X}"],
        "notBefore": [str(certificate.not_valid_before_utc.timestamp())],
    }
    return subject, certificate.not_valid_after_utc


def peer_address(peer: str) -> str:
    """Return the address in the name of a peer, such as `ipv4:192.0.2.1:5000` or `ipv6:%5B2001:db8::1%5D:5000`."""
    found = re.fullmatch(r"ipv[46]:\[?(.*?)\]?:\d+", unquote(peer))
    return found[1] if found is not None else peer


@dataclass(frozen=True)
class TlsFiles:
    """Files of a listener, which are read again for each connection, so that they may be replaced."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """CA of client certificates, without which nobody can connect. None: no client certificate is requested."""

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        ca = self.client_ca.read_bytes() if self.client_ca is not None else None
        return grpc.ssl_server_certificate_configuration([(self.key.read_bytes(), self.certificate.read_bytes())], ca)

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            self.configuration(), self.configuration, require_client_authentication=self.client_ca is not None
        )


@asynccontextmanager
async def serve_grpc(gateway: Gateway, address: Address, tls: TlsFiles | None) -> AsyncIterator[Address]:
    """Serve gRPC, and yield the address. Without `tls`, anyone on the way reads the credentials."""
    options = [("grpc.max_receive_message_length", MAX_BODY_BYTES), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MAX_CONCURRENT_RPCS)
    server.add_generic_rpc_handlers(GrpcListener(gateway, tls.client_ca if tls is not None else None).handlers())
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    reflection.enable_server_reflection([*ALL_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    name = str(address)
    port = server.add_secure_port(name, tls.credentials()) if tls is not None else server.add_insecure_port(name)
    if port == 0:
        raise OSError(f"gRPC listener {name}: the address is in use or does not exist")
    await server.start()
    try:
        for service in ("", *ALL_SERVICES):
            await health_servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
        yield Address(address.host, port)
    finally:
        await health_servicer.enter_graceful_shutdown()
        await server.stop(GRACE_SECONDS)
