"""CEL functions on URLs, IP addresses and CIDRs."""

import ipaddress
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from tapestry.kube.cel.errors import EvaluationError
from tapestry.kube.cel.functions import cel_function, is_valid, register_functions

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Interface | ipaddress.IPv6Interface


@dataclass(frozen=True, slots=True)
class Url:
    kind: ClassVar[str] = "kubernetes.URL"
    parts: SplitResult


@dataclass(frozen=True, slots=True)
class Ip:
    kind: ClassVar[str] = "net.IP"
    address: Address


@dataclass(frozen=True, slots=True)
class Cidr:
    kind: ClassVar[str] = "net.CIDR"
    network: Network


# -- URLs


def url_in(text: str) -> Url:
    """Parse an absolute URL or a path. Raise ValueError."""
    parts = urlsplit(text)
    if not parts.scheme and not text.startswith("/"):
        raise ValueError(f'parse "{text}": invalid URI for request')
    if any(ord(each) <= 32 or ord(each) == 127 for each in text):
        raise ValueError(f'parse "{text}": net/url: invalid control character in URL')
    _ = parts.port  # urllib validates the port on access
    return Url(parts)


@cel_function("url(string) -> kubernetes.URL")
def url(text: str) -> Url:
    try:
        return url_in(text)
    except ValueError as error:
        raise EvaluationError(f"URL parse error during conversion from string: {error}") from None


@cel_function("kubernetes.URL.getHost() -> string")
def host(value: Url) -> str:
    return value.parts.netloc.rpartition("@")[2]


@cel_function("kubernetes.URL.getHostname() -> string")
def hostname(value: Url) -> str:
    host_port = host(value)
    if host_port.startswith("["):
        return host_port[1:].partition("]")[0]
    return host_port.partition(":")[0]


@cel_function("kubernetes.URL.getEscapedPath() -> string")
def path(value: Url) -> str:
    return quote(unquote(value.parts.path), safe="/!$&'()*+,;=:@~[]-._")


@cel_function("kubernetes.URL.getQuery() -> map(string, list(string))")
def query(value: Url) -> dict[str, list[str]]:
    return parse_qs(value.parts.query, keep_blank_values=True)


# -- addresses


def ip_in(text: str) -> Ip:
    if "%" in text:
        raise EvaluationError(f'IP address "{text}" with zone value is not allowed')
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        msg = f'IP Address "{text}" parse error during conversion from string: ParseAddr("{text}"): unable to parse IP'
        raise EvaluationError(msg) from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise EvaluationError(f'IPv4-mapped IPv6 address "{text}" is not allowed')
    return Ip(address)


@cel_function("net.IP.isLinkLocalMulticast() -> bool")
def is_link_local_multicast(value: Ip) -> bool:
    block = "224.0.0.0/24" if value.address.version == 4 else "ff02::/16"
    return value.address in ipaddress.ip_network(block)


@cel_function("net.IP.isGlobalUnicast() -> bool")
def is_global_unicast(value: Ip) -> bool:
    address = value.address
    is_broadcast = address == ipaddress.IPv4Address("255.255.255.255")
    return not (
        is_broadcast or address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
    )


# -- networks


def cidr_in(text: str) -> Cidr:
    _, slash, length = text.partition("/")
    try:
        if not slash or not length.isdecimal():
            raise ValueError(text)
        network = ipaddress.ip_interface(text)
    except ValueError:
        msg = f'netip.ParsePrefix("{text}"): ' + ("bad bits after slash" if slash else "no '/'")
        msg = f"network address parse error during conversion from string: {msg}"
        raise EvaluationError(f"network address parse error during conversion from string: {msg}") from None
    if isinstance(network.ip, ipaddress.IPv6Address) and network.ip.ipv4_mapped is not None:
        raise EvaluationError(f'IPv4-mapped IPv6 address "{text}" is not allowed')
    return Cidr(network)


@cel_function("net.CIDR.containsIP(net.IP) -> bool")
def contains_ip(value: Cidr, other: Ip) -> bool:
    return other.address in value.network.network


@cel_function("net.CIDR.containsCIDR(net.CIDR) -> bool")
def contains_cidr(value: Cidr, other: Cidr) -> bool:
    network: Any = value.network.network
    return value.network.version == other.network.version and bool(other.network.network.subnet_of(network))


register_functions(
    {
        "isURL(string) -> bool": is_valid(url_in, ValueError),
        "isIP(string) -> bool": is_valid(ip_in, EvaluationError),
        "isCIDR(string) -> bool": is_valid(cidr_in, EvaluationError),
        "kubernetes.URL.getScheme() -> string": lambda value: value.parts.scheme,
        "kubernetes.URL.getPort() -> string": lambda value: (
            str(value.parts.port) if value.parts.port is not None else ""
        ),
        "ip(string) -> net.IP": lambda text: ip_in(text),
        "ip.isCanonical(string) -> bool": lambda text: str(ip_in(text).address) == text,
        "net.IP.family() -> int": lambda value: value.address.version,
        "net.IP.isUnspecified() -> bool": lambda value: value.address.is_unspecified,
        "net.IP.isLoopback() -> bool": lambda value: value.address.is_loopback,
        "net.IP.isLinkLocalUnicast() -> bool": lambda value: value.address.is_link_local,
        "string(net.IP) -> string": lambda value: str(value.address),
        "cidr(string) -> net.CIDR": lambda text: cidr_in(text),
        "net.CIDR.containsIP(string) -> bool": lambda value, other: contains_ip(value, ip_in(other)),
        "net.CIDR.containsCIDR(string) -> bool": lambda value, other: contains_cidr(value, cidr_in(other)),
        "net.CIDR.ip() -> net.IP": lambda value: Ip(value.network.ip),
        "net.CIDR.prefixLength() -> int": lambda value: value.network.network.prefixlen,
        "net.CIDR.masked() -> net.CIDR": lambda value: Cidr(ipaddress.ip_interface(value.network.network)),
        "string(net.CIDR) -> string": lambda value: str(value.network),
    }
)
