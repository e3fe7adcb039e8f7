"""Warnings about IP addresses and CIDRs in a non-canonical format."""

import ipaddress
from collections.abc import Iterator


def ip_warnings(field_path: str, value: str) -> Iterator[str]:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        if (canonical := without_leading_zeros(value)) is None:
            return
    else:
        if not isinstance(address, ipaddress.IPv6Address):
            return
        if address.ipv4_mapped is None:
            if str(address) != value:
                yield f'{field_path}: IPv6 address "{value}" should be in RFC 5952 canonical format ("{address}")'
            return
        canonical = str(address.ipv4_mapped)
    future = "will be considered invalid in a future Kubernetes release"
    yield f'{field_path}: non-standard IP address "{value}" {future}: use "{canonical}"'


def without_leading_zeros(value: str) -> str | None:
    """Remove leading zeros from the parts of an IPv4 address. Returns None if the result is not an address."""
    try:
        return str(ipaddress.IPv4Address(".".join(str(int(each)) for each in value.split("."))))
    except ValueError:
        return None


def cidr_warnings(field_path: str, value: str) -> Iterator[str]:
    try:
        interface = ipaddress.ip_interface(value)
    except ValueError:
        return
    network = interface.network
    if interface.ip != network.network_address:
        single = f"{interface.ip}/{interface.max_prefixlen}"
        yield f'{field_path}: CIDR value "{value}" is ambiguous in this context (should be "{network}" or "{single}"?)'
    elif interface.version == 6 and str(network) != value:
        yield f'{field_path}: IPv6 CIDR value "{value}" should be in RFC 5952 canonical format ("{network}")'
