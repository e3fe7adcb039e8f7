"""Controller of the NetworkPolicies of a tenant, and the labels of pods that they decide about."""

from collections import defaultdict
from collections.abc import Callable, Mapping

from tapestry.apis.clusterbindings import Binding
from tapestry.controller import Controller
from tapestry.kube.objects import Object, key_of, labels_of, name_of, namespace_of
from tapestry.kube.resources import NAMESPACES, NETWORK_POLICIES
from tapestry.syncer.components import Syncer
from tapestry.syncer.views import VirtualPod
from tapestry.tenants.leased_nodes import HOST_HAS_LEASED_NODES, MESSAGE, LeasedNodes
from tapestry.tenants.network_rules import Destinations
from tapestry.tenants.sync.network_policy_translation import (
    Selection,
    Surroundings,
    decided_labels,
    desired_policy,
    policy_limitation,
    selection_of,
    uses_namespaces,
)
from tapestry.tenants.sync.pod_selectors import with_exact_selector
from tapestry.tenants.sync.twin_objects import NotSynced, TwinKind, wire_twin_kind
from tapestry.tenants.tenant_binding import TenantAddresses

NAMESPACE_INDEX = "network-policies"
NAMESPACES_DELAY = 1.0
"""Seconds that changes of namespaces wait for others before policies are compared with them."""


class PolicyLabels:
    """Labels of the twins of pods for which policies of the tenant decide what is allowed."""

    def __init__(self, syncer: Syncer, *, is_synced: bool) -> None:
        self._selections: defaultdict[str, dict[str, Selection]] = defaultdict(dict)
        """By namespace and name of the policy."""
        self._pods = syncer.caches.virtual_pods
        self._requeue_pod: Callable[[str], None] = lambda _: None
        if is_synced:
            self._pods.store.add_index(NAMESPACE_INDEX, pod_namespace)
            syncer.manager.informer(NETWORK_POLICIES).on_change(self._on_change)

    def of_pod(self, pod: Object) -> dict[str, str]:
        return decided_labels(pod, self._selections.get(namespace_of(pod) or "", {}).values())

    def requeue_pods(self, requeue_pod: Callable[[str], None]) -> None:
        """Call `requeue_pod` from now on with the keys of pods whose labels may have changed."""
        self._requeue_pod = requeue_pod

    def _on_change(self, old: Object | None, new: Object | None) -> None:
        policy = new or old
        assert policy is not None
        namespace, name = namespace_of(policy) or "", name_of(policy)
        before, after = self._selections[namespace].pop(name, None), selection_of(new) if new is not None else None
        if after is not None:
            self._selections[namespace][name] = after
        elif not self._selections[namespace]:
            del self._selections[namespace]
        if before != after:
            selectors = [each.pods for each in (before, after) if each is not None]
            for pod in self._pods.store.by(NAMESPACE_INDEX, namespace):
                if any(each.matches(labels_of(pod.object)) for each in selectors):
                    self._requeue_pod(pod.key)


def pod_namespace(pod: VirtualPod) -> list[str]:
    return [namespace_of(pod.object) or ""]


def wire_network_policies(
    syncer: Syncer,
    destinations: Destinations,
    addresses: TenantAddresses,
    leased_nodes: LeasedNodes,
    *,
    is_synced: bool,
) -> Controller:
    """Add the controller of NetworkPolicies to the syncer of a tenant."""
    namespaces = syncer.manager.informer(NAMESPACES) if is_synced else None

    labels: dict[str, Mapping[str, str]] = {}
    surroundings = Surroundings(destinations, addresses, labels)

    def desired(policy: Object, binding: Binding) -> Object:
        twin = desired_policy(policy, binding, surroundings)
        if leased_nodes:
            raise NotSynced(HOST_HAS_LEASED_NODES, MESSAGE)
        return twin

    def limitation(policy: Object, binding: Binding) -> NotSynced | None:
        return policy_limitation(policy, binding, destinations)

    kind = TwinKind(NETWORK_POLICIES, desired, with_allocated=with_exact_selector("podSelector"), limitation=limitation)
    controller = wire_twin_kind(syncer, "network-policies", kind, is_synced=is_synced)
    if namespaces is not None:
        policies = syncer.manager.informer(NETWORK_POLICIES).store

        def users(_: Object) -> list[str]:
            return [key_of(each) for each in policies.list() if uses_namespaces(each)]

        def on_namespace_change(old: Object | None, new: Object | None) -> None:
            if new is not None:
                labels[name_of(new)] = labels_of(new)
            elif old is not None:
                labels.pop(name_of(old), None)

        namespaces.on_change(on_namespace_change)
        controller.watch(namespaces, users, when=labels_changed, after=NAMESPACES_DELAY)
    leased_nodes.on_change(controller.resync)
    return controller


def labels_changed(old: Object | None, new: Object | None) -> bool:
    return old is None or new is None or labels_of(old) != labels_of(new)
