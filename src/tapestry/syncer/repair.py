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
from tapestry.apis.names import physical_name, tokens_name, virtual_node_name
from tapestry.kube.conditions import find
from tapestry.kube.objects import (
    Object,
    is_deleting,
    key_of,
    name_of,
    named,
    namespace_of,
    uid_of,
    value_at,
)
from tapestry.kube.patches import owned_patch
from tapestry.kube.pods import is_over
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
from tapestry.syncer.topdown.services import wanted_below
from tapestry.syncer.translate.copies import is_current
from tapestry.syncer.translate.meta import CONSTANT, copied, source_key, twin_labels, virtual_key, virtual_uid
from tapestry.syncer.translate.pod_status import mapped_uid
from tapestry.syncer.translate.pods import is_left_alone, twin_annotations
from tapestry.syncer.translate.references import Referent, references, tokens
from tapestry.syncer.translate.services import service_key
from tapestry.syncer.translate.volumes import SECRET_FIELDS, is_bound, is_of, twin_volume

Claims = Callable[[Object], Sequence[str]]
"""What an object below says that it stands for, if it says so."""

TOKENS = "tokens"
"""In keys, beside the names of resources: the Secret with the tokens of a pod."""
SILENCE = timedelta(minutes=5)
"""After how long a Lease that nobody renews may be one that nobody has."""


class Invariant(StrEnum):
    """What should hold."""

    TWINS = "Twins"
    ORPHANS = "Orphans"
    COPIES = "Copies"
    NODE_LEASES = "NodeLeases"


class Side(StrEnum):
    VIRTUAL = "virtual"
    PHYSICAL = "physical"


@dataclass(frozen=True, slots=True)
class Ask:
    """A controller of the syncer, and the key that it would have to look at."""

    controller: str
    key: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be; two are equal if they are the same fault of the same object."""

    invariant: Invariant
    side: Side
    resource: Resource
    key: str
    message: str
    uid: str = ""
    ask: Ask | None = None
    """Whose business it is; where it is nobody's, the check sees to it."""
    obj: Object | None = field(default=None, compare=False)
    """What has to go or, with a `patch`, to be changed; as it was seen."""
    patch: Object | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Picture:
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
    above: Mapping[Resource, Mapping[str, Object]]
    """What may cross, by key; ConfigMaps and Secrets as `seen`."""
    below: Mapping[Resource, Sequence[Object]]
    """What is ours; ConfigMaps and Secrets as `seen`, of pods at least the metadata."""

    def name_below(self, key: str) -> str:
        """The name below of what stands for `namespace/name`."""
        namespace, name = key.split("/", 1)
        return physical_name(self.binding.virtual_cluster, self.binding.uid, namespace, name)

    def copy_name(self, key: str) -> str:
        """The name below of what `secrets/team-a/password` or `tokens/team-a/web` is copied to."""
        kind, namespace, name = key.split("/", 2)
        make = tokens_name if kind == TOKENS else physical_name
        return make(self.binding.virtual_cluster, self.binding.uid, namespace, name)

    def may_run(self, pod: Object) -> bool:
        """Whether the pod is one of ours that has a twin or may get one."""
        if pod["spec"]["nodeName"] not in self.nodes or is_over(pod) or is_left_alone(pod, self.binding):
            return False
        return mapped_uid(pod) is not None or not is_denied(pod, keys.ACCEPTED)

    @cached_property
    def needs(self) -> dict[str, bool]:
        """What pods need below, as in `secrets/team-a/password`; True where a twin is there that cannot do without."""
        found: dict[str, bool] = {}
        for key, pod in self.pods.items():
            if not self.may_run(pod):
                continue
            is_mapped = mapped_uid(pod) is not None
            for each in references(pod["spec"]):
                need = f"{each.kind}/{namespace_of(pod)}/{each.name}"
                found[need] = found.get(need, False) or (is_mapped and not each.optional)
            if tokens(pod["spec"]):
                found[f"{TOKENS}/{key}"] = is_mapped
        return found

    def needed(self, kind: str) -> dict[str, bool]:
        """What pods need of one kind."""
        return {key: must for key, must in self.needs.items() if key.startswith(f"{kind}/")}

    @cached_property
    def mounted(self) -> frozenset[str]:
        """The keys of the claims that pods need."""
        return frozenset(need.partition("/")[2] for need in self.needed(Referent.CLAIM))

    def should_run(self, pod: Object) -> bool:
        """Whether the pod has to have a twin now: nothing is known that it would have to wait for."""
        return self.may_run(pod) and not is_deleting(pod) and not is_denied(pod, keys.MAPPED)


def findings(picture: Picture) -> list[Finding]:
    """What is not as it should be."""
    return [
        *twins(picture),
        *copies(picture),
        *services(picture),
        *claims(picture),
        *volumes(picture),
        *node_leases(picture),
    ]


def is_denied(pod: Object, type: str) -> bool:
    said = find(pod["status"]["conditions"], type)
    return said is not None and said["status"] == "False"


def matched(
    objects: Iterable[Object],
    claims: Claims,
    wanted: Collection[str],
    name: Callable[[str], str],
    is_proven: Callable[[str, Object], bool] = lambda _key, _obj: True,
) -> tuple[dict[str, Object], list[Object]]:
    """Which object stands for each of the `wanted` keys, and those that stand for none of them.

    As a rule each says what it stands for, no other says the same, and if need be something else proves it: then no
    name has to be computed, for names of thousands take their time.  Else names decide, whatever is said.
    """
    said: dict[str, list[Object]] = defaultdict(list)
    for obj in objects:
        said[next(iter(claims(obj)), "")].append(obj)
    if all(
        key in wanted and len(claimants) == 1 and (is_proven(key, claimants[0]) or name(key) == name_of(claimants[0]))
        for key, claimants in said.items()
    ):
        return {key: obj for key, (obj,) in said.items()}, []
    by_name = {name_of(obj): obj for claimants in said.values() for obj in claimants}
    names = {key: name(key) for key in wanted}
    found = {key: by_name.pop(name) for key, name in names.items() if name in by_name}
    return found, list(by_name.values())


def orphan(resource: Resource, obj: Object, claim: str, ask: Ask | None) -> Finding:
    """Of something below that stands for nothing; `claim` is what it says."""
    if ask is not None:
        message = f"it stands for {claim}, which does not need it or is gone"
    else:
        says = f"what it says it stands for is {claim}" if claim else "it does not say what it stands for"
        message = f"it is ours, but nothing of ours has such a name; {says}"
    return Finding(Invariant.ORPHANS, Side.PHYSICAL, resource, key_of(obj), message, uid_of(obj), ask, obj)


def orphans(
    resource: Resource,
    objects: Iterable[Object],
    claims: Claims,
    name: Callable[[str], str],
    ask: Callable[[str], Ask],
) -> Iterator[Finding]:
    """Of `objects` that stand for nothing.  Under the name that fits what one says, its controller knows it."""
    for obj in objects:
        if not is_deleting(obj):
            claim = next(iter(claims(obj)), "")
            in_place = bool(claim) and name(claim) == name_of(obj)
            yield orphan(resource, obj, claim, ask(claim) if in_place else None)


def unmarked(invariant: Invariant, resource: Resource, obj: Object, source: str, patch: Object) -> Finding:
    """Of something below that lost the marks by which it is known; `patch` gives them back."""
    message = f"labels or annotations by which it is known to stand for {source} were changed there"
    return Finding(invariant, Side.PHYSICAL, resource, key_of(obj), message, uid_of(obj), obj=obj, patch=patch)


def missing(resource: Resource, source: Object, what: str, ask: Ask) -> Finding:
    return Finding(Invariant.COPIES, Side.VIRTUAL, resource, key_of(source), what, uid_of(source), ask)


def differs(resource: Resource, obj: Object, source: str, ask: Ask) -> Finding:
    message = f"it is not as {source} says that it should be"
    return Finding(Invariant.COPIES, Side.PHYSICAL, resource, key_of(obj), message, uid_of(obj), ask)


# -- pods


def twins(picture: Picture) -> Iterator[Finding]:
    found, rest = matched(
        picture.below[PODS],
        virtual_key,
        picture.pods,
        picture.name_below,
        lambda key, twin: mapped_uid(picture.pods[key]) == uid_of(twin),
    )
    for key, pod in picture.pods.items():
        twin = found.get(key)
        if complaint := complaint_about(pod, twin, picture):
            yield Finding(Invariant.TWINS, Side.VIRTUAL, PODS, key, complaint, uid_of(pod), Ask("pods", key))
        elif twin is not None and virtual_uid(twin) == uid_of(pod) and (patch := marks_patch(pod, twin, picture)):
            yield unmarked(Invariant.TWINS, PODS, twin, key, patch)
    yield from orphans(PODS, rest, virtual_key, picture.name_below, partial(Ask, "pods"))


def complaint_about(pod: Object, twin: Object | None, picture: Picture) -> str | None:
    """What is wrong between a pod and what has the name of its twin."""
    if twin is None:
        if not picture.should_run(pod):
            return None
        return "its twin is gone" if mapped_uid(pod) else "it has no twin"
    if is_deleting(twin):
        return None
    if virtual_uid(twin) != uid_of(pod):
        return f"the twin under its name, {key_of(twin)}, was made for another pod"
    if not is_over(pod) and mapped_uid(pod) not in (None, uid_of(twin)):
        return f"its twin, {key_of(twin)}, is another one than it had"
    return None


def marks_patch(pod: Object, twin: Object, picture: Picture) -> Object:
    """What gives a twin back the marks by which it is known; empty where it has them."""
    labels, annotations = twin_labels(pod, picture.binding), twin_annotations(pod, picture.binding)
    marks = {
        field: {key: value for key, value in pairs.items() if key in CONSTANT}
        for field, pairs in (("labels", labels), ("annotations", annotations))
    }
    return owned_patch({"metadata": twin["metadata"]}, {"metadata": marks})


# -- ConfigMaps, Secrets and tokens


def copies(picture: Picture) -> Iterator[Finding]:
    for resource in (CONFIGMAPS, SECRETS):
        kept = named_by_volumes(picture) if resource is SECRETS else frozenset()
        wanted = picture.needed(resource.plural)
        if resource is SECRETS:
            said = (key for copy in picture.below[SECRETS] if name_of(copy) in kept for key in source_key(copy))
            mounted = dict.fromkeys((f"{SECRETS.plural}/{key}" for key in said), False)
            wanted = {**mounted, **wanted, **picture.needed(TOKENS)}
        found, rest = matched(picture.below[resource], stands_for, wanted, picture.copy_name)
        for key, must in wanted.items():
            judge = of_tokens if key.startswith(f"{TOKENS}/") else of_copy
            yield from judge(picture, resource, key, found.get(key), must)
        rest = [copy for copy in rest if name_of(copy) not in kept]
        yield from orphans(resource, rest, stands_for, picture.copy_name, sweeper)


def named_by_volumes(picture: Picture) -> frozenset[str]:
    """The names of the Secrets that volumes below need."""
    below = picture.below.get(PERSISTENT_VOLUMES, ())
    names = (value_at(volume, "spec", "csi", field, "name") for volume in below for field in SECRET_FIELDS)
    return frozenset(filter(None, names))


def stands_for(copy: Object) -> list[str]:
    """What a copy, or a Secret with tokens, says that it stands for."""
    plural = CONFIGMAPS.plural if copy["kind"] == CONFIGMAPS.kind else SECRETS.plural
    return [f"{plural}/{key}" for key in source_key(copy)] or [f"{TOKENS}/{key}" for key in virtual_key(copy)]


def sweeper(claim: str) -> Ask:
    """Who removes what nobody needs."""
    kind, namespace, name = claim.split("/", 2)
    return Ask("tokens", f"{namespace}/{name}") if kind == TOKENS else Ask("unused-copies", namespace)


def of_copy(picture: Picture, resource: Resource, key: str, copy: Object | None, must: bool) -> Iterator[Finding]:
    source, ask = picture.above[resource].get(key.partition("/")[2]), Ask("copies", key)
    if copy is None:
        if must and source is not None:
            yield missing(resource, source, "a pod that runs below needs it, and there is no copy", ask)
    elif is_deleting(copy):
        return
    elif source is None:
        yield orphan(resource, copy, key, ask)
    elif not is_current(copy, source, picture.binding):
        yield differs(resource, copy, key, ask)


def of_tokens(picture: Picture, resource: Resource, key: str, secret: Object | None, must: bool) -> Iterator[Finding]:
    pod_key = key.partition("/")[2]
    pod, ask = picture.pods[pod_key], Ask("tokens", pod_key)
    if secret is None:
        if must:
            yield missing(PODS, pod, "it has no tokens below", ask)
    elif virtual_uid(secret) != uid_of(pod) and not is_deleting(secret):
        yield differs(resource, secret, key, ask)


# -- Services


