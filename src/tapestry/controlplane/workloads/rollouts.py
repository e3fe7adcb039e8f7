"""Rollouts: what a Deployment's ReplicaSets are to become next.  Pure.

A Deployment has one ReplicaSet for each template that it ever had; the one with the present template is its new one.  A
rolling update moves pods from the old to the new, a few at a time: there are never more than `maxSurge` too many, and
never more than `maxUnavailable` too few that work.  Each step is decided from what there is, so that it does not matter
who made the last one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tapestry.kube.digests import digest_of
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of, uid_of, value_at

RECREATE = "Recreate"
HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
PAST = "deployment.kubernetes.io/revision-history"
DESIRED = "deployment.kubernetes.io/desired-replicas"
LIMIT = "deployment.kubernetes.io/max-replicas"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a Deployment may stray from its size."""

    replicas: int
    surge: int
    unavailable: int

    @property
    def most(self) -> int:
        return self.replicas + self.surge

    @property
    def least(self) -> int:
        return self.replicas - self.unavailable


@dataclass(frozen=True, slots=True)
class Step:
    """What to do now: sizes by the UIDs of ReplicaSets, and those that nobody needs any more."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    obsolete: Sequence[Object] = ()


def bounds_of(deployment: Object) -> Bounds:
    spec = deployment["spec"]
    replicas = spec.get("replicas", 1)
    if value_at(spec, "strategy", "type") == RECREATE:
        return Bounds(replicas, 0, 0)
    rolling = value_at(spec, "strategy", "rollingUpdate", default={})
    surge = share(rolling.get("maxSurge", 0), replicas, math.ceil)
    unavailable = share(rolling.get("maxUnavailable", 0), replicas, math.floor)
    if not surge and not unavailable:
        unavailable = 1  # both may round to none, and then nothing could move
    return Bounds(replicas, surge, min(unavailable, replicas))


def share(amount: int | str, of: int, rounded: Callable[[float], int]) -> int:
    """A number, or a percentage of one."""
    return amount if isinstance(amount, int) else rounded(int(amount.removesuffix("%")) * of / 100)


def template_of(replica_set: Object) -> Object:
    """The template without the label that tells ReplicaSets apart, and without what says nothing."""
    template = replica_set["spec"]["template"]
    labels = {key: value for key, value in labels_of(template).items() if key != HASH}
    metadata = {**(template.get("metadata") or {}), "labels": labels}
    return {**template, "metadata": {key: value for key, value in metadata.items() if value}}


def is_for(replica_set: Object, deployment: Object) -> bool:
    """Whether the ReplicaSet has the Deployment's present template."""
    return template_of(replica_set) == template_of(deployment)


def split(deployment: Object, sets: Sequence[Object]) -> tuple[Object | None, list[Object]]:
    """The new ReplicaSet and the old ones; of two with the same template, the older is the new one."""
    by_age = sorted(sets, key=lambda each: (each["metadata"]["creationTimestamp"], name_of(each)))
    new = next((each for each in by_age if is_for(each, deployment)), None)
    return new, [each for each in by_age if each is not new]


def size_of(replica_set: Object) -> int:
    size: int = replica_set["spec"].get("replicas", 1)
    return size


def available_of(replica_set: Object) -> int:
    """How many of its pods work, of those that it is to keep."""
    count: int = value_at(replica_set, "status", "availableReplicas", default=0)
    return min(count, size_of(replica_set))


def is_observed(replica_set: Object) -> bool:
    """Whether what it says of its pods is about its present size."""
    said: int = value_at(replica_set, "status", "observedGeneration", default=0)
    meant: int = replica_set["metadata"].get("generation", 0)
    return said >= meant


def total(sets: Sequence[Object]) -> int:
    return sum(map(size_of, sets))


# -- a new ReplicaSet


def new_set(deployment: Object, collisions: int) -> Object:
    """The ReplicaSet for the present template, of no size yet."""
    template = deployment["spec"]["template"]
    number = digest_of([template, collisions])[:10]
    metadata = template.get("metadata") or {}
    labels = {**labels_of(template), HASH: number}
    selector = deployment["spec"]["selector"]
    return {
        "metadata": {"labels": labels, "annotations": travelling(annotations_of(deployment))},
        "spec": {
            "replicas": 0,
            "minReadySeconds": deployment["spec"].get("minReadySeconds", 0),
            "selector": {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), HASH: number}},
            "template": {**template, "metadata": {**metadata, "labels": labels}},
        },
    }


def travelling(annotations: Mapping[str, str]) -> dict[str, str]:
    """What a Deployment says of itself that its ReplicaSets say as well."""
    own = (
        REVISION,
        PAST,
        DESIRED,
        LIMIT,
        "kubectl.kubernetes.io/last-applied-configuration",
        "deprecated.deployment.rollback.to",
    )
    return {key: value for key, value in annotations.items() if key not in own}


def revision_of(obj: Object) -> int:
    return number_in(obj, REVISION)


def number_in(obj: Object, annotation: str) -> int:
    """The number that an annotation has; zero where it has none."""
    text = annotations_of(obj).get(annotation, "")
    return int(text) if text.isascii() and text.isdecimal() else 0


# -- steps


