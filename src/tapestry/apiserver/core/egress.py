"""Checks of the addresses that the server connects to because an object names them.

The addresses of webhooks and kubelets come from objects that clients write. The server never connects to link-local
addresses, where cloud providers serve the credentials of the machine, or to addresses that belong to no host. The
addresses of a name are checked when they are used, so the name cannot resolve differently in between. Webhooks and
kubelets may run on the same machine. Aggregated API servers may not unless that is configured, because users can call
any of their paths.
"""

import ipaddress
import socket
from collections.abc import Callable, Mapping

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from tapestry.kube.objects import EMPTY_MAPPING

NAT64_NETWORK = ipaddress.ip_network("64:ff9b::/96")
"""NAT64: the last 32 bits are an IPv4 address."""
METADATA_ADDRESSES = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16"))
)
"""Metadata services of some providers that are not link-local."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressNotAllowed(OSError):
    """Raised if the server must not connect to an address."""

    def __init__(self, address: object) -> None:
        super().__init__(f"address not allowed: {address}")


def check_host(host: str) -> None:
    """Raise AddressNotAllowed if `host` is a forbidden address. A name is checked when it is resolved."""
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return
    if not is_allowed(address):
        raise AddressNotAllowed(address)


def check_remote_host(host: str) -> None:
    """Raise AddressNotAllowed if `host` is a forbidden address or belongs to this machine."""
    check_host(host)
    try:
        address = embedded_address(ipaddress.ip_address(host.strip("[]").partition("%")[0]))
    except ValueError:
        return
    if address.is_loopback or belongs_to_this_machine(address):
        raise AddressNotAllowed(address)


def belongs_to_this_machine(address: Address) -> bool:
    """Return whether an interface of this machine has the address: only then a socket can be bound to it."""
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
        if inner is None and address in NAT64_NETWORK:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return inner or address
    return address


def is_allowed(address: Address) -> bool:
    address = embedded_address(address)
    return not (
        address.is_link_local or address.is_multicast or address.is_unspecified or address in METADATA_ADDRESSES
    )


class CheckedResolver(AbstractResolver):
    """A resolver that checks the results of another one."""

    def __init__(self, inner: AbstractResolver, check: Callable[[str], None] = check_host) -> None:
        self._inner = inner
        self._check = check

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        results = await self._inner.resolve(host, port, family)
        for result in results:
            self._check(result["host"])
        return results

    async def close(self) -> None:
        await self._inner.close()


def checked_session(
    resolver: AbstractResolver | None = None,
    headers: Mapping[str, str] = EMPTY_MAPPING,
    timeout: aiohttp.ClientTimeout = aiohttp.client.DEFAULT_TIMEOUT,
    check: Callable[[str], None] = check_host,
) -> aiohttp.ClientSession:
    """A session without cookies and decompression that resolves names only to allowed addresses."""
    checked = CheckedResolver(resolver or aiohttp.ThreadedResolver(), check)
    connector = aiohttp.TCPConnector(limit=0, resolver=checked, use_dns_cache=resolver is None)
    return aiohttp.ClientSession(
        connector=connector,
        headers={"Accept-Encoding": "identity", **headers},
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )
