"""Whether both sides are as they should be: what no change would bring to anybody's attention any more.

Controllers see to what changes, and to everything when they begin.  What slips through all the same is found by looking
at everything at once, in a `Picture` of both clusters, which is as good from caches as from lists:

    Twins        each pod that should run below has one twin, and it was made for that pod
    Orphans      whatever is ours below stands for something above
    Copies       what stands for something has of it what it should have
    NodeLeases   each virtual node has its Lease, and each Lease its node

What is ours below says what it stands for, in annotations that somebody may have changed; what proves it is its name.
A picture is of no single moment, so that what is found once may only be on its way: two sightings make a fault.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property, partial

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import physical_name, tokens_secret_name, virtual_node_name
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import (
    Object,
    is_deleting,
    key_of,
    name_of,
    namespace_of,
    object_named,
    uid_of,
    value_at,
)
from tapestry.kube.patches import owned_patch
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
from tapestry.syncer.topdown.services import desired_objects
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
from tapestry.syncer.translate.pods import is_excluded, twin_annotations
from tapestry.syncer.translate.references import ReferenceKind, projected_tokens, references
from tapestry.syncer.translate.services import service_key
from tapestry.syncer.translate.volumes import CSI_SECRET_FIELDS, is_bound, is_twin_of, twin_volume

SourceKeys = Callable[[Object], Sequence[str]]
"""What an object below says that it stands for, if it says so."""

TOKENS = "tokens"
"""In keys, beside the names of resources: the Secret with the tokens of a pod."""
UNRENEWED_LEASE_TIMEOUT = timedelta(minutes=5)
"""After how long a Lease that nobody renews may be one that nobody has."""


class Invariant(StrEnum):
    """What should hold."""

    TWINS = "Twins"
    ORPHANS = "Orphans"
    COPIES = "Copies"
    NODE_LEASES = "NodeLeases"


class ClusterSide(StrEnum):
    VIRTUAL = "virtual"
    PHYSICAL = "physical"


@dataclass(frozen=True, slots=True)
class Requeue:
    """A controller of the syncer, and the key that it would have to look at."""

    controller: str
    key: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be; two are equal if they are the same fault of the same object."""

    invariant: Invariant
    side: ClusterSide
    resource: Resource
    key: str
    message: str
    uid: str = ""
    requeue: Requeue | None = None
    """Whose business it is; where it is nobody's, the check sees to it."""
    obj: Object | None = field(default=None, compare=False)
    """What has to go or, with a `patch`, to be changed; as it was seen."""
    patch: Object | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Snapshot:
    """What there is of one binding.  Of a kind that is missing in `above` or `below` nothing is judged."""

    binding: Binding
    now: datetime
    nodes: Mapping[str, Object]
    """The virtual nodes of the binding, by name."""
    other_nodes: Collection[str]
    """The names of nodes of the virtual cluster that are not the binding's, as far as they are known."""
    pods: Mapping[str, Object]
    """By key, those on nodes that have a name like ours, with their status as `reduced`."""
    leases: Mapping[str, Object]
    """By the name of the node."""
    virtual_objects: Mapping[Resource, Mapping[str, Object]]
    """What may cross, by key; ConfigMaps and Secrets as `seen`."""
    physical_objects: Mapping[Resource, Sequence[Object]]
    """What is ours; ConfigMaps and Secrets as `seen`, of pods at least the metadata."""

    def twin_name_of(self, key: str) -> str:
        """The name below of what stands for `namespace/name`."""
        namespace, name = key.split("/", 1)
        return physical_name(self.binding.virtual_cluster, self.binding.uid, namespace, name)

    def copy_name(self, key: str) -> str:
        """The name below of what `secrets/team-a/password` or `tokens/team-a/web` is copied to."""
        kind, namespace, name = key.split("/", 2)
        make = tokens_secret_name if kind == TOKENS else physical_name
        return make(self.binding.virtual_cluster, self.binding.uid, namespace, name)

    def may_run(self, pod: Object) -> bool:
        """Whether the pod is one of ours that has a twin or may get one."""
        if pod["spec"]["nodeName"] not in self.nodes or is_pod_terminal(pod) or is_excluded(pod, self.binding):
            return False
        return mapped_uid(pod) is not None or not is_condition_false(pod, keys.ACCEPTED_CONDITION)

    @cached_property
    def dependencies(self) -> dict[str, bool]:
        """What pods need below, as in `secrets/team-a/password`; True where a twin is there that cannot do without."""
        found: dict[str, bool] = {}
        for key, pod in self.pods.items():
            if not self.may_run(pod):
                continue
            is_mapped = mapped_uid(pod) is not None
            for each in references(pod["spec"]):
                need = f"{each.kind}/{namespace_of(pod)}/{each.name}"
                found[need] = found.get(need, False) or (is_mapped and not each.optional)
            if projected_tokens(pod["spec"]):
                found[f"{TOKENS}/{key}"] = is_mapped
        return found

    def dependencies_of_kind(self, kind: str) -> dict[str, bool]:
        """What pods need of one kind."""
        return {key: must for key, must in self.dependencies.items() if key.startswith(f"{kind}/")}

    @cached_property
    def mounted_claims(self) -> frozenset[str]:
        """The keys of the claims that pods need."""
        return frozenset(need.partition("/")[2] for need in self.dependencies_of_kind(ReferenceKind.CLAIM))

    def should_run(self, pod: Object) -> bool:
        """Whether the pod has to have a twin now: nothing is known that it would have to wait for."""
        return self.may_run(pod) and not is_deleting(pod) and not is_condition_false(pod, keys.MAPPED_CONDITION)


