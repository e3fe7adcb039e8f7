"""IP addresses that a kubeconfig from a Secret may lead to.

The author of such a kubeconfig chooses the address that our process connects to.  Loopback addresses lead to listeners
that trust this machine.  Link-local addresses lead to the metadata services of clouds, which issue credentials.  A host
name is checked when it is dialed: an earlier check would miss a name that changes its address.
"""

import ipaddress
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

IPV4_EMBEDDING_NETWORKS = (ipaddress.IPv6Network("::/96"), ipaddress.IPv6Network("64:ff9b::/96"))
"""IPv6 networks whose addresses end in an IPv4 address: IPv4-compatible addresses and NAT64."""


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """Rules for the addresses that may be dialed."""

    allow_loopback: bool = False

    def denial_reason(self, host: str) -> str:
        """Return why `host` may not be dialed.  Return "" if it may, or if it is a name to be resolved first."""
        try:
            address: Address = ipaddress.ip_address(host)
        except ValueError:
            local = host.rstrip(".").lower()
            is_local = local == "localhost" or local.endswith(".localhost")
            return "a loopback address" if is_local and not self.allow_loopback else ""
        address = embedded_ipv4(address) or address
        if address.is_loopback:
            return "" if self.allow_loopback else "a loopback address"
        if address.is_unspecified:
            return "an unspecified address"
        if address.is_link_local:
            return "a link-local address"
        return "a multicast address" if address.is_multicast else ""


def embedded_ipv4(address: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that packets to an IPv6 address may reach."""
    if not isinstance(address, ipaddress.IPv6Address) or address.is_loopback or address.is_unspecified:
        return None
    if any(address in network for network in IPV4_EMBEDDING_NETWORKS):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
