"""Volume constraints of pods: nodes that can reach their volumes, and claims to bind. Pure.

A bound claim restricts the pod to nodes that can access its volume. A claim that waits for its first consumer is bound
for the selected node: to an existing volume, or to one that a provisioner creates for that node.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tapestry.controlplane.scheduler.cache import NodeInfo
from tapestry.controlplane.volume_matching import (
    NO_PROVISIONER,
    SELECTED_NODE,
    best_volume,
    claim_names,
    is_bound,
    is_candidate,
    requested_storage,
    storage_class_of,
    waits_for_consumer,
)
from tapestry.kube.objects import (
    Object,
    annotations_of,
    is_deleting,
    is_owned_by,
    key_of,
    labels_of,
    name_of,
    namespace_of,
    value_at,
)
from tapestry.kube.selectors import EVERY_NODE, NodeSelector, node_selector

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
TOO_MANY_VOLUMES = "node(s) exceed max volume count"
RESOLVABLE_REASONS = ((EXCLUSIVE_CLAIM_IN_USE,), (TOO_MANY_VOLUMES,))
"""Reasons that preemption can remove."""

Get = Callable[[str], Object | None]


class UnresolvableClaim(Exception):
    """No node is feasible because of a claim. The message contains the reason."""


@dataclass(frozen=True)
class StorageLister:
    """Lookup functions for claims, volumes, storage classes and the CSI drivers of nodes."""

    claim: Get
    volume: Get
    volumes_of_class: Callable[[str], Sequence[Object]]
    storage_class: Get
    csi_node: Get
    attachments: Callable[[str], Iterable[Object]]
    """VolumeAttachments of a node."""
    claim_users: Callable[[str], Collection[str]]
    """Keys of pods on nodes that use a claim."""


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """Actions for a pod's claims before it can be bound to a node."""

    static_bindings: tuple[tuple[Object, Object], ...] = ()
    """Existing volumes with the claims to bind to them."""
    dynamic_provisions: tuple[Object, ...] = ()
    """Claims for which a volume must be provisioned."""


class Attachment(NamedTuple):
    """A volume that a CSI driver attaches to a node."""

    driver: str
    handle: str


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
    exclusive_claims: tuple[str, ...] = ()
    """Keys of its ReadWriteOncePod claims."""
    attachments: frozenset[Attachment] = frozenset()
    """Volumes of CSI drivers, which can limit their number per node."""
    pod_key: str = ""
    storage: StorageLister | None = None

    def rejection_reasons(self, node_info: NodeInfo) -> tuple[str, ...]:
        if self.is_claim_in_use():
            return (EXCLUSIVE_CLAIM_IN_USE,)
        if self.exceeds_limit(node_info):
            return (TOO_MANY_VOLUMES,)
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

    def is_claim_in_use(self) -> bool:
        """Return whether another pod uses a ReadWriteOncePod claim of this pod."""
        return self.storage is not None and any(
            user != self.pod_key for claim in self.exclusive_claims for user in self.storage.claim_users(claim)
        )

    def exceeds_limit(self, node_info: NodeInfo) -> bool:
        """Return whether a driver could not attach the pod's volumes in addition to those of other pods."""
        if self.storage is None or not self.attachments:
            return False
        limits = volume_limits(self.storage.csi_node(node_info.name))
        if not any(each.driver in limits for each in self.attachments):
            return False
        attached = {
            attachment
            for pod_info in node_info.pods.values()
            for key in pod_info.claims
            if (attachment := attachment_of(self.storage.claim(key), self.storage)) is not None
        }
        # like in Kubernetes, a volume that is still attached to the node counts even if only this pod uses it
        occupied = Counter(each.driver for each in attached | set(attached_volumes(node_info.name, self.storage)))
        added = Counter(each.driver for each in self.attachments - attached)
        return any(occupied[driver] + added[driver] > limits[driver] for driver in added if driver in limits)

    def pod_volumes(self, node_info: NodeInfo) -> PodVolumes | None:
        """Return the actions for that node, or None if the claims cannot be bound there."""
        bound: list[tuple[Object, Object]] = []
        provisioned = []
        for claim, storage_class, volumes in self.unbound_claims:
            selected = annotations_of(claim).get(SELECTED_NODE)
            if selected is not None and selected != node_info.name:
                return None
            taken = {name_of(volume) for volume, _ in bound}
            untaken = [each for each in volumes if name_of(each) not in taken]
            volume = None if selected else best_volume(claim, untaken, untaken, partial(is_reachable, node_info))
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
        is_delayed = waits_for_consumer(storage_class)
        if storage_class is None or not is_delayed or value_at(claim, "spec", "volumeName"):
            raise UnresolvableClaim(UNBOUND_IMMEDIATE_CLAIMS)
        volumes = storage.volumes_of_class(storage_class_of(claim))
        unbound.append((claim, storage_class, tuple(each for each in volumes if is_candidate(each, claim))))
    unbound.sort(key=lambda each: requested_storage(each[0]))
    exclusive = tuple(key_of(each) for each in claims if "ReadWriteOncePod" in (each["spec"].get("accessModes") or ()))
    attachments = frozenset(each for claim in claims if (each := attachment_of(claim, storage)) is not None)
    return VolumePlan(
        tuple(topologies), has_missing, tuple(unbound), exclusive, attachments, pod_key=key_of(pod), storage=storage
    )


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


