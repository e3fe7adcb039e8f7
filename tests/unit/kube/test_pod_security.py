"""The Pod Security Standards, as Kubernetes tests them.

The pods under `tests/golden/pod_security` are Kubernetes' own; `tools/pod_security_cases.py` fetches them.
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
"""Checks of baseline that another takes the place of at restricted."""
ALONGSIDE = {
    ("baseline", "windowshostprocess"): {"hostnamespaces"},  # one is not valid without the other
    ("restricted", "windowshostprocess"): {"hostnamespaces"},
    ("restricted", "privileged"): {"allowprivilegeescalation"},
    ("restricted", "allowprivilegeescalation3"): {"capabilities_restricted"},  # has no security context at all
}
"""What fails some pods beside the check they are for."""


def fixtures(outcome: str) -> list[Any]:
    return [
        pytest.param(level, name, pod, id=f"{level}-{name}")
        for level in LEVELS
        for name, pod in yaml.safe_load((GOLDEN / f"{level}-{outcome}.yaml").read_text()).items()
    ]


PASSING, FAILING = fixtures("pass"), fixtures("fail")


@pytest.mark.parametrize(("level", "name", "pod"), PASSING)
def test_what_kubernetes_lets_pass_passes(level: str, name: str, pod: Object) -> None:
    assert violations(pod, level) == [], name


@pytest.mark.parametrize(("level", "name", "pod"), FAILING)
def test_what_kubernetes_refuses_is_refused_by_the_same_check(level: str, name: str, pod: Object) -> None:
    check = name.rstrip("0123456789")
    expected = STRICTER.get(check, check) if level == "restricted" else check
    alongside = ALONGSIDE.get((level, check)) or ALONGSIDE.get((level, name)) or set()
    assert {found.rule.lower() for found in violations(pod, level)} == {expected, *alongside}


@pytest.mark.parametrize("level", LEVELS)
def test_every_rule_of_the_standard_has_a_pod_that_fails_it(level: str) -> None:
    failed = {
        found.rule for at, _, pod in (case.values for case in FAILING) if at == level for found in violations(pod, at)
    }
    assert failed == {rule.name for rule in CHECKS_BY_LEVEL[level]}


@pytest.mark.parametrize(("level", "name", "pod"), FAILING)
def test_nothing_is_asked_at_level_privileged(level: str, name: str, pod: Object) -> None:
    assert violations(pod, "privileged") == [], (level, name)


def test_a_level_that_nobody_knows_lets_nothing_pass() -> None:
    with pytest.raises(KeyError):
        violations({}, "basline")
