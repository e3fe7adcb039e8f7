"""Which writes rules and selectors are about."""

from typing import Any

import pytest

from tapestry.apiserver.admission.match_conditions import VARIABLE_TYPES, compile_conditions, expression_variables
from tapestry.apiserver.admission.matching import (
    AdmissionAttributes,
    EquivalentResources,
    admission_attributes,
    policy_criteria,
    webhook_criteria,
)
from tapestry.apiserver.requests import Target, User
from tapestry.apiserver.resource_registry import ResourceInfo, ResourceRegistry, Subresource
from tapestry.apiserver.server import allow_all
from tapestry.apiserver.verbs import WriteRequest
from tapestry.kube.cel.errors import CompileError, EvaluationError
from tapestry.kube.objects import Object
from tapestry.kube.resources import NAMESPACES, NODES, PODS, Resource

OLD, NEW = Resource("example.com", "v1beta1", "Widget", "widgets"), Resource("example.com", "v1", "Widget", "widgets")
ROWS = ResourceRegistry(
    [
        *(ResourceInfo(each, each.kind.lower(), (), storage=each.name) for each in (PODS, NODES, NAMESPACES, OLD, NEW)),
    ]
)
EVERYTHING = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"]}
SCALE = Subresource("scale", "Scale", ("update",), "autoscaling", "v1")


def an_attempt(resource: Resource = PODS, **said: Any) -> AdmissionAttributes:
    named = {"metadata": {"name": "a", "labels": {"app": "web"}}}
    found: dict[str, Any] = {
        "operation": "CREATE",
        "resource": resource,
        "subresource": "",
        "kind": resource,
        "name": "a",
        "namespace": "default" if resource.namespaced else "a" if resource == NAMESPACES else "",
        "user": User("admin"),
        "dry": False,
        "new": named,
        "old": None,
    }
    return AdmissionAttributes(**{**found, **said})


def matched(attempt: AdmissionAttributes, **webhook: Any) -> Resource | None:
    criteria = webhook_criteria({"rules": [EVERYTHING], **webhook})
    return criteria.matches(attempt, EquivalentResources(ROWS), lambda name: {"name": name})


def a_rule(**said: Any) -> list[Object]:
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    return [{**pods, **said}]


@pytest.mark.parametrize(
    ("rule", "attempt", "meant"),
    [
        ({}, an_attempt(), True),
        ({}, an_attempt(operation="UPDATE"), False),
        ({"operations": ["*"]}, an_attempt(operation="DELETE"), True),
        ({"apiGroups": ["apps"]}, an_attempt(), False),
        ({"apiGroups": ["*"]}, an_attempt(), True),
        ({"apiVersions": ["v2"]}, an_attempt(), False),
        ({"apiVersions": ["*"]}, an_attempt(), True),
        ({}, an_attempt(subresource="status"), False),
        ({"resources": ["pods/status"]}, an_attempt(subresource="status"), True),
        ({"resources": ["pods/status"]}, an_attempt(), False),
        ({"resources": ["pods/*"]}, an_attempt(subresource="status"), True),
        ({"resources": ["pods/*"]}, an_attempt(), True),
        ({"resources": ["*"]}, an_attempt(), True),
        ({"resources": ["*"]}, an_attempt(subresource="status"), False),
        ({"resources": ["*/status"]}, an_attempt(subresource="status"), True),
        ({"resources": ["*/*"]}, an_attempt(subresource="status"), True),
        ({"scope": "Namespaced"}, an_attempt(), True),
        ({"scope": "Cluster"}, an_attempt(), False),
        ({"resources": ["*"], "scope": "Cluster"}, an_attempt(NODES), True),
        ({"resources": ["*"], "scope": "Namespaced"}, an_attempt(NODES), False),
        ({"resources": ["*"], "scope": "Cluster"}, an_attempt(NAMESPACES), True),
        ({"resources": ["*"], "scope": "Namespaced"}, an_attempt(NAMESPACES), False),
        ({"resourceNames": ["a"]}, an_attempt(), True),
        ({"resourceNames": ["b"]}, an_attempt(), False),
    ],
)
def test_a_rule_means_what_all_of_its_parts_cover(rule: Object, attempt: AdmissionAttributes, meant: bool) -> None:
    assert (matched(attempt, rules=a_rule(**rule)) is not None) is meant


def test_a_webhook_without_rules_is_about_nothing_and_a_binding_without_rules_about_everything() -> None:
    assert matched(an_attempt(), rules=[]) is None
    assert policy_criteria(None).matches(an_attempt(), EquivalentResources(ROWS), lambda _: {}) == PODS


def test_an_object_is_known_by_another_version_unless_the_match_has_to_be_exact() -> None:
    rules = a_rule(apiGroups=["example.com"], apiVersions=["v1"], resources=["widgets"])
    assert matched(an_attempt(NEW), rules=rules) == NEW
    assert matched(an_attempt(OLD), rules=rules) == NEW
    assert matched(an_attempt(OLD), rules=rules, matchPolicy="Exact") is None


def test_exceptions_are_not_meant() -> None:
    criteria = policy_criteria({"resourceRules": [EVERYTHING], "excludeResourceRules": a_rule()})
    labels = lambda _: {}  # noqa: E731
    assert criteria.matches(an_attempt(), EquivalentResources(ROWS), labels) is None
    assert criteria.matches(an_attempt(NODES), EquivalentResources(ROWS), labels) == NODES


@pytest.mark.parametrize(
    ("selector", "attempt", "meant"),
    [
        ({"name": "default"}, an_attempt(), True),
        ({"name": "other"}, an_attempt(), False),
        ({"name": "other"}, an_attempt(NODES), True),  # what is in no namespace is never left out
        ({"app": "web"}, an_attempt(NAMESPACES), True),  # a namespace that is written has the labels that it is to have
        ({"name": "a"}, an_attempt(NAMESPACES, operation="DELETE", new=None), True),
        ({"app": "web"}, an_attempt(NAMESPACES, operation="DELETE", new=None), False),
    ],
)
def test_namespaces_are_selected_by_their_labels(selector: Object, attempt: AdmissionAttributes, meant: bool) -> None:
    assert (matched(attempt, namespaceSelector={"matchLabels": selector}) is not None) is meant


def test_objects_are_selected_by_the_labels_that_they_have_or_had() -> None:
    web = {"objectSelector": {"matchLabels": {"app": "web"}}}
    bare: Object = {"metadata": {"name": "a"}}
    labelled = {"metadata": {"name": "a", "labels": {"app": "web"}}}
    assert matched(an_attempt(new=labelled), **web) == PODS
    assert matched(an_attempt(new=bare, old=labelled), **web) == PODS
    assert matched(an_attempt(new=None, old=labelled), **web) == PODS
    assert matched(an_attempt(new=bare), **web) is None


def test_configurations_of_admission_are_exempt() -> None:
    group = "admissionregistration.k8s.io"
    webhooks = Resource(group, "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False)
    assert an_attempt(webhooks).is_exempt
    assert not an_attempt().is_exempt


def test_an_attempt_is_what_a_request_wants_to_do() -> None:
    row = ResourceInfo(PODS, "pod", (), subresources={"scale": SCALE}, storage="pods")
    body = {"metadata": {"name": "made"}}
    attempt = admission_attributes(
        WriteRequest("patch", Target(row, "default", "a", "scale"), User("u"), {"dryRun": "All"}), body, body
    )
    assert (attempt.operation, attempt.kind.kind, attempt.resource, attempt.is_dry_run) == (
        "UPDATE",
        "Scale",
        PODS,
        True,
    )
    namespace = ResourceInfo(NAMESPACES, "namespace", (), storage="namespaces")
    made = admission_attributes(WriteRequest("create", Target(namespace), User("u"), {}), None, body)
    assert (made.operation, made.name, made.namespace) == ("CREATE", "made", "made")


# -- conditions


def held(*expressions: str, attempt: AdmissionAttributes | None = None) -> bool:
    attempt = attempt or an_attempt()
    listed = [{"name": f"c{number}", "expression": each} for number, each in enumerate(expressions)]
    return compile_conditions(listed).all_hold(expression_variables(attempt, attempt.resource, allow_all))


def test_conditions_hold_where_all_of_them_do() -> None:
    assert held()
    assert held("request.operation == 'CREATE'", "object.metadata.name == 'a'")
    assert not held("request.operation == 'CREATE'", "request.userInfo.username == 'nobody'")
    assert held("oldObject == null", "request.namespace == 'default' && request.resource.resource == 'pods'")
    assert held("authorizer.group('').resource('pods').namespace('default').check('create').allowed()")


def test_a_condition_that_fails_matters_only_where_none_is_false() -> None:
    assert not held("object.nope == 1", "false")
    with pytest.raises(EvaluationError, match=r"expression 'object\.nope == 1' resulted in error: no such key: nope"):
        held("object.nope == 1", "true")


def test_conditions_cannot_ask_for_what_there_is_not() -> None:
    assert "params" not in VARIABLE_TYPES
    with pytest.raises(CompileError):
        held("params.x == 1")


def test_conditions_may_cost_so_much_and_no_more() -> None:
    many = {"metadata": {"name": "a"}, "items": list(range(3000))}
    with pytest.raises(EvaluationError, match="cost limit exceeded"):
        held("object.items.all(x, object.items.all(y, x + y >= 0))", attempt=an_attempt(new=many))