def attachment_of(claim: Object | None, storage: StorageLister) -> Attachment | None:
    """Return the CSI volume of a claim, or a placeholder if it is not provisioned yet."""
    if claim is None:
        return None
    volume = storage.volume(value_at(claim, "spec", "volumeName", default=""))
    if volume is not None:
        csi = value_at(volume, "spec", "csi")
        return Attachment(csi["driver"], csi["volumeHandle"]) if csi else None
    provisioner = value_at(storage.storage_class(storage_class_of(claim)), "provisioner")
    return Attachment(provisioner, f"claim {key_of(claim)}") if provisioner not in (None, "", NO_PROVISIONER) else None


def attached_volumes(node: str, storage: StorageLister) -> Iterable[Attachment]:
    """Yield the CSI volumes that VolumeAttachments assign to a node, also those that no pod uses any more."""
    for each in storage.attachments(node):
        volume = storage.volume(value_at(each, "spec", "source", "persistentVolumeName", default=""))
        csi = value_at(volume, "spec", "csi")
        if csi and each["spec"].get("attacher"):
            yield Attachment(each["spec"]["attacher"], csi["volumeHandle"])


def volume_limits(csi_node: Object | None) -> Mapping[str, int]:
    """Return the maximum number of volumes by driver."""
    counts = {
        each["name"]: value_at(each, "allocatable", "count")
        for each in value_at(csi_node, "spec", "drivers", default=())
    }
    return {driver: count for driver, count in counts.items() if count is not None}


def volume_topology(volume: Object) -> VolumeTopology:
    required = value_at(volume, "spec", "nodeAffinity", "required")
    zones = tuple(
        (label, frozenset(value.split("__")))
        for label, value in labels_of(volume).items()
        if label in ZONE_LABELS  #
    )
    return VolumeTopology(node_selector(required) if required is not None else EVERY_NODE, zones)


def is_reachable(node_info: NodeInfo, volume: Object) -> bool:
    return volume_topology(volume).node_affinity.matches(node_info.node)


def can_provision(storage_class: Object, node_info: NodeInfo) -> bool:
    if storage_class.get("provisioner") in (None, "", NO_PROVISIONER):
        return False
    allowed = storage_class.get("allowedTopologies") or ()
    return not allowed or any(
        all(node_info.labels.get(each["key"]) in each["values"] for each in term.get("matchLabelExpressions") or ())
        for term in allowed
    )


def selected_node_patch(node: str) -> Object:
    return {"metadata": {"annotations": {SELECTED_NODE: node}}}
