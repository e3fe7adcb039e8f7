"""Controller of the NetworkPolicies of a tenant, and the labels of pods that they decide about."""

from collections.abc import Callable

from tapestry.apis.clusterbindings import Binding
from tapestry.controller import Controller
from tapestry.controller.controller import own_namespace
from tapestry.kube.objects import Object, key_of, labels_of, name_of, namespace_of
from tapestry.kube.resources import NAMESPACES, NETWORK_POLICIES
from tapestry.syncer.components import Syncer
from tapestry.syncer.views import VirtualPod
from tapestry.tenants.leased_nodes import HOST_HAS_LEASED_NODES, MESSAGE, LeasedNodes
from tapestry.tenants.network_rules import Destinations
from tapestry.tenants.sync.network_policy_translation import (
    Surroundings,
    decided_labels,
    desired_policy,
    policy_limitation,
    policy_types,
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
        self._policies = syncer.manager.informer(NETWORK_POLICIES) if is_synced else None
        self._pods = syncer.caches.virtual_pods
        if self._policies is not None:
            self._policies.store.add_index(NAMESPACE_INDEX, own_namespace)
            self._pods.store.add_index(NAMESPACE_INDEX, pod_namespace)

    def of_pod(self, pod: Object) -> dict[str, str]:
        if self._policies is None:
            return {}
        return decided_labels(pod, self._policies.store.iter_by(NAMESPACE_INDEX, namespace_of(pod) or ""))

    def requeue_pods(self, requeue_pod: Callable[[str], None]) -> None:
        """Call `requeue_pod` with the keys of pods whose labels may have changed."""

        def on_change(old: Object | None, new: Object | None) -> None:
            policy = new or old
            if policy is not None and selection(old) != selection(new):
                for pod in self._pods.store.by(NAMESPACE_INDEX, namespace_of(policy) or ""):
                    requeue_pod(pod.key)

        if self._policies is not None:
            self._policies.on_change(on_change)


def pod_namespace(pod: VirtualPod) -> list[str]:
    return [namespace_of(pod.object) or ""]


def selection(policy: Object | None) -> object:
    """Return what decides for which pods a policy decides about which directions."""
    return None if policy is None else (policy["spec"].get("podSelector"), policy_types(policy))


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

    def surroundings() -> Surroundings:
        found = namespaces.store.list() if namespaces is not None else ()
        return Surroundings(destinations, addresses, {name_of(each): labels_of(each) for each in found})

    def desired(policy: Object, binding: Binding) -> Object:
        twin = desired_policy(policy, binding, surroundings())
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

        controller.watch(namespaces, users, when=labels_changed, after=NAMESPACES_DELAY)
    leased_nodes.on_change(controller.resync)
    return controller


def labels_changed(old: Object | None, new: Object | None) -> bool:
    return old is None or new is None or labels_of(old) != labels_of(new)
