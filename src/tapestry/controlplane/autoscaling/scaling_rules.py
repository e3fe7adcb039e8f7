"""Limits for changes of the number of replicas: stabilization windows, scaling policies, minimum and maximum. Pure.

The rules are those of Kubernetes. An autoscaler without `spec.behavior` has simpler limits: it at most doubles the
number of replicas, or adds up to four, and scales down after a window of five minutes.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Literal

import msgspec

from tapestry.controlplane.autoscaling.replica_calculator import AutoscalerSettings, Tolerances
from tapestry.kube.autoscalers import default_behavior
from tapestry.kube.conditions import new_condition
from tapestry.kube.objects import Object
from tapestry.kube.quantity import NANOS, parse_quantity

SCALE_UP_FACTOR, MIN_SCALE_UP_LIMIT = 2, 4
WITHIN_RANGE = ("DesiredWithinRange", "the desired count is within the acceptable range")
SCALE_UP_LIMIT = ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate")
SCALE_DOWN_LIMIT = ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate")
TOO_MANY = ("TooManyReplicas", "the desired replica count is more than the maximum replica count")
TOO_FEW = ("TooFewReplicas", "the desired replica count is less than the minimum replica count")
READY = ("ReadyForNewScale", "recommended size matches current size")
SCALE_UP_STABILIZED = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
)
SCALE_DOWN_STABILIZED = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
)

Reason = tuple[str, str]
"""Reason and message of a condition."""


class ScalingPolicy(msgspec.Struct):
    type: Literal["Pods", "Percent"]
    value: Annotated[int, msgspec.Meta(gt=0)]
    periodSeconds: Annotated[int, msgspec.Meta(gt=0, le=1800)]


class ScalingRules(msgspec.Struct):
    stabilizationWindowSeconds: Annotated[int, msgspec.Meta(ge=0, le=3600)] | None = None
    selectPolicy: Literal["Max", "Min", "Disabled"] | None = None
    policies: list[ScalingPolicy] | None = None
    tolerance: str | int | float | None = None


class Behavior(msgspec.Struct):
    """Form of `spec.behavior`."""

    scaleUp: ScalingRules | None = None
    scaleDown: ScalingRules | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """Number of replicas that was recommended, added or removed at a time."""

    replicas: int
    at: datetime


@dataclass(frozen=True, slots=True)
class History:
    """Recent recommendations and changes of one autoscaler. It is lost with the process, as in Kubernetes."""

    recommendations: tuple[Sample, ...]
    scale_ups: tuple[Sample, ...] = ()
    scale_downs: tuple[Sample, ...] = ()

    def with_change(self, autoscaler: Object, before: int, after: int, now: datetime) -> "History":
        """Add a change of the number of replicas. Autoscalers without policies do not need it."""
        behavior = autoscaler["spec"].get("behavior")
        if behavior is None:
            return self
        rules = default_behavior(behavior)
        longest = max(
            (each["periodSeconds"] for rule in rules.values() for each in rule.get("policies") or ()), default=0
        )
        oldest, change = now - timedelta(seconds=longest), Sample(abs(after - before), now)
        ups, downs = ([each for each in changes if each.at >= oldest] for changes in (self.scale_ups, self.scale_downs))
        (ups if after > before else downs).append(change)
        return replace(self, scale_ups=tuple(ups), scale_downs=tuple(downs))

    def change_since(self, time: datetime) -> int:
        """Return by how much the number of replicas grew."""
        added, removed = (
            sum(each.replicas for each in changes if each.at > time) for changes in (self.scale_ups, self.scale_downs)
        )
        return added - removed


@dataclass(frozen=True, slots=True)
class LimitedReplicas:
    """Allowed number of replicas, and the conditions that explain it."""

    replicas: int
    conditions: tuple[Object, Object]
    history: History


def tolerances_of(autoscaler: Object, settings: AutoscalerSettings) -> Tolerances:
    behavior = autoscaler["spec"].get("behavior") or {}

    def tolerance(direction: str) -> float:
        value = (behavior.get(direction) or {}).get("tolerance")
        return settings.tolerance if value is None else parse_quantity(value).nano / NANOS

    return Tolerances(tolerance("scaleDown"), tolerance("scaleUp"))


def limited_replicas(
    autoscaler: Object, current: int, desired: int, history: History, settings: AutoscalerSettings, now: datetime
) -> LimitedReplicas:
    """Return the number of replicas closest to `desired` that the rules of the autoscaler allow now."""
    spec = autoscaler["spec"]
    minimum, maximum = spec.get("minReplicas", 1), spec["maxReplicas"]
    behavior = spec.get("behavior")
    if behavior is None:
        window = settings.downscale_stabilization
        stable = max([desired, *(each.replicas for each in samples_since(history.recommendations, now - window))])
        able = READY if stable == desired else SCALE_DOWN_STABILIZED
        allowed, reason = within_default_limits(current, stable, minimum, maximum)
    else:
        rules = default_behavior(behavior)
        up, down = rules["scaleUp"], rules["scaleDown"]
        up_window = timedelta(seconds=up.get("stabilizationWindowSeconds", 0))
        seconds = down.get("stabilizationWindowSeconds")
        down_window = settings.downscale_stabilization if seconds is None else timedelta(seconds=seconds)
        window = max(up_window, down_window)
        lowest = min([desired, *(each.replicas for each in history.recommendations if each.at > now - up_window)])
        highest = max([desired, *(each.replicas for each in history.recommendations if each.at > now - down_window)])
        stable = min(max(current, lowest), highest)
        stabilized = SCALE_UP_STABILIZED if desired >= current else SCALE_DOWN_STABILIZED
        able = READY if stable == desired else stabilized
        allowed, reason = stable, WITHIN_RANGE
        if stable > current:
            limit = max(current, policy_limit(up, current, history, now, is_up=True))
            allowed, reason = min((maximum, TOO_MANY), (limit, SCALE_UP_LIMIT), key=lambda each: each[0])
        elif stable < current:
            limit = min(current, policy_limit(down, current, history, now, is_up=False))
            allowed, reason = max((minimum, TOO_FEW), (limit, SCALE_DOWN_LIMIT), key=lambda each: each[0])
        if (allowed >= stable > current) or (allowed <= stable < current):
            allowed, reason = stable, WITHIN_RANGE
    recommendations = (*samples_since(history.recommendations, now - window), Sample(desired, now))
    conditions = (
        new_condition("AbleToScale", True, *able),
        new_condition("ScalingLimited", allowed != stable, *reason),
    )
    return LimitedReplicas(allowed, conditions, replace(history, recommendations=recommendations))


def samples_since(samples: Iterable[Sample], time: datetime) -> list[Sample]:
    return [each for each in samples if each.at >= time]


def within_default_limits(current: int, desired: int, minimum: int, maximum: int) -> tuple[int, Reason]:
    limit = max(SCALE_UP_FACTOR * current, MIN_SCALE_UP_LIMIT)
    if desired < minimum:
        return minimum, TOO_FEW
    if desired > min(limit, maximum):
        return (limit, SCALE_UP_LIMIT) if maximum > limit else (maximum, TOO_MANY)
    return desired, WITHIN_RANGE


def policy_limit(rules: Object, current: int, history: History, now: datetime, *, is_up: bool) -> int:
    """Return the highest or lowest number of replicas that the policies of one direction allow now."""
    selected = rules.get("selectPolicy")
    policies = rules.get("policies") or ()
    if selected == "Disabled" or not policies:
        return current
    limits: list[int] = []
    for policy in policies:
        start = current - history.change_since(now - timedelta(seconds=policy["periodSeconds"]))
        sign = 1 if is_up else -1
        if policy["type"] == "Pods":
            limits.append(start + sign * policy["value"])
        else:
            changed = start * (1 + sign * policy["value"] / 100)
            limits.append(math.ceil(changed) if is_up else int(changed))
    return max(limits) if is_up == (selected != "Min") else min(limits)