def findings(snapshot: Snapshot) -> list[Finding]:
    """What is not as it should be."""
    return [
        *twin_findings(snapshot),
        *copy_findings(snapshot),
        *service_findings(snapshot),
        *claim_findings(snapshot),
        *volume_findings(snapshot),
        *node_lease_findings(snapshot),
    ]


def is_condition_false(pod: Object, type: str) -> bool:
    said = find_condition(pod["status"]["conditions"], type)
    return said is not None and said["status"] == "False"


def match_by_source(
    objects: Iterable[Object],
    source_keys: SourceKeys,
    expected_keys: Collection[str],
    physical_name_of: Callable[[str], str],
    is_proven: Callable[[str, Object], bool] = lambda _key, _obj: True,
) -> tuple[dict[str, Object], list[Object]]:
    """Which object stands for each of the `wanted` keys, and those that stand for none of them.

    As a rule each says what it stands for, no other says the same, and if need be something else proves it: then no
    name has to be computed, for names of thousands take their time.  Else names decide, whatever is said.
    """
    said: dict[str, list[Object]] = defaultdict(list)
    for obj in objects:
        said[next(iter(source_keys(obj)), "")].append(obj)
    if all(
        key in expected_keys
        and len(claimants) == 1
        and (is_proven(key, claimants[0]) or physical_name_of(key) == name_of(claimants[0]))
        for key, claimants in said.items()
    ):
        return {key: obj for key, (obj,) in said.items()}, []
    by_name = {name_of(obj): obj for claimants in said.values() for obj in claimants}
    names = {key: physical_name_of(key) for key in expected_keys}
    found = {key: by_name.pop(name) for key, name in names.items() if name in by_name}
    return found, list(by_name.values())


def orphan_finding(resource: Resource, obj: Object, source: str, requeue: Requeue | None) -> Finding:
    """Of something below that stands for nothing; `claim` is what it says."""
    if requeue is not None:
        message = f"it stands for {source}, which does not need it or is gone"
    else:
        says = f"what it says it stands for is {source}" if source else "it does not say what it stands for"
        message = f"it is ours, but nothing of ours has such a name; {says}"
    return Finding(Invariant.ORPHANS, ClusterSide.PHYSICAL, resource, key_of(obj), message, uid_of(obj), requeue, obj)


def orphan_findings(
    resource: Resource,
    objects: Iterable[Object],
    source_keys: SourceKeys,
    physical_name_of: Callable[[str], str],
    requeue_for: Callable[[str], Requeue],
) -> Iterator[Finding]:
    """Of `objects` that stand for nothing.  Under the name that fits what one says, its controller knows it."""
    for obj in objects:
        if not is_deleting(obj):
            claim = next(iter(source_keys(obj)), "")
            in_place = bool(claim) and physical_name_of(claim) == name_of(obj)
            yield orphan_finding(resource, obj, claim, requeue_for(claim) if in_place else None)


def unmarked_finding(invariant: Invariant, resource: Resource, obj: Object, source: str, patch: Object) -> Finding:
    """Of something below that lost the marks by which it is known; `patch` gives them back."""
    message = f"labels or annotations by which it is known to stand for {source} were changed there"
    return Finding(invariant, ClusterSide.PHYSICAL, resource, key_of(obj), message, uid_of(obj), obj=obj, patch=patch)


def missing_finding(resource: Resource, source: Object, message: str, requeue: Requeue) -> Finding:
    return Finding(Invariant.COPIES, ClusterSide.VIRTUAL, resource, key_of(source), message, uid_of(source), requeue)


def difference_finding(resource: Resource, obj: Object, source: str, requeue: Requeue) -> Finding:
    message = f"it is not as {source} says that it should be"
    return Finding(Invariant.COPIES, ClusterSide.PHYSICAL, resource, key_of(obj), message, uid_of(obj), requeue)


# -- pods


def twin_findings(snapshot: Snapshot) -> Iterator[Finding]:
    found, rest = match_by_source(
        snapshot.physical_objects[PODS],
        virtual_key,
        snapshot.pods,
        snapshot.twin_name_of,
        lambda key, twin: mapped_uid(snapshot.pods[key]) == uid_of(twin),
    )
    for key, pod in snapshot.pods.items():
        twin = found.get(key)
        if complaint := twin_problem(pod, twin, snapshot):
            yield Finding(Invariant.TWINS, ClusterSide.VIRTUAL, PODS, key, complaint, uid_of(pod), Requeue("pods", key))
        elif twin is not None and virtual_uid(twin) == uid_of(pod) and (patch := identity_patch(pod, twin, snapshot)):
            yield unmarked_finding(Invariant.TWINS, PODS, twin, key, patch)
    yield from orphan_findings(PODS, rest, virtual_key, snapshot.twin_name_of, partial(Requeue, "pods"))


def twin_problem(pod: Object, twin: Object | None, snapshot: Snapshot) -> str | None:
    """What is wrong between a pod and what has the name of its twin."""
    if twin is None:
        if not snapshot.should_run(pod):
            return None
        return "its twin is gone" if mapped_uid(pod) else "it has no twin"
    if is_deleting(twin):
        return None
    if virtual_uid(twin) != uid_of(pod):
        return f"the twin under its name, {key_of(twin)}, was made for another pod"
    if not is_pod_terminal(pod) and mapped_uid(pod) not in (None, uid_of(twin)):
        return f"its twin, {key_of(twin)}, is another one than it had"
    return None


def identity_patch(pod: Object, twin: Object, snapshot: Snapshot) -> Object:
    """What gives a twin back the marks by which it is known; empty where it has them."""
    labels, annotations = twin_labels(pod, snapshot.binding), twin_annotations(pod, snapshot.binding)
    marks = {
        field: {key: value for key, value in pairs.items() if key in CONSTANT_KEYS}
        for field, pairs in (("labels", labels), ("annotations", annotations))
    }
    return owned_patch({"metadata": twin["metadata"]}, {"metadata": marks})


# -- ConfigMaps, Secrets and tokens


def copy_findings(snapshot: Snapshot) -> Iterator[Finding]:
    for resource in (CONFIGMAPS, SECRETS):
        kept = secrets_of_volumes(snapshot) if resource is SECRETS else frozenset()
        wanted = snapshot.dependencies_of_kind(resource.plural)
        if resource is SECRETS:
            said = (
                key for copy in snapshot.physical_objects[SECRETS] if name_of(copy) in kept for key in source_key(copy)
            )
            mounted = dict.fromkeys((f"{SECRETS.plural}/{key}" for key in said), False)
            wanted = {**mounted, **wanted, **snapshot.dependencies_of_kind(TOKENS)}
        found, rest = match_by_source(snapshot.physical_objects[resource], copy_source_keys, wanted, snapshot.copy_name)
        for key, must in wanted.items():
            judge = check_tokens if key.startswith(f"{TOKENS}/") else check_copy
            yield from judge(snapshot, resource, key, found.get(key), must)
        rest = [copy for copy in rest if name_of(copy) not in kept]
        yield from orphan_findings(resource, rest, copy_source_keys, snapshot.copy_name, sweep_requeue)


def secrets_of_volumes(snapshot: Snapshot) -> frozenset[str]:
    """The names of the Secrets that volumes below need."""
    below = snapshot.physical_objects.get(PERSISTENT_VOLUMES, ())
    names = (value_at(volume, "spec", "csi", field, "name") for volume in below for field in CSI_SECRET_FIELDS)
    return frozenset(filter(None, names))


def copy_source_keys(copy: Object) -> list[str]:
    """What a copy, or a Secret with tokens, says that it stands for."""
    plural = CONFIGMAPS.plural if copy["kind"] == CONFIGMAPS.kind else SECRETS.plural
    return [f"{plural}/{key}" for key in source_key(copy)] or [f"{TOKENS}/{key}" for key in virtual_key(copy)]


def sweep_requeue(source: str) -> Requeue:
    """Who removes what nobody needs."""
    kind, namespace, name = source.split("/", 2)
    return Requeue("tokens", f"{namespace}/{name}") if kind == TOKENS else Requeue("unused-copies", namespace)


def check_copy(
    snapshot: Snapshot, resource: Resource, key: str, copy: Object | None, is_required: bool
) -> Iterator[Finding]:
    source, ask = snapshot.virtual_objects[resource].get(key.partition("/")[2]), Requeue("copies", key)
    if copy is None:
        if is_required and source is not None:
            yield missing_finding(resource, source, "a pod that runs below needs it, and there is no copy", ask)
    elif is_deleting(copy):
        return
    elif source is None:
        yield orphan_finding(resource, copy, key, ask)
    elif not is_current(copy, source, snapshot.binding):
        yield difference_finding(resource, copy, key, ask)


