"""Consistency invariants between both clusters, and the findings that violate them.

Controllers react to changes, and to everything at their start. What they miss is found by comparing a `Snapshot` of
both clusters, which may be taken from caches or from lists:

    Twins        each pod that should run has one twin, and it was created for that pod
    Orphans      each of our objects in the physical cluster has a source
    Copies       each copy has the content of its source
    NodeLeases   each virtual node has its Lease, and each Lease its node

Our objects name their source in annotations, which may have been changed; only the object name proves it. A snapshot is
not atomic, so a single finding may be transient: two in a row are a fault.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property, partial

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.excluded_pods import is_excluded
from tapestry.apis.names import physical_name, tokens_secret_name, virtual_node_name
from tapestry.kube.conditions import is_condition_false
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, namespace_of, object_named, uid_of, value_at
from tapestry.kube.patches import owned_patch
from tapestry.kube.pod_references import CSI_SECRET_FIELDS, ReferenceKind, projected_tokens, references
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import (
    CONFIGMAPS,
    ENDPOINT_SLICES,
    LEASES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)
from tapestry.kube.times import parse_time
from tapestry.syncer.translate.copies import is_current
from tapestry.syncer.translate.metadata import (
    CONSTANT_KEYS,
    source_key,
    source_metadata,
    twin_labels,
    virtual_key,
    virtual_uid,
)
from tapestry.syncer.translate.pod_status import mapped_uid
from tapestry.syncer.translate.pods import twin_annotations
from tapestry.syncer.translate.services import desired_objects, service_key
from tapestry.syncer.translate.volumes import is_bound, is_twin_of, twin_volume

SourceKeys = Callable[[Object], Sequence[str]]
"""Return the key of the source that a physical object names, if it names one."""

TOKENS = "tokens"
"""Kind in keys, beside the names of resources: the Secret with the tokens of a pod."""
UNRENEWED_LEASE_TIMEOUT = timedelta(minutes=5)
"""Time after which an unrenewed Lease is considered abandoned."""


class Invariant(StrEnum):
    TWINS = "Twins"
    ORPHANS = "Orphans"
    COPIES = "Copies"
    NODE_LEASES = "NodeLeases"


class ClusterSide(StrEnum):
    VIRTUAL = "virtual"
    PHYSICAL = "physical"


@dataclass(frozen=True, slots=True)
class Requeue:
    """A controller of the syncer and the key to requeue there."""

    controller: str
    key: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A violated invariant; two are equal if they are the same fault of the same object."""

    invariant: Invariant
    side: ClusterSide
    resource: Resource
    key: str
    message: str
    uid: str = ""
    requeue: Requeue | None = None
    """The responsible controller and key; without one, the check repairs the object itself."""
    obj: Object | None = field(default=None, compare=False)
    """The object to delete or, with a `patch`, to change."""
    patch: Object | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Snapshot:
    """Objects of one binding in both clusters. Kinds that are missing in the mappings are not checked."""

    binding: Binding
    now: datetime
    nodes: Mapping[str, Object]
    """Virtual nodes of the binding, by name."""
    other_nodes: Collection[str]
    """Names of known nodes of the virtual cluster that are not the binding's."""
    pods: Mapping[str, Object]
    """Pods on nodes with our prefix, by key, with a reduced status."""
    leases: Mapping[str, Object]
    """Leases by the name of their node."""
    virtual_objects: Mapping[Resource, Mapping[str, Object]]
    """Virtual objects that may be synced, by key; ConfigMaps and Secrets as digest views."""
    physical_objects: Mapping[Resource, Sequence[Object]]
    """Our physical objects; ConfigMaps and Secrets as digest views, pods with at least their metadata."""

    def twin_name_of(self, key: str) -> str:
        """Return the physical name of the object for `namespace/name`."""
        namespace, name = key.split("/", 1)
        return physical_name(self.binding.virtual_cluster, self.binding.uid, namespace, name)

    def copy_name(self, key: str) -> str:
        """Return the physical name of the copy of `secrets/team-a/password` or `tokens/team-a/web`."""
        kind, namespace, name = key.split("/", 2)
        make = tokens_secret_name if kind == TOKENS else physical_name
        return make(self.binding.virtual_cluster, self.binding.uid, namespace, name)

    def may_run(self, pod: Object) -> bool:
        """Return whether the pod is one of ours that has a twin or may get one."""
        if pod["spec"]["nodeName"] not in self.nodes or is_pod_terminal(pod) or is_excluded(pod, self.binding):
            return False
        return mapped_uid(pod) is not None or not is_condition_false(pod, keys.ACCEPTED_CONDITION)

    @cached_property
    def dependencies(self) -> dict[str, bool]:
        """Dependencies of pods, as in `secrets/team-a/password`; True if an existing twin requires it."""
        needed: dict[str, bool] = {}
        for key, pod in self.pods.items():
            if not self.may_run(pod):
                continue
            is_mapped = mapped_uid(pod) is not None
            for each in references(pod):
                dependency = f"{each.kind}/{namespace_of(pod)}/{each.name}"
                needed[dependency] = needed.get(dependency, False) or (is_mapped and not each.optional)
            if projected_tokens(pod["spec"]):
                needed[f"{TOKENS}/{key}"] = is_mapped
        return needed

    def dependencies_of_kind(self, kind: str) -> dict[str, bool]:
        return {key: must for key, must in self.dependencies.items() if key.startswith(f"{kind}/")}

    @cached_property
    def mounted_claims(self) -> frozenset[str]:
        """Keys of the claims that pods mount."""
        return frozenset(dependency.partition("/")[2] for dependency in self.dependencies_of_kind(ReferenceKind.CLAIM))

    def should_run(self, pod: Object) -> bool:
        """Return whether the pod must have a twin now: it waits for nothing that is known."""
        return self.may_run(pod) and not is_deleting(pod) and not is_condition_false(pod, keys.MAPPED_CONDITION)


