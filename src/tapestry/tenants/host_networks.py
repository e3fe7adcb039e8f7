"""NetworkPolicies of the host namespace of an isolated tenant.

They allow traffic between the tenant's own pods, to its DNS resolver, to the API of its plane, and to the internet, for
the pods for which the tenant has no policies itself. Private networks, metadata services, the host's API server and
other ports of the process of the planes stay out of reach of all pods; see `network_rules`.
"""

from collections.abc import Iterable, Iterator

from tapestry.apis.clusterbindings import Binding
from tapestry.kube.objects import Object
from tapestry.tenants.network_rules import (
    Destinations,
    Direction,
    api_rules,
    dns_rules,
    forbidden_ranges,
    public_blocks,
    range_peer,
    undecided_pods,
)
from tapestry.tenants.tenant_binding import ingress_suffix

ALL_PODS: Object = {}


def denial_policy() -> Object:
    """Return the spec of the policy that denies everything that no other policy allows."""
    return {"podSelector": ALL_PODS, "policyTypes": ["Ingress", "Egress"]}


def undecided_policy(binding: Binding, direction: Direction, rules: list[Object]) -> Object:
    """Return the spec of a policy for the pods for which the tenant has no policy of its own."""
    return {
        "podSelector": undecided_pods(binding, direction),
        "policyTypes": [direction],
        direction.lower(): rules,
    }


def own_pods_policy(binding: Binding, direction: Direction) -> Object:
    """Return the spec of a policy that allows traffic between the pods of a namespace."""
    peers = "from" if direction == "Ingress" else "to"
    return undecided_policy(binding, direction, [{peers: [{"podSelector": ALL_PODS}]}])


def callers_policy(callers: Iterable[str]) -> Object:
    """Return the spec of the policy that lets some addresses connect to all pods."""
    rule = {"from": [range_peer(each) for each in sorted(set(callers))]}
    return {"podSelector": ALL_PODS, "policyTypes": ["Ingress"], "ingress": [rule]}


def ingresses_policy(namespace: str) -> Object:
    """Return the spec of the policy that lets the owner's ingress controller connect to all pods.

    It does so for Ingresses of the tenant itself, so no policy of the tenant needs to allow it.
    """
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    return {"podSelector": ALL_PODS, "policyTypes": ["Ingress"], "ingress": [{"from": [peer]}]}


def named_policies(
    binding: Binding, destinations: Destinations, callers: Iterable[str]
) -> Iterator[tuple[str, Object]]:
    """Yield the names and specs of the policies of a tenant.

    `callers` are addresses that may connect to its pods: the process of the planes and the host's API server, which
    call the tenant's webhooks.
    """
    yield "tapestry-deny", denial_policy()
    yield "tapestry-own-ingress", own_pods_policy(binding, "Ingress")
    yield "tapestry-own-egress", own_pods_policy(binding, "Egress")
    internet = {"to": public_blocks(forbidden_ranges(binding, destinations))}
    yield "tapestry-internet", undecided_policy(binding, "Egress", [internet])
    if rules := [*api_rules(destinations), *dns_rules(destinations)]:
        yield "tapestry-plane", undecided_policy(binding, "Egress", rules)
    if addresses := list(callers):
        yield "tapestry-callers", callers_policy(addresses)
    if ingress_suffix(binding) and binding.host is not None and binding.host.ingress_namespace:
        yield "tapestry-ingresses", ingresses_policy(binding.host.ingress_namespace)
