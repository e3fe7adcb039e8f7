"""Tests of the Pod Security Standards with the test cases of Kubernetes.

The pods under `tests/golden/pod_security` are from Kubernetes; `tools/pod_security_cases.py` downloads them.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tapestry.kube.objects import Object
from tapestry.kube.pod_security import CHECKS_BY_LEVEL, violations

GOLDEN = Path(__file__).parents[2] / "golden" / "pod_security"
LEVELS = ("baseline", "restricted")
STRICTER = {
    "capabilities_baseline": "capabilities_restricted",
    "hostpathvolumes": "restrictedvolumes",
    "seccompprofile_baseline": "seccompprofile_restricted",
}
"""Baseline checks that a stricter check replaces at the level restricted."""
ALONGSIDE = {
    ("baseline", "windowshostprocess"): {"hostnamespaces"},  # each requires the other
    ("restricted", "windowshostprocess"): {"hostnamespaces"},
    ("restricted", "privileged"): {"allowprivilegeescalation"},
    ("restricted", "allowprivilegeescalation3"): {"capabilities_restricted"},  # the pod has no security context
}
"""Additional checks that some pods fail."""


def fixtures(outcome: str) -> list[Any]:
    return [
        pytest.param(level, name, pod, id=f"{level}-{name}")
        for level in LEVELS
        for name, pod in yaml.safe_load((GOLDEN / f"{level}-{outcome}.yaml").read_text()).items()
    ]


PASSING, FAILING = fixtures("pass"), fixtures("fail")


@pytest.mark.parametrize(("level", "name", "pod"), PASSING)
def test_upstream_passing_pods_pass(level: str, name: str, pod: Object) -> None:
    assert violations(pod, level) == [], name


@pytest.mark.parametrize(("level", "name", "pod"), FAILING)
def test_upstream_failing_pods_fail_same_check(level: str, name: str, pod: Object) -> None:
    check = name.rstrip("0123456789")
    expected = STRICTER.get(check, check) if level == "restricted" else check
    alongside = ALONGSIDE.get((level, check)) or ALONGSIDE.get((level, name)) or set()
    assert {violation.rule.lower() for violation in violations(pod, level)} == {expected, *alongside}


@pytest.mark.parametrize("level", LEVELS)
def test_every_check_has_a_failing_pod(level: str) -> None:
    failed = {
        violation.rule
        for case_level, _, pod in (case.values for case in FAILING)
        if case_level == level
        for violation in violations(pod, case_level)
    }
    assert failed == {rule.name for rule in CHECKS_BY_LEVEL[level]}


@pytest.mark.parametrize(("level", "name", "pod"), FAILING)
def test_privileged_level_allows_everything(level: str, name: str, pod: Object) -> None:
    assert violations(pod, "privileged") == [], (level, name)


def test_unknown_level_raises() -> None:
    with pytest.raises(KeyError):
        violations({}, "basline")
