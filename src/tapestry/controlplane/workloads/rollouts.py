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
POD_TEMPLATE_HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
REVISION_HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED_REPLICAS = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS = "deployment.kubernetes.io/max-replicas"


@dataclass(frozen=True, slots=True)
class RolloutBounds:
    """How far a Deployment may stray from its size."""

    replicas: int
    max_surge: int
    max_unavailable: int

    @property
    def max_replicas(self) -> int:
        return self.replicas + self.max_surge

    @property
    def min_available(self) -> int:
        return self.replicas - self.max_unavailable


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """What to do now: sizes by the UIDs of ReplicaSets, and those that nobody needs any more."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    to_delete: Sequence[Object] = ()


def bounds_of(deployment: Object) -> RolloutBounds:
    spec = deployment["spec"]
    replicas = spec.get("replicas", 1)
    if value_at(spec, "strategy", "type") == RECREATE:
        return RolloutBounds(replicas, 0, 0)
    rolling = value_at(spec, "strategy", "rollingUpdate", default={})
    surge = scaled_value(rolling.get("maxSurge", 0), replicas, math.ceil)
    unavailable = scaled_value(rolling.get("maxUnavailable", 0), replicas, math.floor)
    if not surge and not unavailable:
        unavailable = 1  # both may round to none, and then nothing could move
    return RolloutBounds(replicas, surge, min(unavailable, replicas))


def scaled_value(amount: int | str, whole: int, rounding: Callable[[float], int]) -> int:
    """A number, or a percentage of one."""
    return amount if isinstance(amount, int) else rounding(int(amount.removesuffix("%")) * whole / 100)


def template_of(replica_set: Object) -> Object:
    """The template without the label that tells ReplicaSets apart, and without what says nothing."""
    template = replica_set["spec"]["template"]
    labels = {key: value for key, value in labels_of(template).items() if key != POD_TEMPLATE_HASH}
    metadata = {**(template.get("metadata") or {}), "labels": labels}
    return {**template, "metadata": {key: value for key, value in metadata.items() if value}}


def has_template_of(replica_set: Object, deployment: Object) -> bool:
    """Whether the ReplicaSet has the Deployment's present template."""
    return template_of(replica_set) == template_of(deployment)


def split_replica_sets(deployment: Object, sets: Sequence[Object]) -> tuple[Object | None, list[Object]]:
    """The new ReplicaSet and the old ones; of two with the same template, the older is the new one."""
    by_age = sorted(sets, key=lambda each: (each["metadata"]["creationTimestamp"], name_of(each)))
    new = next((each for each in by_age if has_template_of(each, deployment)), None)
    return new, [each for each in by_age if each is not new]


def spec_replicas(replica_set: Object) -> int:
    size: int = replica_set["spec"].get("replicas", 1)
    return size


def available_replicas(replica_set: Object) -> int:
    """How many of its pods work, of those that it is to keep."""
    count: int = value_at(replica_set, "status", "availableReplicas", default=0)
    return min(count, spec_replicas(replica_set))


def is_observed(replica_set: Object) -> bool:
    """Whether what it says of its pods is about its present size."""
    said: int = value_at(replica_set, "status", "observedGeneration", default=0)
    meant: int = replica_set["metadata"].get("generation", 0)
    return said >= meant


def total_replicas(sets: Sequence[Object]) -> int:
    return sum(map(spec_replicas, sets))


# -- a new ReplicaSet


def new_replica_set(deployment: Object, collisions: int) -> Object:
    """The ReplicaSet for the present template, of no size yet."""
    template = deployment["spec"]["template"]
    number = digest_of([template, collisions])[:10]
    metadata = template.get("metadata") or {}
    labels = {**labels_of(template), POD_TEMPLATE_HASH: number}
    selector = deployment["spec"]["selector"]
    return {
        "metadata": {"labels": labels, "annotations": propagated_annotations(annotations_of(deployment))},
        "spec": {
            "replicas": 0,
            "minReadySeconds": deployment["spec"].get("minReadySeconds", 0),
            "selector": {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), POD_TEMPLATE_HASH: number}},
            "template": {**template, "metadata": {**metadata, "labels": labels}},
        },
    }


def propagated_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """What a Deployment says of itself that its ReplicaSets say as well."""
    own = (
        REVISION,
        REVISION_HISTORY,
        DESIRED_REPLICAS,
        MAX_REPLICAS,
        "kubectl.kubernetes.io/last-applied-configuration",
        "deprecated.deployment.rollback.to",
    )
    return {key: value for key, value in annotations.items() if key not in own}


def revision_of(obj: Object) -> int:
    return annotation_number(obj, REVISION)


def annotation_number(obj: Object, annotation: str) -> int:
    """The number that an annotation has; zero where it has none."""
    text = annotations_of(obj).get(annotation, "")
    return int(text) if text.isascii() and text.isdecimal() else 0


# -- steps


def next_rollout_step(deployment: Object, new: Object | None, old: Sequence[Object], old_pods: int) -> RolloutStep:
    """What to do now; `old_pods` are those of old ReplicaSets that have not ended."""
    bounds = bounds_of(deployment)
    every = [*([new] if new is not None else []), *old]
    if deployment["spec"].get("paused") or is_scaling_event(bounds, every):
        same = {
            uid_of(each): spec_replicas(each) for each in every if spec_replicas(each)
        }  # these learn of the new whole, too
        return RolloutStep(
            {**(same if is_scaling_event(bounds, every) else {}), **proportional_sizes(deployment, bounds, new, old)}
        )
    if new is None:
        return RolloutStep()
    if value_at(deployment, "spec", "strategy", "type") == RECREATE:
        sizes = recreate_sizes(bounds, new, old, old_pods)
    else:
        sizes = scale_up_sizes(bounds, new, every) or scale_down_sizes(bounds, new, old)
    return RolloutStep(
        sizes, surplus_replica_sets(deployment, old) if not sizes and is_complete(deployment, new, old) else ()
    )


