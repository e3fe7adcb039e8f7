"""Rule for the addresses that the server connects to because an object names them.

The addresses of webhooks, aggregated API servers, kubelets and pods come from objects that clients write. The server
never connects to link-local addresses, where cloud providers serve the credentials of the machine, or to addresses that
belong to no host. Webhooks and kubelets may run on the same machine. Aggregated API servers and pods may not unless
that is configured, because users can call any of their paths.

A strict rule is for a server whose users are not trusted with the network of its machine. Nothing may be on this
machine, and kubelets and pods are only in the configured ranges, because the objects of nodes and pods are written by
the same users. If such a server has a host cluster, its Services and pods are reached through that (`pod_sessions`),
and URLs of webhooks only lead to public addresses.

Addresses are checked when a socket is created for them. So a name cannot resolve to another address in between.

Names are looked up for each session by itself, so that a name server that does not answer affects no other server.
"""

import ipaddress
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.kube.objects import EMPTY_MAPPING
from tapestry.process.lookups import Lookups

NAT64_NETWORKS = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48")))
"""NAT64: the last 32 bits are an IPv4 address."""
METADATA_ADDRESSES = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16"))
)
"""Metadata services of some providers that are not link-local."""

DEPRECATED_PRIVATE_NETWORK = ipaddress.ip_network("fec0::/10")
"""Private addresses that `ipaddress` considers global."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
AddressCheck = Callable[[str], None]
"""Raise AddressNotAllowed for an IP address to which the server must not connect."""


class AddressNotAllowed(OSError):
    """Error if the server must not connect to an address."""

    def __init__(self, address: object) -> None:
        super().__init__(f"address not allowed: {address}")


@dataclass(frozen=True)
class EgressPolicy:
    """Addresses to which one server may connect, by the role of the peer."""

    is_strict: bool = False
    allowed: tuple[IpNetwork, ...] = ()
    """Ranges that are allowed for every role. All other rules except `denied` do not hold for them."""
    denied: tuple[IpNetwork, ...] = ()
    pods: tuple[IpNetwork, ...] = ()
    """Ranges of pods. If empty and the rule is not strict, pods may have any address of another machine."""
    allows_local_api_servers: bool = False
    """Allow aggregated API servers on this machine."""

    def check_webhook(self, host: str) -> None:
        self._check(host, may_be_local=not self.is_strict)

    def check_public(self, host: str) -> None:
        """Raise AddressNotAllowed for an address of a private network, unless its range is allowed."""
        self._check(host, may_be_local=False, is_listed_only=not is_public(parsed_address(host)))

    def check_pod_of_host(self, host: str, /, *, may_be_local: bool) -> None:
        """Raise AddressNotAllowed for an address that the host cluster reports as that of a pod."""
        self._check(host, may_be_local=may_be_local)

    def check_api_server(self, host: str) -> None:
        self._check(host, may_be_local=self.allows_local_api_servers)

    def check_kubelet(self, host: str) -> None:
        self._check(host, may_be_local=True, is_listed_only=self.is_strict)

    def check_pod(self, host: str) -> None:
        if self.pods and contains(self.pods, parsed_address(host)):
            self._check(host, may_be_local=True)
        else:
            self._check(host, may_be_local=False, is_listed_only=self.is_strict or bool(self.pods))

    def _check(self, host: str, *, may_be_local: bool, is_listed_only: bool = False) -> None:
        address = parsed_address(host)
        is_listed = contains(self.allowed, address)
        if contains(self.denied, address) or not (
            is_listed
            or (not is_listed_only and is_routable(address) and (may_be_local or not is_of_this_machine(address)))
        ):
            raise AddressNotAllowed(address)


def egress_policy(config: ApiServerConfig) -> EgressPolicy:
    """Return the rule of a configuration. Raises ValueError for an invalid range."""
    return EgressPolicy(
        is_strict=config.egress.strict,
        allowed=parse_networks(config.egress.allowed_cidrs, "egress.allowedCidrs"),
        denied=parse_networks(config.egress.denied_cidrs, "egress.deniedCidrs"),
        pods=parse_networks(config.proxy_allowed_cidrs, "proxyAllowedCidrs"),
        allows_local_api_servers=config.aggregation_allow_host,
    )


def parse_networks(ranges: Sequence[str], option: str) -> tuple[IpNetwork, ...]:
    try:
        return tuple(map(ipaddress.ip_network, ranges))
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from error


def parsed_address(host: str) -> Address:
    """Return the address to which packets for an IP address go. Raises AddressNotAllowed if `host` is not one."""
    try:
        return embedded_address(ipaddress.ip_address(host.strip("[]").partition("%")[0]))
    except ValueError:
        raise AddressNotAllowed(host) from None


def contains(networks: Sequence[IpNetwork], address: Address) -> bool:
    return any(address in network for network in networks)


def is_of_this_machine(address: Address) -> bool:
    """Return whether an interface of this machine has the address: only then a socket can be bound to it."""
    if address.is_loopback:
        return True
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def embedded_address(address: Address) -> Address:
    """Return the IPv4 address to which an IPv6 address is translated, or the address itself."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and contains(NAT64_NETWORKS, address):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return inner or address
    return address


def is_public(address: Address) -> bool:
    """Return whether an address is not one of a private network."""
    return address.is_global and address not in DEPRECATED_PRIVATE_NETWORK


def is_routable(address: Address) -> bool:
    """Return whether an address can be that of a host which is not a metadata service."""
    return not (
        address.is_link_local or address.is_multicast or address.is_unspecified or address in METADATA_ADDRESSES
    )


class NameResolver(AbstractResolver):
    """Looks up names without the threads of the event loop."""

    def __init__(self) -> None:
        self._lookups = Lookups()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses = await self._lookups.addresses(host, port, family)
        return [
            ResolveResult(hostname=host, host=str(peer[0]), port=int(peer[1]), family=kind, proto=proto, flags=0)
            for kind, _, proto, _, peer in addresses
        ]

    async def close(self) -> None:
        """Do nothing: lookups end by themselves."""


def checked_session(
    check: AddressCheck,
    resolver: AbstractResolver | None = None,
    headers: Mapping[str, str] = EMPTY_MAPPING,
    timeout: aiohttp.ClientTimeout = aiohttp.client.DEFAULT_TIMEOUT,
) -> aiohttp.ClientSession:
    """A session without cookies and decompression that connects only to addresses that pass the check."""

    def checked_socket(address_info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, address = address_info
        check(str(address[0]))
        return socket.socket(family, kind, protocol)

    connector = aiohttp.TCPConnector(
        limit=0, resolver=resolver or NameResolver(), use_dns_cache=resolver is None, socket_factory=checked_socket
    )
    return aiohttp.ClientSession(
        connector=connector,
        headers={"Accept-Encoding": "identity", **headers},
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )
