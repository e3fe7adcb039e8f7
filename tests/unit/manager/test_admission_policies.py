"""Admission policies of syncers and of the manager; `tests/integration/test_stolen_syncer_token.py` attacks them."""

from typing import Any

import pytest

from tapestry.apiserver.admission.validating_policies import compile_policy
from tapestry.kube.objects import Object, with_value
from tapestry.manager.admission_policies import admission_policies, restricted_condition

EXPECTED = list(admission_policies("home", ["tenant"]))
POLICIES = [each for each in EXPECTED if each["kind"] == "ValidatingAdmissionPolicy"]
NEVER = {"name": "never", "expression": "false"}
BINDINGS = [each for each in EXPECTED if each["kind"] == "ValidatingAdmissionPolicyBinding"]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy["metadata"]["name"])
def test_expressions_compile_and_fail_closed(policy: Object) -> None:
    compiled = compile_policy(policy)
    assert len(compiled.validations) == len(policy["spec"]["validations"])
    assert not compiled.ignores_failures
    assert all(each["reason"] == "Forbidden" for each in policy["spec"]["validations"])


def test_expressions_stay_below_the_cost_limit() -> None:
    """Each check costs 350,000 of the 1,000,000 that kube-apiserver allows for an expression."""
    expressions = [rule["expression"] for policy in POLICIES for rule in policy["spec"]["validations"]]
    assert max(each.count("authorizer.group") for each in expressions) == 2


def test_policies_do_not_depend_on_the_order_of_namespaces() -> None:
    assert list(admission_policies("home", ["tenant", "home"])) == EXPECTED
    assert list(admission_policies("home", ["other"])) != EXPECTED


def with_constraints(**fields: Any) -> list[Object]:
    constraints = [{**each["spec"]["matchConstraints"], **fields} for each in POLICIES]
    return [
        with_value(each, ("spec", "matchConstraints"), own) for each, own in zip(POLICIES, constraints, strict=True)
    ]


@pytest.mark.parametrize(
    ("policies", "bindings", "status"),
    [
        (POLICIES, BINDINGS, "True"),
        (with_constraints(matchPolicy="Equivalent", namespaceSelector={}, objectSelector={}), BINDINGS, "True"),
        (with_constraints(matchPolicy="Exact"), BINDINGS, "False"),
        (with_constraints(namespaceSelector={"matchLabels": {"a": "b"}}), BINDINGS, "False"),
        (with_constraints(excludeResourceRules=[{"resources": ["pods"]}]), BINDINGS, "False"),
        (with_constraints(resourceRules=[]), BINDINGS, "False"),
        ([with_value(each, ("spec", "matchConditions"), [NEVER]) for each in POLICIES], BINDINGS, "False"),
        ([with_value(each, ("spec", "variables"), []) for each in POLICIES], BINDINGS, "False"),
        ([with_value(each, ("spec", "failurePolicy"), "Ignore") for each in POLICIES], BINDINGS, "False"),
        ([], [], "False"),
        (POLICIES, BINDINGS[:1], "False"),
        (POLICIES[1:], BINDINGS, "False"),
        (POLICIES, [with_value(each, ("spec", "validationActions"), ["Warn"]) for each in BINDINGS], "False"),
        (POLICIES, [with_value(each, ("spec", "matchResources"), {"a": "b"}) for each in BINDINGS], "False"),
        ([with_value(each, ("spec", "validations"), []) for each in POLICIES], BINDINGS, "False"),
    ],
)
def test_condition_requires_installed_policies_that_deny(policies: Any, bindings: Any, status: str) -> None:
    assert restricted_condition(EXPECTED, policies, bindings)["status"] == status
