"""Pure functions that decide the next sizes of a Deployment's ReplicaSets.

A Deployment has one ReplicaSet for each of its templates. The one with the current template is the new one. A rolling
update moves pods from the old ReplicaSets to the new one, so that there are at most `maxSurge` extra pods and at most
`maxUnavailable` unavailable ones. Each step depends only on the observed state, not on previous steps.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tapestry.kube.objects import Object, annotations_of, digest_of, labels_of, name_of, uid_of, value_at
from tapestry.kube.quantity import scaled_value

RECREATE = "Recreate"
POD_TEMPLATE_HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
REVISION_HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED_REPLICAS = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS = "deployment.kubernetes.io/max-replicas"


@dataclass(frozen=True, slots=True)
class RolloutBounds:
    """Limits on the number of pods during a rollout."""

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
    """Sizes to set, by the UID of the ReplicaSet, and ReplicaSets to delete."""

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
        unavailable = 1  # both may round to zero, which would block the rollout
    return RolloutBounds(replicas, surge, min(unavailable, replicas))


def template_of(replica_set: Object) -> Object:
    """Return the template without the pod-template-hash label and without empty metadata fields."""
    template = replica_set["spec"]["template"]
    labels = {key: value for key, value in labels_of(template).items() if key != POD_TEMPLATE_HASH}
    metadata = {**(template.get("metadata") or {}), "labels": labels}
    return {**template, "metadata": {key: value for key, value in metadata.items() if value}}


def has_template_of(replica_set: Object, deployment: Object) -> bool:
    return template_of(replica_set) == template_of(deployment)


def split_replica_sets(deployment: Object, sets: Sequence[Object]) -> tuple[Object | None, list[Object]]:
    """Return the new ReplicaSet and the old ones. If two have the current template, the older is the new one."""
    by_age = sorted(sets, key=lambda each: (each["metadata"]["creationTimestamp"], name_of(each)))
    new = next((each for each in by_age if has_template_of(each, deployment)), None)
    return new, [each for each in by_age if each is not new]


def spec_replicas(replica_set: Object) -> int:
    size: int = replica_set["spec"].get("replicas", 1)
    return size


def available_replicas(replica_set: Object) -> int:
    """Return the number of available pods, limited to the desired size."""
    count: int = value_at(replica_set, "status", "availableReplicas", default=0)
    return min(count, spec_replicas(replica_set))


def is_observed(replica_set: Object) -> bool:
    """Return whether the status refers to the current spec."""
    observed: int = value_at(replica_set, "status", "observedGeneration", default=0)
    generation: int = replica_set["metadata"].get("generation", 0)
    return observed >= generation


def total_replicas(sets: Sequence[Object]) -> int:
    return sum(map(spec_replicas, sets))


# -- a new ReplicaSet


def new_replica_set(deployment: Object, collisions: int) -> Object:
    """Return the ReplicaSet for the current template, with zero replicas."""
    template = deployment["spec"]["template"]
    pod_hash = digest_of([template, collisions])[:10]
    metadata = template.get("metadata") or {}
    labels = {**labels_of(template), POD_TEMPLATE_HASH: pod_hash}
    selector = deployment["spec"]["selector"]
    return {
        "metadata": {"labels": labels, "annotations": propagated_annotations(annotations_of(deployment))},
        "spec": {
            "replicas": 0,
            "minReadySeconds": deployment["spec"].get("minReadySeconds", 0),
            "selector": {
                **selector,
                "matchLabels": {**(selector.get("matchLabels") or {}), POD_TEMPLATE_HASH: pod_hash},
            },
            "template": {**template, "metadata": {**metadata, "labels": labels}},
        },
    }


def propagated_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations of a Deployment that are copied to its ReplicaSets."""
    excluded = (
        REVISION,
        REVISION_HISTORY,
        DESIRED_REPLICAS,
        MAX_REPLICAS,
        "kubectl.kubernetes.io/last-applied-configuration",
        "deprecated.deployment.rollback.to",
    )
    return {key: value for key, value in annotations.items() if key not in excluded}


def revision_of(obj: Object) -> int:
    return annotation_number(obj, REVISION)


def annotation_number(obj: Object, annotation: str) -> int:
    """Return the number in an annotation, or zero without one."""
    text = annotations_of(obj).get(annotation, "")
    return int(text) if text.isascii() and text.isdecimal() else 0


# -- steps