def findings(snapshot: Snapshot) -> list[Finding]:
    """Return all violations of invariants."""
    return [
        *twin_findings(snapshot),
        *copy_findings(snapshot),
        *service_findings(snapshot),
        *claim_findings(snapshot),
        *volume_findings(snapshot),
        *node_lease_findings(snapshot),
    ]


def match_by_source(
    objects: Iterable[Object],
    source_keys: SourceKeys,
    expected_keys: Collection[str],
    physical_name_of: Callable[[str], str],
    is_proven: Callable[[str, Object], bool] = lambda _key, _obj: True,
) -> tuple[dict[str, Object], list[Object]]:
    """Return the object of each expected key, and the objects of none of them.

    Usually each object names its source, no other names the same, and if necessary `is_proven` confirms it. Then no
    physical names have to be computed, which is slow for thousands of objects. Otherwise only the names decide.
    """
    by_claim: dict[str, list[Object]] = defaultdict(list)
    for obj in objects:
        by_claim[next(iter(source_keys(obj)), "")].append(obj)
    if all(
        key in expected_keys
        and len(claimants) == 1
        and (is_proven(key, claimants[0]) or physical_name_of(key) == name_of(claimants[0]))
        for key, claimants in by_claim.items()
    ):
        return {key: obj for key, (obj,) in by_claim.items()}, []
    by_name = {name_of(obj): obj for claimants in by_claim.values() for obj in claimants}
    names = {key: physical_name_of(key) for key in expected_keys}
    matched = {key: by_name.pop(name) for key, name in names.items() if name in by_name}
    return matched, list(by_name.values())


def orphan_finding(resource: Resource, obj: Object, source: str, requeue: Requeue | None) -> Finding:
    """Return the finding of a physical object without a source; `source` is what it names."""
    if requeue is not None:
        message = f"it is a copy of {source}, which does not need it or does not exist"
    else:
        claim = f"it names {source} as its source" if source else "it names no source"
        message = f"it has our labels, but no object of ours has this name; {claim}"
    return Finding(Invariant.ORPHANS, ClusterSide.PHYSICAL, resource, key_of(obj), message, uid_of(obj), requeue, obj)