def next_step(deployment: Object, new: Object | None, old: Sequence[Object], old_pods: int) -> Step:
    """What to do now; `old_pods` are those of old ReplicaSets that have not ended."""
    bounds = bounds_of(deployment)
    every = [*([new] if new is not None else []), *old]
    if deployment["spec"].get("paused") or is_resized(bounds, every):
        same = {uid_of(each): size_of(each) for each in every if size_of(each)}  # these learn of the new whole, too
        return Step({**(same if is_resized(bounds, every) else {}), **resized(deployment, bounds, new, old)})
    if new is None:
        return Step()
    if value_at(deployment, "spec", "strategy", "type") == RECREATE:
        sizes = recreated(bounds, new, old, old_pods)
    else:
        sizes = grown(bounds, new, every) or shrunk(bounds, new, old)
    return Step(sizes, obsolete(deployment, old) if not sizes and is_complete(deployment, new, old) else ())


def grown(bounds: Bounds, new: Object, every: Sequence[Object]) -> dict[str, int]:
    """The new one as large as there is room for."""
    size = size_of(new)
    if size == bounds.replicas:
        return {}
    if size > bounds.replicas:
        return {uid_of(new): bounds.replicas}
    room = bounds.most - total(every)
    return {uid_of(new): min(bounds.replicas, size + room)} if room > 0 else {}


def shrunk(bounds: Bounds, new: Object, old: Sequence[Object]) -> dict[str, int]:
    """The old ones as small as the work allows: first they lose what does not work, then what can be spared."""
    missing = size_of(new) - available_of(new)
    spare = total([new, *old]) - bounds.least - missing
    if spare <= 0 or not all(map(is_observed, (new, *old))):
        return {}
    sizes: dict[str, int] = {}
    for each in old:
        broken = min(size_of(each) - available_of(each), spare)
        if broken:
            sizes[uid_of(each)] = size_of(each) - broken
            spare -= broken
    spare = available_of(new) + sum(map(available_of, old)) - bounds.least
    for each in old:
        size = sizes.get(uid_of(each), size_of(each))
        leaving = min(size, max(spare, 0))
        if leaving:
            sizes[uid_of(each)] = size - leaving
            spare -= leaving
    return sizes


def recreated(bounds: Bounds, new: Object, old: Sequence[Object], old_pods: int) -> dict[str, int]:
    """First none of the old, then all of the new."""
    if sizes := {uid_of(each): 0 for each in old if size_of(each)}:
        return sizes
    return {uid_of(new): bounds.replicas} if not old_pods and size_of(new) != bounds.replicas else {}


def is_resized(bounds: Bounds, every: Sequence[Object]) -> bool:
    """Whether the Deployment has another size than when its ReplicaSets were last given theirs."""
    return any(
        size_of(each) and annotations_of(each).get(DESIRED, str(bounds.replicas)) != str(bounds.replicas)
        for each in every
    )


def resized(deployment: Object, bounds: Bounds, new: Object | None, old: Sequence[Object]) -> dict[str, int]:
    """Each ReplicaSet as large as its share of another whole."""
    active = [each for each in (*old, *([new] if new is not None else [])) if size_of(each)]
    if len(active) <= 1:
        only = active[0] if active else new or (old[-1] if old else None)
        return {uid_of(only): bounds.replicas} if only is not None and size_of(only) != bounds.replicas else {}
    if new is not None and size_of(new) == bounds.replicas == available_of(new):
        return {uid_of(each): 0 for each in old if size_of(each)}
    if value_at(deployment, "spec", "strategy", "type") == RECREATE:
        return {}
    change = (bounds.most if bounds.replicas else 0) - total(active)
    by_age = sorted(active, key=lambda each: each["metadata"]["creationTimestamp"], reverse=change > 0)
    by_size = sorted(by_age, key=size_of, reverse=True)
    sizes, left = {uid_of(each): size_of(each) for each in by_size}, change
    for each in by_size:
        part = proportion(each, bounds, change, left)
        sizes[uid_of(each)] += part
        left -= part
    sizes[uid_of(by_size[0])] = max(sizes[uid_of(by_size[0])] + left, 0)
    return {uid_of(each): sizes[uid_of(each)] for each in active if sizes[uid_of(each)] != size_of(each)}


def proportion(replica_set: Object, bounds: Bounds, change: int, left: int) -> int:
    """How much of a change a ReplicaSet gets, by its size when the whole had its last one."""
    before = number_in(replica_set, LIMIT) or bounds.most
    whole = bounds.most if bounds.replicas else 0
    wanted = math.floor(size_of(replica_set) * whole / before + 0.5) - size_of(replica_set) if before else 0
    return max(min(wanted, left), 0) if change > 0 else min(max(wanted, left), 0)


def is_complete(deployment: Object, new: Object, old: Sequence[Object]) -> bool:
    """Whether all that is wanted is there and works, and nothing else is."""
    replicas = deployment["spec"].get("replicas", 1)
    return (
        size_of(new) == replicas == available_of(new)
        and not total(old)
        and not any(value_at(each, "status", "replicas") for each in old)
    )


def obsolete(deployment: Object, old: Sequence[Object]) -> list[Object]:
    """Old ReplicaSets beyond those that are kept to go back to."""
    limit = deployment["spec"].get("revisionHistoryLimit", 10)
    empty = [each for each in old if not size_of(each) and not value_at(each, "status", "replicas")]
    return sorted(empty, key=revision_of)[: max(len(empty) - limit, 0)]