def scale_up_sizes(bounds: RolloutBounds, new: Object, every: Sequence[Object]) -> dict[str, int]:
    """The new one as large as there is room for."""
    size = spec_replicas(new)
    if size == bounds.replicas:
        return {}
    if size > bounds.replicas:
        return {uid_of(new): bounds.replicas}
    room = bounds.max_replicas - total_replicas(every)
    return {uid_of(new): min(bounds.replicas, size + room)} if room > 0 else {}


def scale_down_sizes(bounds: RolloutBounds, new: Object, old: Sequence[Object]) -> dict[str, int]:
    """The old ones as small as the work allows: first they lose what does not work, then what can be spared."""
    missing = spec_replicas(new) - available_replicas(new)
    spare = total_replicas([new, *old]) - bounds.min_available - missing
    if spare <= 0 or not all(map(is_observed, (new, *old))):
        return {}
    sizes: dict[str, int] = {}
    for each in old:
        broken = min(spec_replicas(each) - available_replicas(each), spare)
        if broken:
            sizes[uid_of(each)] = spec_replicas(each) - broken
            spare -= broken
    spare = available_replicas(new) + sum(map(available_replicas, old)) - bounds.min_available
    for each in old:
        size = sizes.get(uid_of(each), spec_replicas(each))
        leaving = min(size, max(spare, 0))
        if leaving:
            sizes[uid_of(each)] = size - leaving
            spare -= leaving
    return sizes


def recreate_sizes(bounds: RolloutBounds, new: Object, old: Sequence[Object], old_pods: int) -> dict[str, int]:
    """First none of the old, then all of the new."""
    if sizes := {uid_of(each): 0 for each in old if spec_replicas(each)}:
        return sizes
    return {uid_of(new): bounds.replicas} if not old_pods and spec_replicas(new) != bounds.replicas else {}


def is_scaling_event(bounds: RolloutBounds, every: Sequence[Object]) -> bool:
    """Whether the Deployment has another size than when its ReplicaSets were last given theirs."""
    return any(
        spec_replicas(each) and annotations_of(each).get(DESIRED_REPLICAS, str(bounds.replicas)) != str(bounds.replicas)
        for each in every
    )


def proportional_sizes(
    deployment: Object, bounds: RolloutBounds, new: Object | None, old: Sequence[Object]
) -> dict[str, int]:
    """Each ReplicaSet as large as its share of another whole."""
    active = [each for each in (*old, *([new] if new is not None else [])) if spec_replicas(each)]
    if len(active) <= 1:
        only = active[0] if active else new or (old[-1] if old else None)
        return {uid_of(only): bounds.replicas} if only is not None and spec_replicas(only) != bounds.replicas else {}
    if new is not None and spec_replicas(new) == bounds.replicas == available_replicas(new):
        return {uid_of(each): 0 for each in old if spec_replicas(each)}
    if value_at(deployment, "spec", "strategy", "type") == RECREATE:
        return {}
    change = (bounds.max_replicas if bounds.replicas else 0) - total_replicas(active)
    by_age = sorted(active, key=lambda each: each["metadata"]["creationTimestamp"], reverse=change > 0)
    by_size = sorted(by_age, key=spec_replicas, reverse=True)
    sizes, left = {uid_of(each): spec_replicas(each) for each in by_size}, change
    for each in by_size:
        part = proportional_change(each, bounds, change, left)
        sizes[uid_of(each)] += part
        left -= part
    sizes[uid_of(by_size[0])] = max(sizes[uid_of(by_size[0])] + left, 0)
    return {uid_of(each): sizes[uid_of(each)] for each in active if sizes[uid_of(each)] != spec_replicas(each)}


def proportional_change(replica_set: Object, bounds: RolloutBounds, change: int, left: int) -> int:
    """How much of a change a ReplicaSet gets, by its size when the whole had its last one."""
    before = annotation_number(replica_set, MAX_REPLICAS) or bounds.max_replicas
    whole = bounds.max_replicas if bounds.replicas else 0
    wanted = math.floor(spec_replicas(replica_set) * whole / before + 0.5) - spec_replicas(replica_set) if before else 0
    return max(min(wanted, left), 0) if change > 0 else min(max(wanted, left), 0)


def is_complete(deployment: Object, new: Object, old: Sequence[Object]) -> bool:
    """Whether all that is wanted is there and works, and nothing else is."""
    replicas = deployment["spec"].get("replicas", 1)
    return (
        spec_replicas(new) == replicas == available_replicas(new)
        and not total_replicas(old)
        and not any(value_at(each, "status", "replicas") for each in old)
    )


def surplus_replica_sets(deployment: Object, old: Sequence[Object]) -> list[Object]:
    """Old ReplicaSets beyond those that are kept to go back to."""
    limit = deployment["spec"].get("revisionHistoryLimit", 10)
    empty = [each for each in old if not spec_replicas(each) and not value_at(each, "status", "replicas")]
    return sorted(empty, key=revision_of)[: max(len(empty) - limit, 0)]