def orphan_findings(
    resource: Resource,
    objects: Iterable[Object],
    source_keys: SourceKeys,
    physical_name_of: Callable[[str], str],
    requeue_for: Callable[[str], Requeue],
) -> Iterator[Finding]:
    """Yield findings of `objects` without a source. If the name matches its source, a controller handles the object."""
    for obj in objects:
        if not is_deleting(obj):
            claim = next(iter(source_keys(obj)), "")
            in_place = bool(claim) and physical_name_of(claim) == name_of(obj)
            yield orphan_finding(resource, obj, claim, requeue_for(claim) if in_place else None)


def unmarked_finding(invariant: Invariant, resource: Resource, obj: Object, source: str, patch: Object) -> Finding:
    """Return the finding of a physical object with changed identifying metadata; `patch` restores it."""
    message = f"labels or annotations that identify it as the copy of {source} were changed"
    return Finding(invariant, ClusterSide.PHYSICAL, resource, key_of(obj), message, uid_of(obj), obj=obj, patch=patch)


def missing_finding(resource: Resource, source: Object, message: str, requeue: Requeue) -> Finding:
    return Finding(Invariant.COPIES, ClusterSide.VIRTUAL, resource, key_of(source), message, uid_of(source), requeue)


def difference_finding(resource: Resource, obj: Object, source: str, requeue: Requeue) -> Finding:
    message = f"it differs from {source}"
    return Finding(Invariant.COPIES, ClusterSide.PHYSICAL, resource, key_of(obj), message, uid_of(obj), requeue)


# -- pods


def twin_findings(snapshot: Snapshot) -> Iterator[Finding]:
    matched, rest = match_by_source(
        snapshot.physical_objects[PODS],
        virtual_key,
        snapshot.pods,
        snapshot.twin_name_of,
        lambda key, twin: mapped_uid(snapshot.pods[key]) == uid_of(twin),
    )
    for key, pod in snapshot.pods.items():
        twin = matched.get(key)
        if problem := twin_problem(pod, twin, snapshot):
            yield Finding(Invariant.TWINS, ClusterSide.VIRTUAL, PODS, key, problem, uid_of(pod), Requeue("pods", key))
        elif twin is not None and virtual_uid(twin) == uid_of(pod) and (patch := identity_patch(pod, twin, snapshot)):
            yield unmarked_finding(Invariant.TWINS, PODS, twin, key, patch)
    yield from orphan_findings(PODS, rest, virtual_key, snapshot.twin_name_of, partial(Requeue, "pods"))


def twin_problem(pod: Object, twin: Object | None, snapshot: Snapshot) -> str | None:
    """Return what is wrong between a pod and the object with the name of its twin."""
    if twin is None:
        if not snapshot.should_run(pod):
            return None
        return "its twin is gone" if mapped_uid(pod) else "it has no twin"
    if is_deleting(twin):
        return None
    if virtual_uid(twin) != uid_of(pod):
        return f"the twin under its name, {key_of(twin)}, was created for another pod"
    if not is_pod_terminal(pod) and mapped_uid(pod) not in (None, uid_of(twin)):
        return f"its twin, {key_of(twin)}, is not the one that it had"
    return None


def identity_patch(pod: Object, twin: Object, snapshot: Snapshot) -> Object:
    """Return the patch that restores the identifying metadata of a twin; empty if there is nothing to do."""
    labels, annotations = twin_labels(pod, snapshot.binding), twin_annotations(pod, snapshot.binding)
    identity = {
        field: {key: value for key, value in pairs.items() if key in CONSTANT_KEYS}
        for field, pairs in (("labels", labels), ("annotations", annotations))
    }
    return owned_patch({"metadata": twin["metadata"]}, {"metadata": identity})


# -- ConfigMaps, Secrets and tokens