def services(picture: Picture) -> Iterator[Finding]:
    slices: dict[str, list[Object]] = defaultdict(list)
    for each in picture.above[ENDPOINT_SLICES].values():
        for key in service_key(each):
            slices[key].append(each)
    kinds = (SERVICES, ENDPOINT_SLICES)
    there = {(resource, name_of(obj)): obj for resource in kinds for obj in picture.below[resource]}
    for key, service in picture.above[SERVICES].items():
        ask = Ask("services", key)
        for place, wanted in wanted_below(service, slices[key], picture.binding).items():
            existing = there.pop(place, None)
            if existing is None:
                yield missing(SERVICES, service, f"{place[0].kind} {place[1]} is missing below", ask)
            elif owned_patch(existing, wanted) and not is_deleting(existing):
                yield differs(place[0], existing, f"services/{key}", ask)
    for (resource, _), obj in there.items():
        if not is_deleting(obj):
            claim = next(iter(source_key(obj)), "")
            yield orphan(resource, obj, claim, Ask("services", claim) if claim else None)


# -- claims and volumes


def claims(picture: Picture) -> Iterator[Finding]:
    found, rest = matched(
        picture.below.get(PERSISTENT_VOLUME_CLAIMS, ()), source_key, picture.mounted, picture.name_below
    )
    for key, claim in found.items():
        source = picture.above.get(PERSISTENT_VOLUME_CLAIMS, {}).get(key)
        if is_deleting(claim):
            continue
        namespace, _, name = key.partition("/")
        if patch := owned_patch(claim, {"metadata": copied(named(name, namespace), picture.binding)}):
            yield unmarked(Invariant.COPIES, PERSISTENT_VOLUME_CLAIMS, claim, key, patch)
        elif source is not None and not is_of(claim, source):
            yield differs(PERSISTENT_VOLUME_CLAIMS, claim, key, Ask("volumes", key))
    yield from orphans(PERSISTENT_VOLUME_CLAIMS, rest, source_key, picture.name_below, partial(Ask, "volumes"))


def volumes(picture: Picture) -> Iterator[Finding]:
    bound = dict(bound_volumes(picture))
    for volume in picture.below.get(PERSISTENT_VOLUMES, ()):
        said = next(iter(source_key(volume)), "")
        claim, wanted = bound.get(name_of(volume), (said, None))
        ask = Ask("volumes", claim) if claim else None
        if is_deleting(volume):
            continue
        if ask is None or claim not in picture.mounted:
            yield orphan(PERSISTENT_VOLUMES, volume, said, ask)
        elif wanted is not None and owned_patch(volume, wanted):
            yield differs(PERSISTENT_VOLUMES, volume, claim, ask)


def bound_volumes(picture: Picture) -> Iterator[tuple[str, tuple[str, Object]]]:
    """By name, the volumes to have below, each with the key of its claim; of those that the picture shows above."""
    above = picture.above.get(PERSISTENT_VOLUMES, {})
    for key, claim in picture.above.get(PERSISTENT_VOLUME_CLAIMS, {}).items():
        volume = above.get(value_at(claim, "spec", "volumeName", default=""))
        if volume is not None and is_bound(claim, volume):
            wanted = twin_volume(claim, volume, picture.binding)
            yield name_of(wanted), (key, wanted)


# -- node leases


def node_leases(picture: Picture) -> Iterator[Finding]:
    for name, node in picture.nodes.items():
        if name not in picture.leases and not is_deleting(node):
            message, ask = "the virtual node has no Lease: it will count as dead", Ask("node-leases", name)
            yield Finding(Invariant.NODE_LEASES, Side.VIRTUAL, LEASES, name, message, uid_of(node), ask)
    for name, lease in picture.leases.items():
        if name not in picture.nodes and name not in picture.other_nodes and is_without_node(lease, picture):
            message = "there is no such node any more"
            yield Finding(Invariant.NODE_LEASES, Side.VIRTUAL, LEASES, key_of(lease), message, uid_of(lease), obj=lease)


def is_without_node(lease: Object, picture: Picture) -> bool:
    """Whether a Lease may have been one of ours, by its name and owner, and nobody renews it."""
    name, owners = name_of(lease), lease["metadata"].get("ownerReferences") or []
    is_a_nodes = bool(owners) and all((each["kind"], each["name"]) == ("Node", name) for each in owners)
    renewed = value_at(lease, "spec", "renewTime")
    is_silent = renewed is None or picture.now - parse_time(renewed) >= SILENCE
    return is_a_nodes and is_silent and name.startswith(virtual_node_name(picture.binding.spec.cluster_id, ""))
