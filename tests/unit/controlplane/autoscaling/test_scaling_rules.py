"""Tests of stabilization windows and scaling policies."""

from datetime import timedelta
from typing import Any

import pytest

from tapestry.controlplane.autoscaling.replica_calculator import AutoscalerSettings
from tapestry.controlplane.autoscaling.scaling_rules import (
    History,
    LimitedReplicas,
    Sample,
    limited_replicas,
    tolerances_of,
)
from tapestry.kube.objects import Object
from tapestry.kube.times import parse_time

NOW = parse_time("2030-01-01T12:00:00Z")
SETTINGS = AutoscalerSettings()


def autoscaler(minimum: int = 1, maximum: int = 100, **behavior: Any) -> Object:
    spec: Object = {"minReplicas": minimum, "maxReplicas": maximum}
    return {"spec": {**spec, **({"behavior": behavior} if behavior else {})}}


def samples(*pairs: tuple[int, float]) -> tuple[Sample, ...]:
    """Numbers, each with its age in seconds."""
    return tuple(Sample(number, NOW - timedelta(seconds=age)) for number, age in pairs)


def limited(obj: Object, current: int, desired: int, history: History | None = None) -> LimitedReplicas:
    return limited_replicas(obj, current, desired, history or History(()), SETTINGS, NOW)


def reasons(result: LimitedReplicas) -> list[tuple[str, str]]:
    return [(each["status"], each["reason"]) for each in result.conditions]


READY, WITHIN = ("True", "ReadyForNewScale"), ("False", "DesiredWithinRange")


@pytest.mark.parametrize(
    ("current", "desired", "replicas", "limit"),
    [
        (3, 5, 5, WITHIN),
        (1, 10, 4, ("True", "ScaleUpLimit")),
        (5, 30, 10, ("True", "ScaleUpLimit")),
        (8, 30, 12, ("True", "TooManyReplicas")),
        (3, 1, 2, ("True", "TooFewReplicas")),
        (3, 3, 3, WITHIN),
    ],
)
def test_default_limits(current: int, desired: int, replicas: int, limit: tuple[str, str]) -> None:
    result = limited(autoscaler(2, 12), current, desired)
    assert (result.replicas, reasons(result)) == (replicas, [READY, limit])
    assert result.history.recommendations == (Sample(desired, NOW),)


def test_scaling_down_waits_for_recent_recommendations() -> None:
    history = History(samples((9, 301), (7, 299), (5, 10)))
    result = limited(autoscaler(), 8, 2, history)
    assert (result.replicas, reasons(result)) == (7, [("True", "ScaleDownStabilized"), WITHIN])
    assert result.history.recommendations == (*samples((7, 299), (5, 10)), Sample(2, NOW))


def test_windows_of_behavior_stabilize_both_directions() -> None:
    obj = autoscaler(scaleUp={"stabilizationWindowSeconds": 60}, scaleDown={"stabilizationWindowSeconds": 30})
    recent = History(samples((6, 50), (12, 20)))
    up = limited(obj, 4, 10, recent)
    assert (up.replicas, reasons(up)[0]) == (6, ("True", "ScaleUpStabilized"))
    down = limited(obj, 20, 3, recent)
    assert (down.replicas, reasons(down)[0]) == (12, ("True", "ScaleDownStabilized"))
    assert limited(obj, 20, 3, History(samples((12, 31)))).replicas == 3


def test_window_of_scale_down_defaults_to_setting() -> None:
    obj, old = autoscaler(scaleUp={"stabilizationWindowSeconds": 0}), History(samples((7, 299)))
    assert limited(obj, 8, 2, old).replicas == 7


PODS_2 = {"type": "Pods", "value": 2, "periodSeconds": 60}
PERCENT_50 = {"type": "Percent", "value": 50, "periodSeconds": 60}


@pytest.mark.parametrize(
    ("rules", "up", "down"),
    [
        ({"policies": [PODS_2]}, 12, 8),
        ({"policies": [PERCENT_50]}, 15, 5),
        ({"policies": [PODS_2, PERCENT_50]}, 15, 5),
        ({"policies": [PODS_2, PERCENT_50], "selectPolicy": "Min"}, 12, 8),
        ({"policies": [PODS_2], "selectPolicy": "Disabled"}, 10, 10),
        ({}, 20, 1),
    ],
)
def test_policies_limit_rate(rules: Object, up: int, down: int) -> None:
    rules = {"stabilizationWindowSeconds": 0, **rules}
    obj = autoscaler(scaleUp=rules, scaleDown=rules)
    growth, decline = limited(obj, 10, 50), limited(obj, 10, 1)
    assert (growth.replicas, decline.replicas) == (up, down)
    assert reasons(growth)[1] == ("True", "ScaleUpLimit")
    assert reasons(decline)[1] == (WITHIN if down == 1 else ("True", "ScaleDownLimit"))


def test_percentages_are_rounded_to_larger_change() -> None:
    rules = {"stabilizationWindowSeconds": 0, "policies": [PERCENT_50]}
    obj = autoscaler(scaleUp=rules, scaleDown=rules)
    assert (limited(obj, 5, 50).replicas, limited(obj, 5, 1).replicas) == (8, 2)


def test_changes_of_the_period_count() -> None:
    rules = {"stabilizationWindowSeconds": 0, "policies": [PODS_2]}
    obj = autoscaler(scaleUp=rules, scaleDown=rules)
    assert limited(obj, 10, 50, History((), scale_ups=samples((1, 30)))).replicas == 11
    assert limited(obj, 10, 50, History((), scale_ups=samples((5, 30)))).replicas == 10
    assert limited(obj, 10, 50, History((), scale_ups=samples((5, 61)))).replicas == 12
    assert limited(obj, 10, 50, History((), scale_downs=samples((3, 30)))).replicas == 15
    assert limited(obj, 10, 1, History((), scale_downs=samples((1, 30)))).replicas == 9


def test_bounds_apply_with_behavior() -> None:
    obj = autoscaler(5, 12, scaleDown={"stabilizationWindowSeconds": 0})
    assert reasons(limited(obj, 10, 50))[1] == ("True", "TooManyReplicas")
    assert reasons(limited(obj, 10, 1))[1] == ("True", "TooFewReplicas")


def test_history_keeps_changes_of_longest_period() -> None:
    obj = autoscaler(scaleUp={"policies": [PODS_2]})
    history = History((), scale_ups=samples((1, 61), (2, 59)))
    assert history.with_change(obj, 3, 5, NOW).scale_ups == (*samples((2, 59)), Sample(2, NOW))
    assert history.with_change(obj, 5, 3, NOW).scale_downs == (Sample(2, NOW),)
    assert history.with_change(autoscaler(), 3, 5, NOW) == history


def test_tolerances_are_configurable() -> None:
    tolerances = tolerances_of(autoscaler(scaleUp={"tolerance": "50m"}), SETTINGS)
    assert (tolerances.scale_up, tolerances.scale_down) == (0.05, 0.1)
    assert tolerances.include(1.05)
    assert not tolerances.include(1.06)