def copy_findings(snapshot: Snapshot) -> Iterator[Finding]:
    for resource in (CONFIGMAPS, SECRETS):
        mounted = secrets_of_volumes(snapshot) if resource is SECRETS else frozenset()
        expected = snapshot.dependencies_of_kind(resource.plural)
        if resource is SECRETS:
            copies = (copy for copy in snapshot.physical_objects[SECRETS] if name_of(copy) in mounted)
            optional = {f"{SECRETS.plural}/{key}": False for copy in copies for key in source_key(copy)}
            expected = {**optional, **expected, **snapshot.dependencies_of_kind(TOKENS)}
        objects = snapshot.physical_objects[resource]
        matched, rest = match_by_source(objects, copy_source_keys, expected, snapshot.copy_name)
        for key, is_required in expected.items():
            check = check_tokens if key.startswith(f"{TOKENS}/") else check_copy
            yield from check(snapshot, resource, key, matched.get(key), is_required)
        rest = [copy for copy in rest if name_of(copy) not in mounted]
        yield from orphan_findings(resource, rest, copy_source_keys, snapshot.copy_name, sweep_requeue)


def secrets_of_volumes(snapshot: Snapshot) -> frozenset[str]:
    """Return the names of the Secrets that twin volumes need."""
    volumes = snapshot.physical_objects.get(PERSISTENT_VOLUMES, ())
    names = (value_at(volume, "spec", "csi", field, "name") for volume in volumes for field in CSI_SECRET_FIELDS)
    return frozenset(filter(None, names))


def copy_source_keys(copy: Object) -> list[str]:
    """Return the source that a copy or a token Secret names."""
    plural = CONFIGMAPS.plural if copy["kind"] == CONFIGMAPS.kind else SECRETS.plural
    return [f"{plural}/{key}" for key in source_key(copy)] or [f"{TOKENS}/{key}" for key in virtual_key(copy)]


def sweep_requeue(source: str) -> Requeue:
    """Return the controller that deletes unused copies."""
    kind, namespace, name = source.split("/", 2)
    return Requeue("tokens", f"{namespace}/{name}") if kind == TOKENS else Requeue("unused-copies", namespace)


def check_copy(
    snapshot: Snapshot, resource: Resource, key: str, copy: Object | None, is_required: bool
) -> Iterator[Finding]:
    source, requeue = snapshot.virtual_objects[resource].get(key.partition("/")[2]), Requeue("copies", key)
    if copy is None:
        if is_required and source is not None:
            yield missing_finding(resource, source, "a running pod needs it, but it has no copy", requeue)
    elif is_deleting(copy):
        return
    elif source is None:
        yield orphan_finding(resource, copy, key, requeue)
    elif not is_current(copy, source, snapshot.binding):
        yield difference_finding(resource, copy, key, requeue)


def check_tokens(
    snapshot: Snapshot, resource: Resource, key: str, secret: Object | None, is_required: bool
) -> Iterator[Finding]:
    pod_key = key.partition("/")[2]
    pod, requeue = snapshot.pods[pod_key], Requeue("tokens", pod_key)
    if secret is None:
        if is_required:
            yield missing_finding(PODS, pod, "its token Secret is missing in the physical cluster", requeue)
    elif virtual_uid(secret) != uid_of(pod) and not is_deleting(secret):
        yield difference_finding(resource, secret, key, requeue)


# -- Services


def service_findings(snapshot: Snapshot) -> Iterator[Finding]:
    slices: dict[str, list[Object]] = defaultdict(list)
    for each in snapshot.virtual_objects[ENDPOINT_SLICES].values():
        for key in service_key(each):
            slices[key].append(each)
    kinds = (SERVICES, ENDPOINT_SLICES)
    remaining = {(resource, name_of(obj)): obj for resource in kinds for obj in snapshot.physical_objects[resource]}
    for key, service in snapshot.virtual_objects[SERVICES].items():
        requeue = Requeue("services", key)
        for ref, desired in desired_objects(service, slices[key], snapshot.binding).items():
            existing = remaining.pop(ref, None)
            if existing is None:
                yield missing_finding(SERVICES, service, f"its twin, {ref[0].kind} {ref[1]}, is missing", requeue)
            elif owned_patch(existing, desired) and not is_deleting(existing):
                yield difference_finding(ref[0], existing, f"services/{key}", requeue)
    for (resource, _), obj in remaining.items():
        if not is_deleting(obj):
            claim = next(iter(source_key(obj)), "")
            yield orphan_finding(resource, obj, claim, Requeue("services", claim) if claim else None)