def check_tokens(
    snapshot: Snapshot, resource: Resource, key: str, secret: Object | None, is_required: bool
) -> Iterator[Finding]:
    pod_key = key.partition("/")[2]
    pod, ask = snapshot.pods[pod_key], Requeue("tokens", pod_key)
    if secret is None:
        if is_required:
            yield missing_finding(PODS, pod, "it has no tokens below", ask)
    elif virtual_uid(secret) != uid_of(pod) and not is_deleting(secret):
        yield difference_finding(resource, secret, key, ask)


# -- Services


def service_findings(snapshot: Snapshot) -> Iterator[Finding]:
    slices: dict[str, list[Object]] = defaultdict(list)
    for each in snapshot.virtual_objects[ENDPOINT_SLICES].values():
        for key in service_key(each):
            slices[key].append(each)
    kinds = (SERVICES, ENDPOINT_SLICES)
    there = {(resource, name_of(obj)): obj for resource in kinds for obj in snapshot.physical_objects[resource]}
    for key, service in snapshot.virtual_objects[SERVICES].items():
        ask = Requeue("services", key)
        for place, wanted in desired_objects(service, slices[key], snapshot.binding).items():
            existing = there.pop(place, None)
            if existing is None:
                yield missing_finding(SERVICES, service, f"{place[0].kind} {place[1]} is missing below", ask)
            elif owned_patch(existing, wanted) and not is_deleting(existing):
                yield difference_finding(place[0], existing, f"services/{key}", ask)
    for (resource, _), obj in there.items():
        if not is_deleting(obj):
            claim = next(iter(source_key(obj)), "")
            yield orphan_finding(resource, obj, claim, Requeue("services", claim) if claim else None)


# -- claims and volumes


def claim_findings(snapshot: Snapshot) -> Iterator[Finding]:
    found, rest = match_by_source(
        snapshot.physical_objects.get(PERSISTENT_VOLUME_CLAIMS, ()),
        source_key,
        snapshot.mounted_claims,
        snapshot.twin_name_of,
    )
    for key, claim in found.items():
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
        said = next(iter(source_key(volume)), "")
        claim, wanted = bound.get(name_of(volume), (said, None))
        ask = Requeue("volumes", claim) if claim else None
        if is_deleting(volume):
            continue
        if ask is None or claim not in snapshot.mounted_claims:
            yield orphan_finding(PERSISTENT_VOLUMES, volume, said, ask)
        elif wanted is not None and owned_patch(volume, wanted):
            yield difference_finding(PERSISTENT_VOLUMES, volume, claim, ask)


def bound_volumes(snapshot: Snapshot) -> Iterator[tuple[str, tuple[str, Object]]]:
    """By name, the volumes to have below, each with the key of its claim; of those that the picture shows above."""
    above = snapshot.virtual_objects.get(PERSISTENT_VOLUMES, {})
    for key, claim in snapshot.virtual_objects.get(PERSISTENT_VOLUME_CLAIMS, {}).items():
        volume = above.get(value_at(claim, "spec", "volumeName", default=""))
        if volume is not None and is_bound(claim, volume):
            wanted = twin_volume(claim, volume, snapshot.binding)
            yield name_of(wanted), (key, wanted)


# -- node leases


def node_lease_findings(snapshot: Snapshot) -> Iterator[Finding]:
    for name, node in snapshot.nodes.items():
        if name not in snapshot.leases and not is_deleting(node):
            message, ask = "the virtual node has no Lease: it will count as dead", Requeue("node-leases", name)
            yield Finding(Invariant.NODE_LEASES, ClusterSide.VIRTUAL, LEASES, name, message, uid_of(node), ask)
    for name, lease in snapshot.leases.items():
        if name not in snapshot.nodes and name not in snapshot.other_nodes and is_abandoned_lease(lease, snapshot):
            message = "there is no such node any more"
            yield Finding(
                Invariant.NODE_LEASES, ClusterSide.VIRTUAL, LEASES, key_of(lease), message, uid_of(lease), obj=lease
            )


def is_abandoned_lease(lease: Object, snapshot: Snapshot) -> bool:
    """Whether a Lease may have been one of ours, by its name and owner, and nobody renews it."""
    name, owners = name_of(lease), lease["metadata"].get("ownerReferences") or []
    is_a_nodes = bool(owners) and all((each["kind"], each["name"]) == ("Node", name) for each in owners)
    renewed = value_at(lease, "spec", "renewTime")
    is_silent = renewed is None or snapshot.now - parse_time(renewed) >= UNRENEWED_LEASE_TIMEOUT
    return is_a_nodes and is_silent and name.startswith(virtual_node_name(snapshot.binding.spec.cluster_id, ""))
