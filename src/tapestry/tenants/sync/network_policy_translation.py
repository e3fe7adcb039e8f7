"""Twins of the NetworkPolicies of a tenant.

Policies only allow, so a twin must not allow more than the isolation of the tenant does (`network_rules`):

- Its peers are twins of the tenant's own pods. A selector of namespaces selects those of the plane.
- Blocks of addresses lack the ranges that pods of the tenant must not reach.
- A rule for all peers allows the tenant's pods, and all other addresses that are not in these ranges.

The API of the plane and the DNS of the tenant are outside its namespace. A rule leads there if it would in another
cluster: if it is for all peers, or names the pods of DNS in kube-system, or a block with their addresses.

A label of a pod's twin for each direction says that policies of the tenant decide (`decided_labels`), whether or not
these have twins.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import physical_name
from tapestry.kube.objects import Object, labels_of, name_of, namespace_of
from tapestry.kube.resources import NETWORK_POLICIES
from tapestry.kube.selectors import LabelSelector, label_selector
from tapestry.syncer.translate.metadata import source_metadata
from tapestry.syncer.translate.tenant_labels import twin_label_selector
from tapestry.tenants.network_rules import (
    DECIDED,
    DNS_PORT,
    Destinations,
    Direction,
    Range,
    allowed_block,
    api_rules,
    contains,
    dns_rules,
    forbidden_ranges,
    parsed_range,
    public_blocks,
)
from tapestry.tenants.sync.pod_selectors import own_selector
from tapestry.tenants.sync.twin_objects import NotSynced, NoTwin
from tapestry.tenants.tenant_binding import KUBERNETES_PORT, TenantAddresses

DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
PEERS: dict[Direction, str] = {"Ingress": "from", "Egress": "to"}
DNS_NAMESPACE, DNS_LABELS = "kube-system", {"k8s-app": "kube-dns"}
"""Namespace and labels of the pods of DNS in other clusters."""
DNS_PORT_NAMES = ("dns", "dns-tcp")
MAX_PEERS = 100
"""Maximum rules and peers of a policy in each direction: the nodes of the owner work on all of them."""


@dataclass(frozen=True)
class Surroundings:
    """Values besides its policy and the binding that a twin depends on."""

    destinations: Destinations
    addresses: TenantAddresses
    namespaces: Mapping[str, Mapping[str, str]]
    """Labels of the namespaces of the plane."""

    def selected_namespaces(self, selector: Object) -> list[str] | None:
        """Return the namespaces that a selector matches; None if it matches all."""
        if not selector.get("matchLabels") and not selector.get("matchExpressions"):
            return None
        matches = label_selector(selector).matches
        return [name for name, labels in self.namespaces.items() if matches(labels)]


def policy_types(policy: Object) -> list[Direction]:
    """Return the directions about which a policy decides."""
    spec = policy["spec"]
    given = spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    return [each for each in DIRECTIONS if each in given]


def peer_count(policy: Object, direction: Direction) -> int:
    """Return the number of rules and peers of a direction."""
    return sum(1 + len(rule.get(PEERS[direction]) or ()) for rule in policy["spec"].get(direction.lower()) or ())


class Selection(NamedTuple):
    """Pods and directions about which a policy decides."""

    pods: LabelSelector
    directions: tuple[Direction, ...]


def selection_of(policy: Object) -> Selection:
    return Selection(label_selector(policy["spec"].get("podSelector") or {}), tuple(policy_types(policy)))


def decided_labels(pod: Object, selections: Iterable[Selection]) -> dict[str, str]:
    """Return the labels of the twin of a pod for the directions about which policies of its namespace decide."""
    labels, found = labels_of(pod), set[Direction]()
    for each in selections:
        if not found.issuperset(each.directions) and each.pods.matches(labels):
            found.update(each.directions)
    return {DECIDED[each]: "true" for each in DIRECTIONS if each in found}


def desired_policy(policy: Object, binding: Binding, surroundings: Surroundings) -> Object:
    """Return the desired twin of a policy. Raises NoTwin."""
    if not binding.spec.sync.network_policies:
        raise NoTwin
    spec, types = policy["spec"], policy_types(policy)
    if any(peer_count(policy, each) > MAX_PEERS for each in types):
        raise NotSynced("TooManyPeers", f"spec: a policy may have {MAX_PEERS} rules and peers in the host cluster")
    rules = PolicyRules(policy, binding, surroundings)
    return {
        "apiVersion": NETWORK_POLICIES.api_version,
        "kind": NETWORK_POLICIES.kind,
        "metadata": {
            "name": physical_name(binding.virtual_cluster, binding.uid, namespace_of(policy) or "", name_of(policy)),
            "namespace": binding.spec.mount_namespace,
            **source_metadata(policy, binding),
        },
        "spec": {
            "podSelector": own_selector(spec.get("podSelector") or {}, policy, binding),
            "policyTypes": types,
            **{each.lower(): (list(rules.twins(each)) if each in types else None) or None for each in DIRECTIONS},
        },
    }


@dataclass(frozen=True)
class PolicyRules:
    """Rules of one policy."""

    policy: Object
    binding: Binding
    surroundings: Surroundings

    def twins(self, direction: Direction) -> Iterator[Object]:
        """Yield the rules of the twin for a direction."""
        forbidden = forbidden_ranges(self.binding, self.surroundings.destinations)
        for rule in self.policy["spec"].get(direction.lower()) or ():
            given, ports = rule.get(PEERS[direction]), rule.get("ports")
            if given:
                peers = [found for each in given if (found := self.peer(each, forbidden)) is not None]
            else:
                peers = [{"podSelector": twin_label_selector({}, self.binding, None)}, *public_blocks(forbidden)]
            if peers:  # a rule without peers would allow all
                yield {PEERS[direction]: peers, **({"ports": ports} if ports else {})}
            if direction == "Egress":
                yield from self.plane_rules(rule)

    def peer(self, peer: Object, forbidden: Sequence[Range]) -> Object | None:
        """Return a peer of the twin; None if none of its addresses is allowed."""
        block = peer.get("ipBlock")
        if block is not None:
            allowed = allowed_block(block.get("cidr"), block.get("except") or (), forbidden)
            return {"ipBlock": allowed} if allowed is not None else None
        pods, namespaces = peer.get("podSelector") or {}, peer.get("namespaceSelector")
        if namespaces is None:
            return {"podSelector": own_selector(pods, self.policy, self.binding)}
        selected = self.surroundings.selected_namespaces(namespaces)
        return {"podSelector": twin_label_selector(pods, self.binding, selected)}

    def plane_rules(self, rule: Object) -> Iterator[Object]:
        """Yield the rules for the API of the plane and the DNS of the tenant to which a rule leads."""
        known, own = self.surroundings.destinations, self.surroundings.addresses
        peers, ports = rule.get("to") or (), rule.get("ports") or ()
        if (
            known.api is not None
            and (not peers or has_block_with(peers, known.api.address, own.api))
            and any(covers(ports, "TCP", each) for each in (KUBERNETES_PORT, known.api.port))
        ):
            yield from api_rules(known)
        if known.dns is not None and (
            not peers or self.has_dns_pods(peers) or has_block_with(peers, known.dns.address, own.dns)
        ):
            protocols = [each for each in ("UDP", "TCP") if covers(ports, each, DNS_PORT, DNS_PORT_NAMES)]
            yield from dns_rules(known, protocols)

    def has_dns_pods(self, peers: Iterable[Object]) -> bool:
        """Return whether one of the peers includes the pods of DNS."""
        labels = self.surroundings.namespaces.get(DNS_NAMESPACE, {})
        return any(
            label_selector(each.get("namespaceSelector")).matches(labels)
            and label_selector(each.get("podSelector") or {}).matches(DNS_LABELS)
            for each in peers
        )


def has_block_with(peers: Iterable[Object], *addresses: str) -> bool:
    """Return whether the block of a peer has one of the addresses."""
    ranges = [found for each in addresses if each and (found := parsed_range(each)) is not None]
    for block in (each["ipBlock"] for each in peers if each.get("ipBlock") is not None):
        outer, excepted = parsed_range(block.get("cidr")), [parsed_range(each) for each in block.get("except") or ()]
        for each in ranges:
            if outer is not None and contains(outer, each) and not any(e and contains(e, each) for e in excepted):
                return True
    return False


def covers(ports: Iterable[Object], protocol: str, number: int, names: Iterable[str] = ()) -> bool:
    """Return whether a rule with these ports is also for a port."""
    ports = list(ports)
    return not ports or any(
        (each.get("protocol") or "TCP") == protocol and is_port(each, number, names) for each in ports
    )


def is_port(given: Object, number: int, names: Iterable[str]) -> bool:
    first = given.get("port")
    if isinstance(first, int):
        return first <= number <= (given.get("endPort") or first)
    return first is None or first in names


def policy_limitation(policy: Object, binding: Binding, destinations: Destinations) -> NotSynced | None:
    """Return the first block of a policy that leads nowhere; None if there is none."""
    forbidden = forbidden_ranges(binding, destinations)
    for direction in policy_types(policy):
        field = direction.lower()
        for number, rule in enumerate(policy["spec"].get(field) or ()):
            for index, peer in enumerate(rule.get(PEERS[direction]) or ()):
                block = peer.get("ipBlock")
                if block is None or allowed_block(block.get("cidr"), block.get("except") or (), forbidden) is not None:
                    continue
                path = f"spec.{field}[{number}].{PEERS[direction]}[{index}].ipBlock"
                message = f"{path}: the host cluster allows pods of this cluster none of these addresses"
                return NotSynced("AddressNotAllowed", message)
    return None


def uses_namespaces(policy: Object) -> bool:
    """Return whether the twin of a policy depends on the labels of namespaces."""
    return any(
        peer.get("namespaceSelector") is not None
        for direction in DIRECTIONS
        for rule in policy["spec"].get(direction.lower()) or ()
        for peer in rule.get(PEERS[direction]) or ()
    )