# -- claims and volumes


def claim_findings(snapshot: Snapshot) -> Iterator[Finding]:
    matched, rest = match_by_source(
        snapshot.physical_objects.get(PERSISTENT_VOLUME_CLAIMS, ()),
        source_key,
        snapshot.mounted_claims,
        snapshot.twin_name_of,
    )
    for key, claim in matched.items():
        source = snapshot.virtual_objects.get(PERSISTENT_VOLUME_CLAIMS, {}).get(key)
        if is_deleting(claim):
            continue
        namespace, _, name = key.partition("/")
        if patch := owned_patch(claim, {"metadata": source_metadata(object_named(name, namespace), snapshot.binding)}):
            yield unmarked_finding(Invariant.COPIES, PERSISTENT_VOLUME_CLAIMS, claim, key, patch)
        elif source is not None and not is_twin_of(claim, source):
            yield difference_finding(PERSISTENT_VOLUME_CLAIMS, claim, key, Requeue("volumes", key))
    yield from orphan_findings(
        PERSISTENT_VOLUME_CLAIMS, rest, source_key, snapshot.twin_name_of, partial(Requeue, "volumes")
    )


def volume_findings(snapshot: Snapshot) -> Iterator[Finding]:
    bound = dict(bound_volumes(snapshot))
    for volume in snapshot.physical_objects.get(PERSISTENT_VOLUMES, ()):
        named = next(iter(source_key(volume)), "")
        claim, desired = bound.get(name_of(volume), (named, None))
        requeue = Requeue("volumes", claim) if claim else None
        if is_deleting(volume):
            continue
        if requeue is None or claim not in snapshot.mounted_claims:
            yield orphan_finding(PERSISTENT_VOLUMES, volume, named, requeue)
        elif desired is not None and owned_patch(volume, desired):
            yield difference_finding(PERSISTENT_VOLUMES, volume, claim, requeue)


def bound_volumes(snapshot: Snapshot) -> Iterator[tuple[str, tuple[str, Object]]]:
    """Yield name, claim key and desired twin of the virtual volumes in the snapshot that are bound to a claim."""
    volumes = snapshot.virtual_objects.get(PERSISTENT_VOLUMES, {})
    for key, claim in snapshot.virtual_objects.get(PERSISTENT_VOLUME_CLAIMS, {}).items():
        volume = volumes.get(value_at(claim, "spec", "volumeName", default=""))
        if volume is not None and is_bound(claim, volume):
            desired = twin_volume(claim, volume, snapshot.binding)
            yield name_of(desired), (key, desired)


# -- node leases


def node_lease_findings(snapshot: Snapshot) -> Iterator[Finding]:
    for name, node in snapshot.nodes.items():
        if name not in snapshot.leases and not is_deleting(node):
            message, requeue = "the virtual node has no Lease and will be marked as dead", Requeue("node-leases", name)
            yield Finding(Invariant.NODE_LEASES, ClusterSide.VIRTUAL, LEASES, name, message, uid_of(node), requeue)
    for name, lease in snapshot.leases.items():
        if name not in snapshot.nodes and name not in snapshot.other_nodes and is_abandoned_lease(lease, snapshot):
            message = "its node does not exist"
            yield Finding(
                Invariant.NODE_LEASES, ClusterSide.VIRTUAL, LEASES, key_of(lease), message, uid_of(lease), obj=lease
            )


def is_abandoned_lease(lease: Object, snapshot: Snapshot) -> bool:
    """Return whether a Lease looks like ours, by its name and owner, and is not renewed."""
    name, owners = name_of(lease), lease["metadata"].get("ownerReferences") or []
    is_node_lease = bool(owners) and all((each["kind"], each["name"]) == ("Node", name) for each in owners)
    renewed = value_at(lease, "spec", "renewTime")
    is_expired = renewed is None or snapshot.now - parse_time(renewed) >= UNRENEWED_LEASE_TIMEOUT
    return is_node_lease and is_expired and name.startswith(virtual_node_name(snapshot.binding.spec.cluster_id, ""))
