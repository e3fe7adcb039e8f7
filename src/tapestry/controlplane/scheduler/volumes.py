"""Volume constraints of pods: nodes that can reach their volumes, and claims to bind. Pure.

A bound claim restricts the pod to nodes that can access its volume. A claim that waits for its first consumer is bound
for the selected node: to an existing volume, or to one that a provisioner creates for that node.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tapestry.controlplane.scheduler.cache import NodeInfo
from tapestry.kube.objects import (
    Object,
    annotations_of,
    is_deleting,
    is_owned_by,
    key_of,
    labels_of,
    name_of,
    namespace_of,
    uid_of,
    value_at,
)
from tapestry.kube.quantity import parse_quantity
from tapestry.kube.selectors import EVERY_NODE, NodeSelector, label_selector, node_selector

SELECTED_NODE = "volume.kubernetes.io/selected-node"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
ZONE_LABELS = {
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Labels that restrict a volume to a zone or region, with the current label of nodes."""

UNBOUND_IMMEDIATE_CLAIMS = "pod has unbound immediate PersistentVolumeClaims"
NO_AVAILABLE_VOLUME = "node(s) didn't find available persistent volumes to bind"
VOLUME_NODE_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
MISSING_VOLUME = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
VOLUME_ZONE_CONFLICT = "node(s) had no available volume zone"
EXCLUSIVE_CLAIM_IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)

Get = Callable[[str], Object | None]


class UnresolvableClaim(Exception):
    """No node is feasible because of a claim. The message contains the reason."""


@dataclass(frozen=True)
class StorageLister:
    """Lookup functions for claims, volumes and storage classes."""

    claim: Get
    volume: Get
    volumes_of_class: Callable[[str], Sequence[Object]]
    storage_class: Get
    claim_users: Callable[[str], Sequence[str]]
    """Keys of pods on nodes that use a claim."""


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """Actions for a pod's claims before it can be bound to a node."""

    static_bindings: tuple[tuple[Object, Object], ...] = ()
    """Existing volumes with the claims to bind to them."""
    dynamic_provisions: tuple[Object, ...] = ()
    """Claims for which a volume must be provisioned."""


@dataclass(frozen=True, slots=True)
class VolumeTopology:
    """Nodes and zones from which a volume is accessible."""

    node_affinity: NodeSelector
    zones: tuple[tuple[str, frozenset[str]], ...]

    def is_in_zone(self, node_info: NodeInfo) -> bool:
        if not any(label in node_info.labels for label in ZONE_LABELS):
            return True
        return all(
            node_info.labels.get(label, node_info.labels.get(ZONE_LABELS[label])) in values  #
            for label, values in self.zones
        )


@dataclass(frozen=True, slots=True)
class VolumePlan:
    """Constraints that a pod's claims impose on its node."""

    bound_volumes: tuple[VolumeTopology, ...] = ()
    has_missing_volume: bool = False
    unbound_claims: tuple[tuple[Object, Object, tuple[Object, ...]], ...] = ()
    """Claims to bind, the smallest first, with their storage class and candidate volumes."""
    is_claim_in_use: bool = False
    """True if another pod uses a ReadWriteOncePod claim of this pod."""

    def rejection_reasons(self, node_info: NodeInfo) -> tuple[str, ...]:
        if self.is_claim_in_use:
            return (EXCLUSIVE_CLAIM_IN_USE,)
        reasons = []
        if not all(each.node_affinity.matches(node_info.node) for each in self.bound_volumes):
            reasons.append(VOLUME_NODE_CONFLICT)
        if self.unbound_claims and self.pod_volumes(node_info) is None:
            reasons.append(NO_AVAILABLE_VOLUME)
        if self.has_missing_volume and not reasons:
            reasons.append(MISSING_VOLUME)
        if not reasons and not all(each.is_in_zone(node_info) for each in self.bound_volumes):
            reasons.append(VOLUME_ZONE_CONFLICT)
        return tuple(reasons)

    def pod_volumes(self, node_info: NodeInfo) -> PodVolumes | None:
        """Return the actions for that node, or None if the claims cannot be bound there."""
        bound: list[tuple[Object, Object]] = []
        provisioned = []
        for claim, storage_class, volumes in self.unbound_claims:
            selected = annotations_of(claim).get(SELECTED_NODE)
            if selected is not None and selected != node_info.name:
                return None
            taken = {name_of(volume) for volume, _ in bound}
            volume = (
                None
                if selected
                else best_volume(claim, (each for each in volumes if name_of(each) not in taken), node_info)
            )
            if volume is not None:
                bound.append((volume, claim))
            elif can_provision(storage_class, node_info):
                provisioned.append(claim)
            else:
                return None
        return PodVolumes(tuple(bound), tuple(provisioned))


NO_VOLUMES = VolumePlan()


def volume_plan_of(pod: Object, storage: StorageLister) -> VolumePlan:
    """Return the constraints of a pod's claims. Raises UnresolvableClaim if no node is feasible."""
    claims = list(claims_of(pod, storage))
    if not claims:
        return NO_VOLUMES
    topologies, unbound, has_missing = [], [], False
    for claim in claims:
        if is_bound(claim):
            volume = storage.volume(claim["spec"]["volumeName"])
            has_missing = has_missing or volume is None
            if volume is not None:
                topologies.append(volume_topology(volume))
            continue
        storage_class = storage.storage_class(storage_class_of(claim)) if storage_class_of(claim) else None
        is_delayed = value_at(storage_class, "volumeBindingMode") == "WaitForFirstConsumer"
        if storage_class is None or not is_delayed or value_at(claim, "spec", "volumeName"):
            raise UnresolvableClaim(UNBOUND_IMMEDIATE_CLAIMS)
        unbound.append((claim, storage_class, tuple(storage.volumes_of_class(storage_class_of(claim)))))
    unbound.sort(key=lambda each: requested_storage(each[0]))
    return VolumePlan(tuple(topologies), has_missing, tuple(unbound), is_in_use(pod, claims, storage))


