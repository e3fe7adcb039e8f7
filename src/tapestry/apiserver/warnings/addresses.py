"""What is said of addresses and networks that are not written as they should be."""

import ipaddress
from collections.abc import Iterator


def ip_warnings(field_path: str, value: str) -> Iterator[str]:
    try:
        found = ipaddress.ip_address(value)
    except ValueError:
        if (usual := without_leading_zeros(value)) is None:
            return
    else:
        if not isinstance(found, ipaddress.IPv6Address):
            return
        if found.ipv4_mapped is None:
            if str(found) != value:
                yield f'{field_path}: IPv6 address "{value}" should be in RFC 5952 canonical format ("{found}")'
            return
        usual = str(found.ipv4_mapped)
    later = "will be considered invalid in a future Kubernetes release"
    yield f'{field_path}: non-standard IP address "{value}" {later}: use "{usual}"'


def without_leading_zeros(value: str) -> str | None:
    """An address whose numbers begin with zeroes, without them."""
    try:
        return str(ipaddress.IPv4Address(".".join(str(int(each)) for each in value.split("."))))
    except ValueError:
        return None


def cidr_warnings(field_path: str, value: str) -> Iterator[str]:
    try:
        found = ipaddress.ip_interface(value)
    except ValueError:
        return
    network = found.network
    if found.ip != network.network_address:
        single = f"{found.ip}/{found.max_prefixlen}"
        yield f'{field_path}: CIDR value "{value}" is ambiguous in this context (should be "{network}" or "{single}"?)'
    elif found.version == 6 and str(network) != value:
        yield f'{field_path}: IPv6 CIDR value "{value}" should be in RFC 5952 canonical format ("{network}")'
