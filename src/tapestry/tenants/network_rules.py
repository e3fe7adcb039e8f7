"""Rules of the network policies of tenants: which addresses their pods may reach. It is pure.

Network policies only allow, and the rules of all policies that select a pod add up. So a policy of a tenant could allow
what the isolation of its namespace leaves out: the metadata service of the machine, the API of the host cluster, the
machines of its owner. `allowed_block` therefore removes these addresses from each block of a tenant, and the policies
of the isolation use the same ranges (`public_blocks`).

    full    private and special addresses, those of the host's API, and those that the HostCluster lists
    lite    special addresses, and those of the host's API: there are no policies that limit the other pods

For the same reason, the policies of the isolation that allow what most pods need select only pods for which the tenant
has no policy of its own (`undecided_pods`). The syncer marks the others with a label for each direction. Otherwise, a
policy of the tenant that denies everything would deny nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import Literal

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.kube.objects import Object

Range = IPv4Network | IPv6Network
Direction = Literal["Ingress", "Egress"]

DECIDED: dict[Direction, str] = {"Ingress": keys.INGRESS_DECIDED, "Egress": keys.EGRESS_DECIDED}
"""Labels of twins for which policies of the tenant decide what is allowed in a direction."""
DNS_PORT = 53

SPECIAL = tuple(
    ip_network(each)
    for each in (
        *("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4"),
        # Metadata services: link-local, Alibaba Cloud, Azure, Oracle Cloud, and that of AWS for IPv6.
        *("169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.0/24", "fd00:ec2::254/128"),
        # Loopback, IPv4 addresses in IPv6 (mapped, translated, 6to4, Teredo), link-local and multicast.
        *("::/8", "2001::/32", "2002::/16", "fe80::/10", "ff00::/8"),
    )
)
"""Addresses that no pod needs and that may lead to the machine under it."""
PRIVATE = tuple(
    ip_network(each)
    for each in (
        *("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "198.18.0.0/15"),
        *("fc00::/7", "fec0::/10"),
    )
)
"""Addresses of private networks: pods and Services of everybody, nodes, and machines of the owner."""


@dataclass(frozen=True)
class Destination:
    """A port of the process of the planes, as the endpoint of a Service of the tenant's namespace."""

    address: str
    port: int


@dataclass(frozen=True)
class Destinations:
    """Addresses that pods of a tenant need besides each other, and those that they must not reach."""

    api: Destination | None = None
    """The API of the plane; None if pods cannot reach it."""
    dns: Destination | None = None
    """The DNS resolver of the tenant; None if it has none."""
    forbidden: tuple[str, ...] = ()
    """Addresses of the host's API servers and of the process, which pods do not need beyond these ports."""


def forbidden_ranges(binding: Binding, destinations: Destinations) -> tuple[Range, ...]:
    """Return the ranges that no rule of the tenant's namespace allows, except `api_rules` and `dns_rules`."""
    ranges = [*SPECIAL, *parsed_ranges(destinations.forbidden)]
    if binding.spec.isolation.mode == "full":
        ranges += [*PRIVATE, *parsed_ranges(binding.host.private_ranges if binding.host is not None else ())]
    return merged_ranges(ranges)


def merged_ranges(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return the ranges without overlaps, in a fixed order."""
    every = list(ranges)
    v4 = collapse_addresses(each for each in every if isinstance(each, IPv4Network))
    v6 = collapse_addresses(each for each in every if isinstance(each, IPv6Network))
    return (*v4, *v6)


def parsed_range(text: object) -> Range | None:
    """Return the range of a CIDR or an address; None if it is neither."""
    try:
        return ip_network(text, strict=False) if isinstance(text, str) and "%" not in text else None
    except ValueError:
        return None


def parsed_ranges(texts: Iterable[str]) -> list[Range]:
    return [found for text in texts if (found := parsed_range(text)) is not None]


def allowed_block(cidr: object, excepted: Iterable[object], forbidden: Iterable[Range]) -> Object | None:
    """Return the ipBlock of a peer without the forbidden ranges; None if nothing of it is left.

    A block that cannot be read, or with an exception that cannot be read, allows nothing.
    """
    block, exceptions = parsed_range(cidr), [parsed_range(each) for each in excepted]
    if block is None or None in exceptions:
        return None
    removed = [each for each in (*forbidden, *exceptions) if each is not None and overlap(each, block)]
    left_out = merged_ranges(removed)
    if any(contains(each, block) for each in left_out):
        return None
    return {"cidr": str(block), **({"except": [str(each) for each in left_out]} if left_out else {})}


def contains(outer: Range, inner: Range) -> bool:
    """Return whether all addresses of `inner` are in `outer`."""
    if isinstance(outer, IPv4Network):
        return isinstance(inner, IPv4Network) and inner.subnet_of(outer)
    return isinstance(inner, IPv6Network) and inner.subnet_of(outer)


def overlap(one: Range, other: Range) -> bool:
    return one.version == other.version and one.overlaps(other)


def public_blocks(forbidden: Sequence[Range]) -> list[Object]:
    """Return the peers of all addresses that are not forbidden."""
    blocks = (allowed_block(each, (), forbidden) for each in ("0.0.0.0/0", "::/0"))
    return [{"ipBlock": each} for each in blocks if each is not None]


def range_peer(text: str) -> Object:
    """Return the peer of an address or a CIDR, which must be valid."""
    found = parsed_range(text)
    assert found is not None, f"{text} is an address"
    return {"ipBlock": {"cidr": str(found)}}


def api_rules(destinations: Destinations) -> list[Object]:
    """Return the egress rules that lead to the API of the plane."""
    api = destinations.api
    return [{"to": [range_peer(api.address)], "ports": [{"protocol": "TCP", "port": api.port}]}] if api else []


def dns_rules(destinations: Destinations, protocols: Sequence[str] = ("UDP", "TCP")) -> list[Object]:
    """Return the egress rules that lead to the resolver of the tenant."""
    dns = destinations.dns
    if dns is None or not protocols:
        return []
    return [{"to": [range_peer(dns.address)], "ports": [{"protocol": each, "port": dns.port} for each in protocols]}]


def plane_endpoints(destinations: Destinations) -> list[str]:
    """Return the endpoints of `api_rules` and `dns_rules` as `CIDR:PORT`."""
    found = filter(None, (destinations.api, destinations.dns))
    return [f"{range_peer(each.address)['ipBlock']['cidr']}:{each.port}" for each in found]


def undecided_pods(binding: Binding, direction: Direction) -> Object:
    """Return the selector of those pods of a tenant for which it has no network policy of its own in a direction."""
    return {
        "matchLabels": binding.owner_labels(),
        "matchExpressions": [{"key": DECIDED[direction], "operator": "DoesNotExist"}],
    }
