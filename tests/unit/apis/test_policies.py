"""ResourceLeasingPolicy: decoding.  Its definition is a golden file.

`REWRITE_GOLDEN=1 pytest ...` writes the file again.  The integration tests apply it to a real kube-apiserver.
"""

import os
from calendar import day_abbr, day_name
from pathlib import Path
from typing import Any

import pytest
import yaml

from tapestry.apis.policies import POLICY, ResourceLeasingPolicySpec
from tapestry.kube.crds import InvalidSpec, crd, decode_spec
from tapestry.kube.objects import Object

GOLDEN = Path(__file__).parents[2] / "golden" / "crds" / "resourceleasingpolicies.yaml"


def new_policy(**spec: Any) -> Object:
    return {"metadata": {"name": "p"}, "spec": {"cluster": "east", **spec}}


def new_window(**fields: Any) -> Object:
    return new_policy(timeWindows=[{"start": "08:00", "end": "18:00", **fields}])


def new_limit(**fields: Any) -> Object:
    return new_policy(resourceLimits=[{"resource": "cpu", **fields}])


def test_definition_equals_golden_file() -> None:
    found = yaml.safe_dump(crd(POLICY), sort_keys=False, width=120, allow_unicode=True)
    if os.environ.get("REWRITE_GOLDEN"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


def test_default_policy_is_always_open_without_force() -> None:
    spec = decode_spec(POLICY, new_policy())
    assert spec == ResourceLeasingPolicySpec(cluster="east")
    assert not spec.time_windows
    assert not spec.resource_limits
    assert (spec.force_reclaim, spec.graceful_reclaim_period_seconds, spec.evict_during_grace) == (False, 0, False)


def test_kubeocean_manifest_decodes_completely() -> None:
    spec = decode_spec(
        POLICY,
        new_policy(
            timeWindows=[{"start": "22:00", "end": "06:00", "days": ["Monday", "Friday"]}],
            resourceLimits=[{"resource": "cpu", "quantity": "4", "percent": 50}, {"resource": "pods", "quantity": 10}],
            forceReclaim=True,
            gracefulReclaimPeriodSeconds=3600,
        ),
    )
    (window,) = spec.time_windows
    assert (window.start, window.end, window.days) == ("22:00", "06:00", ("Monday", "Friday"))
    assert [(each.resource, each.quantity, each.percent) for each in spec.resource_limits] == [
        ("cpu", "4", 50),
        ("pods", 10, None),
    ]
    assert (spec.force_reclaim, spec.graceful_reclaim_period_seconds) == (True, 3600)


@pytest.mark.parametrize("day", [*day_name, *day_abbr, *map(str.lower, day_name), *map(str.upper, day_abbr), "fRiDaY"])
def test_weekday_may_be_short_and_in_any_case(day: str) -> None:
    assert decode_spec(POLICY, new_window(days=[day])).time_windows[0].days == (day,)


@pytest.mark.parametrize("clock", ["00:00", "08:30", "19:59", "23:59"])
def test_window_starts_at_a_valid_time(clock: str) -> None:
    assert decode_spec(POLICY, new_window(start=clock)).time_windows[0].start == clock


def test_window_may_end_at_24_00() -> None:
    assert decode_spec(POLICY, new_window(end="24:00")).time_windows[0].end == "24:00"


@pytest.mark.parametrize(
    ("policy", "path"),
    [
        *((new_window(start=clock), "spec.timeWindows[0].start") for clock in ("8:00", "24:00", "25:00", "08:60", "")),
        *((new_window(end=clock), "spec.timeWindows[0].end") for clock in ("8:00", "24:01", "25:00", "0800", "noon")),
        *((new_window(days=["Mon", day]), "spec.timeWindows[0].days[1]") for day in ("Mo", "Mond", "Montag", "", "1")),
        (new_window(days=["Mon"] * 8), "spec.timeWindows[0].days"),
        (new_window(timeZone=""), "spec.timeWindows[0].timeZone"),
        (new_policy(timeZone=""), "spec.timeZone"),
        (new_policy(cluster=""), "spec.cluster"),
        (new_limit(percent=101), "spec.resourceLimits[0].percent"),
        (new_limit(percent=-1), "spec.resourceLimits[0].percent"),
        (new_limit(percent="50"), "spec.resourceLimits[0].percent"),
        *((new_limit(quantity=text), "spec.resourceLimits[0].quantity") for text in ("4 GB", "", "-1", -1, "Gi")),
        (new_limit(resource=""), "spec.resourceLimits[0].resource"),
        (new_policy(gracefulReclaimPeriodSeconds=-1), "spec.gracefulReclaimPeriodSeconds"),
    ],
)
def test_invalid_policy_is_rejected_with_path(policy: Object, path: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        decode_spec(POLICY, policy)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("quantity", [0, 4, "0", "+4", "500m", "1.5Gi", "1e3", ".5"])
def test_quantity_may_have_a_suffix(quantity: int | str) -> None:
    assert decode_spec(POLICY, new_limit(quantity=quantity)).resource_limits[0].quantity == quantity
