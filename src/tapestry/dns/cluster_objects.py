"""The fields of Services and EndpointSlices that names depend on. It is pure."""

import ipaddress

import msgspec


class Port(msgspec.Struct, rename="camel", gc=False):
    name: str | None = None
    protocol: str | None = None
    port: int | None = None


class ServiceSpec(msgspec.Struct, rename="camel"):
    type: str | None = None
    cluster_ip: str | None = msgspec.field(default=None, name="clusterIP")
    cluster_ips: list[str] | None = msgspec.field(default=None, name="clusterIPs")
    external_name: str | None = None
    ports: list[Port] | None = None

    @property
    def addresses(self) -> list[str]:
        return [each for each in self.cluster_ips or [self.cluster_ip or ""] if packed_address(each) is not None]


class Service(msgspec.Struct):
    """The fields of a Service that its names depend on."""

    spec: ServiceSpec


class Conditions(msgspec.Struct, frozen=True, gc=False):
    ready: bool | None = None


class Endpoint(msgspec.Struct):
    addresses: list[str] = []
    hostname: str | None = None
    conditions: Conditions | None = None

    @property
    def is_ready(self) -> bool:
        """True if the address is published: of a ready pod, or of any pod of a Service that publishes all."""
        return self.conditions is None or self.conditions.ready is not False


class Slice(msgspec.Struct, rename="camel"):
    """The fields of an EndpointSlice that names depend on."""

    address_type: str = ""
    endpoints: list[Endpoint] | None = None
    ports: list[Port] | None = None


SERVICE_DECODER, SLICE_DECODER = msgspec.json.Decoder(Service), msgspec.json.Decoder(Slice)
NO_ENDPOINTS = Slice()


def decoded_service(raw: bytes) -> ServiceSpec | None:
    """Return the spec of a Service in JSON; None if it cannot be read."""
    try:
        return SERVICE_DECODER.decode(raw).spec
    except msgspec.MsgspecError:
        return None


def decoded_slice(raw: bytes) -> Slice:
    """Return an EndpointSlice in JSON; one without endpoints if it cannot be read."""
    try:
        return SLICE_DECODER.decode(raw)
    except msgspec.MsgspecError:
        return NO_ENDPOINTS


def packed_address(address: str) -> bytes | None:
    """Return the bytes of an address; None if it is none, such as the `None` of a headless Service."""
    try:
        return ipaddress.ip_address(address).packed
    except ValueError:
        return None
