"""NetworkPolicies of the host namespace of an isolated tenant.

They allow traffic between the tenant's own pods, to its DNS resolver, to the API of its plane, and to the internet.
Private networks, metadata services, the host's API server and other ports of the process of the planes stay out of
reach. Policies add up, so a policy that the tenant brings itself may not allow more; see `host_policies`.
"""

import ipaddress
from collections.abc import Iterable, Iterator

from tapestry.kube.objects import Object

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

CLOSED_NETWORKS = tuple(
    ipaddress.ip_network(each)
    for each in (
        # networks that are not the internet: private, shared, loopback, link-local (metadata), tests, multicast
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4"),
        "168.63.129.16/32",  # the metadata and DNS service of Azure, which has a public address
        # IPv6: special and mapped addresses, translations of IPv4, unique local, link-local, site-local, multicast
        *("::/8", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16"),
        *("fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"),
    )
)
"""Networks that a tenant's pods never reach, except for the ports that are opened for it."""
INTERNETS = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
ALL_PODS: Object = {}


def address_network(address: str) -> Network:
    """Return the network of one address. Raise ValueError if it is none."""
    return ipaddress.ip_network(ipaddress.ip_address(address))


def open_blocks(closed_addresses: Iterable[str]) -> list[Object]:
    """Return the ipBlocks of the internet without closed networks and these addresses."""
    public = {each for each in map(address_network, closed_addresses) if not is_closed(each)}
    closed = sorted({*CLOSED_NETWORKS, *public}, key=network_order)
    return [
        {
            "cidr": str(internet),
            "except": [str(each) for each in closed if each.version == internet.version],
        }
        for internet in INTERNETS
    ]


def is_closed(network: Network) -> bool:
    return any(network.version == each.version and network.subnet_of(each) for each in CLOSED_NETWORKS)  # type: ignore[arg-type]


def network_order(network: Network) -> tuple[int, int, int]:
    return network.version, int(network.network_address), network.prefixlen


def address_peer(address: str) -> Object:
    return {"ipBlock": {"cidr": str(address_network(address))}}


def port_rule(address: str, port: int, *protocols: str) -> Object:
    """Return an egress rule for one port of one address."""
    return {
        "to": [address_peer(address)],
        "ports": [{"protocol": protocol, "port": port} for protocol in protocols],
    }


def own_pods_policy(direction: str) -> Object:
    """Return the spec of a policy that allows traffic between the pods of a namespace."""
    peers = "from" if direction == "Ingress" else "to"
    return {
        "podSelector": ALL_PODS,
        "policyTypes": [direction],
        direction.lower(): [{peers: [{"podSelector": ALL_PODS}]}],
    }


def denial_policy() -> Object:
    """Return the spec of the policy that denies everything that no other policy allows."""
    return {"podSelector": ALL_PODS, "policyTypes": ["Ingress", "Egress"]}


def egress_policy(rules: list[Object]) -> Object:
    return {"podSelector": ALL_PODS, "policyTypes": ["Egress"], "egress": rules}


def ingress_policy(peers: list[Object]) -> Object:
    return {"podSelector": ALL_PODS, "policyTypes": ["Ingress"], "ingress": [{"from": peers}]}


def internet_policy(closed_addresses: Iterable[str]) -> Object:
    """Return the spec of the policy that allows connections to the internet."""
    return egress_policy([{"to": [{"ipBlock": block} for block in open_blocks(closed_addresses)]}])


def named_policies(
    egress: Iterable[Object], callers: Iterable[str], closed: Iterable[str]
) -> Iterator[tuple[str, Object]]:
    """Yield the names and specs of the policies of a tenant.

    `egress` are rules for the ports that are opened for it. `callers` are addresses that may connect to its pods: the
    process of the planes and the host's API server, which call the tenant's webhooks. `closed` are public addresses
    that its pods must not reach.
    """
    yield "tapestry-deny", denial_policy()
    yield "tapestry-own-ingress", own_pods_policy("Ingress")
    yield "tapestry-own-egress", own_pods_policy("Egress")
    yield "tapestry-internet", internet_policy(closed)
    if rules := list(egress):
        yield "tapestry-plane", egress_policy(rules)
    if peers := [address_peer(each) for each in sorted(set(callers))]:
        yield "tapestry-callers", ingress_policy(peers)