def claim_names(pod: Object) -> Iterable[tuple[str, bool]]:
    """Yield the names of its claims, and whether each is ephemeral."""
    for volume in value_at(pod, "spec", "volumes", default=()):
        if name := value_at(volume, "persistentVolumeClaim", "claimName"):
            yield name, False
        elif volume.get("ephemeral") is not None:
            yield f"{name_of(pod)}-{volume['name']}", True


def claims_of(pod: Object, storage: StorageLister) -> Iterable[Object]:
    for name, is_ephemeral in claim_names(pod):
        claim = storage.claim(f"{namespace_of(pod)}/{name}")
        if claim is None and is_ephemeral:
            raise UnresolvableClaim(
                f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
            )
        if claim is None:
            raise UnresolvableClaim(f'persistentvolumeclaim "{name}" not found')
        if value_at(claim, "status", "phase") == "Lost":
            volume = value_at(claim, "spec", "volumeName", default="")
            raise UnresolvableClaim(f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{volume}"')
        if is_deleting(claim):
            raise UnresolvableClaim(f'persistentvolumeclaim "{name}" is being deleted')
        if is_ephemeral and not is_owned_by(claim, pod):
            raise UnresolvableClaim(
                f"PVC {key_of(claim)} was not created for pod {key_of(pod)} (pod is not owner)",
            )
        yield claim


def is_bound(claim: Object) -> bool:
    is_complete = BIND_COMPLETED in annotations_of(claim) or value_at(claim, "status", "phase") == "Bound"
    return bool(value_at(claim, "spec", "volumeName")) and is_complete


def is_in_use(pod: Object, claims: Iterable[Object], storage: StorageLister) -> bool:
    """Return whether another pod uses a ReadWriteOncePod claim."""
    return any(
        "ReadWriteOncePod" in (value_at(each, "spec", "accessModes") or ())
        and any(user != key_of(pod) for user in storage.claim_users(key_of(each)))
        for each in claims
    )


def storage_class_of(obj: Object) -> str:
    old: str | None = annotations_of(obj).get("volume.beta.kubernetes.io/storage-class")
    return old if old is not None else str(value_at(obj, "spec", "storageClassName", default=""))


def requested_storage(claim: Object) -> int:
    return parse_quantity(value_at(claim, "spec", "resources", "requests", "storage", default="0")).nano


def volume_topology(volume: Object) -> VolumeTopology:
    required = value_at(volume, "spec", "nodeAffinity", "required")
    zones = tuple(
        (label, frozenset(value.split("__")))
        for label, value in labels_of(volume).items()
        if label in ZONE_LABELS  #
    )
    return VolumeTopology(node_selector(required) if required is not None else EVERY_NODE, zones)


def can_provision(storage_class: Object, node_info: NodeInfo) -> bool:
    if storage_class.get("provisioner") in (None, "", NO_PROVISIONER):
        return False
    allowed = storage_class.get("allowedTopologies") or ()
    return not allowed or any(
        all(node_info.labels.get(each["key"]) in each["values"] for each in term.get("matchLabelExpressions") or ())
        for term in allowed
    )


def best_volume(claim: Object, volumes: Iterable[Object], node_info: NodeInfo) -> Object | None:
    """Return the volume that is prebound to the claim, or else the smallest that satisfies it."""
    reachable = [each for each in volumes if volume_topology(each).node_affinity.matches(node_info.node)]
    for each in reachable:
        if is_prebound_to(each, claim):
            return each
    free = [each for each in reachable if is_volume_free(each) and satisfies_claim(each, claim)]
    return min(free, key=lambda each: (capacity_of(each), name_of(each)), default=None)


def is_prebound_to(volume: Object, claim: Object) -> bool:
    reference = value_at(volume, "spec", "claimRef", default={})
    return (
        reference.get("name") == name_of(claim)
        and reference.get("namespace") == namespace_of(claim)
        and reference.get("uid") in (None, "", uid_of(claim))
    )


def is_volume_free(volume: Object) -> bool:
    return (
        value_at(volume, "spec", "claimRef") is None
        and not is_deleting(volume)
        and value_at(volume, "status", "phase") == "Available"
    )


def capacity_of(volume: Object) -> int:
    return parse_quantity(value_at(volume, "spec", "capacity", "storage", default="0")).nano


def satisfies_claim(volume: Object, claim: Object) -> bool:
    volume_spec, claim_spec = volume["spec"], claim["spec"]
    selector = claim_spec.get("selector")
    return (
        capacity_of(volume) >= requested_storage(claim)
        and set(claim_spec.get("accessModes") or ()) <= set(volume_spec.get("accessModes") or ())
        and claim_spec.get("volumeMode", "Filesystem") == volume_spec.get("volumeMode", "Filesystem")
        and (selector is None or label_selector(selector).matches(labels_of(volume)))
    )


# -- patches


def claim_ref_patch(claim: Object) -> Object:
    reference: Mapping[str, str | None] = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": namespace_of(claim),
        "name": name_of(claim),
        "uid": uid_of(claim),
    }
    return {"metadata": {"annotations": {BOUND_BY_CONTROLLER: "yes"}}, "spec": {"claimRef": reference}}


def selected_node_patch(node: str) -> Object:
    return {"metadata": {"annotations": {SELECTED_NODE: node}}}