def next_rollout_step(deployment: Object, new: Object | None, old: Sequence[Object], old_pods: int) -> RolloutStep:
    """Return the next step. `old_pods` is the number of unterminated pods of old ReplicaSets."""
    bounds = bounds_of(deployment)
    every = [*([new] if new is not None else []), *old]
    if deployment["spec"].get("paused") or is_scaling_event(bounds, every):
        same = {
            uid_of(each): spec_replicas(each) for each in every if spec_replicas(each)
        }  # their annotations need the new size, too
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
    """Return a larger size for the new ReplicaSet, within the surge limit."""
    size = spec_replicas(new)
    if size == bounds.replicas:
        return {}
    if size > bounds.replicas:
        return {uid_of(new): bounds.replicas}
    capacity = bounds.max_replicas - total_replicas(every)
    return {uid_of(new): min(bounds.replicas, size + capacity)} if capacity > 0 else {}


def scale_down_sizes(bounds: RolloutBounds, new: Object, old: Sequence[Object]) -> dict[str, int]:
    """Return smaller sizes for the old ReplicaSets: unavailable pods are removed first, then surplus available ones."""
    unavailable = spec_replicas(new) - available_replicas(new)
    removable = total_replicas([new, *old]) - bounds.min_available - unavailable
    if removable <= 0 or not all(map(is_observed, (new, *old))):
        return {}
    sizes: dict[str, int] = {}
    for each in old:
        unhealthy = min(spec_replicas(each) - available_replicas(each), removable)
        if unhealthy:
            sizes[uid_of(each)] = spec_replicas(each) - unhealthy
            removable -= unhealthy
    removable = available_replicas(new) + sum(map(available_replicas, old)) - bounds.min_available
    for each in old:
        size = sizes.get(uid_of(each), spec_replicas(each))
        removed = min(size, max(removable, 0))
        if removed:
            sizes[uid_of(each)] = size - removed
            removable -= removed
    return sizes


def recreate_sizes(bounds: RolloutBounds, new: Object, old: Sequence[Object], old_pods: int) -> dict[str, int]:
    """Return zero for all old ReplicaSets first, then the full size for the new one."""
    if sizes := {uid_of(each): 0 for each in old if spec_replicas(each)}:
        return sizes
    return {uid_of(new): bounds.replicas} if not old_pods and spec_replicas(new) != bounds.replicas else {}


def is_scaling_event(bounds: RolloutBounds, every: Sequence[Object]) -> bool:
    """Return whether the Deployment was scaled since the ReplicaSets were last resized."""
    return any(
        spec_replicas(each) and annotations_of(each).get(DESIRED_REPLICAS, str(bounds.replicas)) != str(bounds.replicas)
        for each in every
    )


def proportional_sizes(
    deployment: Object, bounds: RolloutBounds, new: Object | None, old: Sequence[Object]
) -> dict[str, int]:
    """Return sizes that distribute a changed total over the ReplicaSets in proportion."""
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
    sizes, remaining = {uid_of(each): spec_replicas(each) for each in by_size}, change
    for each in by_size:
        part = proportional_change(each, bounds, change, remaining)
        sizes[uid_of(each)] += part
        remaining -= part
    sizes[uid_of(by_size[0])] = max(sizes[uid_of(by_size[0])] + remaining, 0)
    return {uid_of(each): sizes[uid_of(each)] for each in active if sizes[uid_of(each)] != spec_replicas(each)}


def proportional_change(replica_set: Object, bounds: RolloutBounds, change: int, left: int) -> int:
    """Return the share of a change for a ReplicaSet, in proportion to its part of the previous total."""
    before = annotation_number(replica_set, MAX_REPLICAS) or bounds.max_replicas
    whole = bounds.max_replicas if bounds.replicas else 0
    share = math.floor(spec_replicas(replica_set) * whole / before + 0.5) - spec_replicas(replica_set) if before else 0
    return max(min(share, left), 0) if change > 0 else min(max(share, left), 0)


def is_complete(deployment: Object, new: Object, old: Sequence[Object]) -> bool:
    """Return whether all desired pods are available and no old pod is left."""
    replicas = deployment["spec"].get("replicas", 1)
    return (
        spec_replicas(new) == replicas == available_replicas(new)
        and not total_replicas(old)
        and not any(value_at(each, "status", "replicas") for each in old)
    )


def surplus_replica_sets(deployment: Object, old: Sequence[Object]) -> list[Object]:
    """Return empty old ReplicaSets over the history limit."""
    limit = deployment["spec"].get("revisionHistoryLimit", 10)
    empty = [each for each in old if not spec_replicas(each) and not value_at(each, "status", "replicas")]
    return sorted(empty, key=revision_of)[: max(len(empty) - limit, 0)]
