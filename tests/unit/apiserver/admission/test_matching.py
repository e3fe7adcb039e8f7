"""Matching of writes by rules, selectors and conditions."""

from typing import Any

import pytest

from tapestry.apiserver.admission.expression_variables import expression_variables
from tapestry.apiserver.admission.matching import (
    AdmissionAttributes,
    EquivalentResources,
    admission_attributes,
    policy_criteria,
    webhook_criteria,
)
from tapestry.apiserver.core.match_conditions import VARIABLE_TYPES, compile_conditions
from tapestry.apiserver.core.requests import Target, User, WriteRequest, allow_all
from tapestry.apiserver.core.resource_registry import ResourceInfo, ResourceRegistry, Subresource
from tapestry.kube.cel.errors import CompileError, EvaluationError
from tapestry.kube.objects import Object
from tapestry.kube.resources import NAMESPACES, NODES, PODS, Resource

OLD, NEW = Resource("example.com", "v1beta1", "Widget", "widgets"), Resource("example.com", "v1", "Widget", "widgets")
REGISTRY = ResourceRegistry(
    [
        *(ResourceInfo(each, each.kind.lower(), (), storage=each.name) for each in (PODS, NODES, NAMESPACES, OLD, NEW)),
    ]
)
EVERYTHING = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"]}
SCALE = Subresource("scale", "Scale", ("update",), "autoscaling", "v1")


def attributes(resource: Resource = PODS, **overrides: Any) -> AdmissionAttributes:
    obj = {"metadata": {"name": "a", "labels": {"app": "web"}}}
    defaults: dict[str, Any] = {
        "operation": "CREATE",
        "resource": resource,
        "subresource": "",
        "kind": resource,
        "name": "a",
        "namespace": "default" if resource.namespaced else "a" if resource == NAMESPACES else "",
        "user": User("admin"),
        "is_dry_run": False,
        "new": obj,
        "old": None,
    }
    return AdmissionAttributes(**{**defaults, **overrides})


def matched_resource(write: AdmissionAttributes, **webhook: Any) -> Resource | None:
    criteria = webhook_criteria({"rules": [EVERYTHING], **webhook})
    return criteria.matches(write, EquivalentResources(REGISTRY), lambda name: {"name": name})


def rule_list(**overrides: Any) -> list[Object]:
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    return [{**pods, **overrides}]


@pytest.mark.parametrize(
    ("rule", "write", "matches"),
    [
        ({}, attributes(), True),
        ({}, attributes(operation="UPDATE"), False),
        ({"operations": ["*"]}, attributes(operation="DELETE"), True),
        ({"apiGroups": ["apps"]}, attributes(), False),
        ({"apiGroups": ["*"]}, attributes(), True),
        ({"apiVersions": ["v2"]}, attributes(), False),
        ({"apiVersions": ["*"]}, attributes(), True),
        ({}, attributes(subresource="status"), False),
        ({"resources": ["pods/status"]}, attributes(subresource="status"), True),
        ({"resources": ["pods/status"]}, attributes(), False),
        ({"resources": ["pods/*"]}, attributes(subresource="status"), True),
        ({"resources": ["pods/*"]}, attributes(), True),
        ({"resources": ["*"]}, attributes(), True),
        ({"resources": ["*"]}, attributes(subresource="status"), False),
        ({"resources": ["*/status"]}, attributes(subresource="status"), True),
        ({"resources": ["*/*"]}, attributes(subresource="status"), True),
        ({"scope": "Namespaced"}, attributes(), True),
        ({"scope": "Cluster"}, attributes(), False),
        ({"resources": ["*"], "scope": "Cluster"}, attributes(NODES), True),
        ({"resources": ["*"], "scope": "Namespaced"}, attributes(NODES), False),
        ({"resources": ["*"], "scope": "Cluster"}, attributes(NAMESPACES), True),
        ({"resources": ["*"], "scope": "Namespaced"}, attributes(NAMESPACES), False),
        ({"resourceNames": ["a"]}, attributes(), True),
        ({"resourceNames": ["b"]}, attributes(), False),
    ],
)
def test_rule_matches_if_all_parts_match(rule: Object, write: AdmissionAttributes, matches: bool) -> None:
    assert (matched_resource(write, rules=rule_list(**rule)) is not None) is matches


def test_missing_rules_match_nothing_or_everything() -> None:
    assert matched_resource(attributes(), rules=[]) is None
    assert policy_criteria(None).matches(attributes(), EquivalentResources(REGISTRY), lambda _: {}) == PODS


def test_equivalent_version_matches_unless_exact() -> None:
    rules = rule_list(apiGroups=["example.com"], apiVersions=["v1"], resources=["widgets"])
    assert matched_resource(attributes(NEW), rules=rules) == NEW
    assert matched_resource(attributes(OLD), rules=rules) == NEW
    assert matched_resource(attributes(OLD), rules=rules, matchPolicy="Exact") is None


def test_excluded_rules_do_not_match() -> None:
    criteria = policy_criteria({"resourceRules": [EVERYTHING], "excludeResourceRules": rule_list()})
    labels = lambda _: {}  # noqa: E731
    assert criteria.matches(attributes(), EquivalentResources(REGISTRY), labels) is None
    assert criteria.matches(attributes(NODES), EquivalentResources(REGISTRY), labels) == NODES


@pytest.mark.parametrize(
    ("selector", "write", "matches"),
    [
        ({"name": "default"}, attributes(), True),
        ({"name": "other"}, attributes(), False),
        ({"name": "other"}, attributes(NODES), True),  # cluster-scoped objects always match
        ({"app": "web"}, attributes(NAMESPACES), True),  # a namespace is matched by its new labels
        ({"name": "a"}, attributes(NAMESPACES, operation="DELETE", new=None), True),
        ({"app": "web"}, attributes(NAMESPACES, operation="DELETE", new=None), False),
    ],
)
def test_namespace_selector_uses_namespace_labels(selector: Object, write: AdmissionAttributes, matches: bool) -> None:
    assert (matched_resource(write, namespaceSelector={"matchLabels": selector}) is not None) is matches


def test_object_selector_uses_old_and_new_labels() -> None:
    web = {"objectSelector": {"matchLabels": {"app": "web"}}}
    bare: Object = {"metadata": {"name": "a"}}
    labelled = {"metadata": {"name": "a", "labels": {"app": "web"}}}
    assert matched_resource(attributes(new=labelled), **web) == PODS
    assert matched_resource(attributes(new=bare, old=labelled), **web) == PODS
    assert matched_resource(attributes(new=None, old=labelled), **web) == PODS
    assert matched_resource(attributes(new=bare), **web) is None


def test_admission_configurations_are_exempt() -> None:
    group = "admissionregistration.k8s.io"
    webhooks = Resource(group, "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False)
    assert attributes(webhooks).is_exempt
    assert not attributes().is_exempt


def test_attributes_describe_the_request() -> None:
    info = ResourceInfo(PODS, "pod", (), subresources={"scale": SCALE}, storage="pods")
    body = {"metadata": {"name": "made"}}
    updated = admission_attributes(
        WriteRequest("patch", Target(info, "default", "a", "scale"), User("u"), {"dryRun": "All"}), body, body
    )
    assert (updated.operation, updated.kind.kind, updated.resource, updated.is_dry_run) == (
        "UPDATE",
        "Scale",
        PODS,
        True,
    )
    namespace = ResourceInfo(NAMESPACES, "namespace", (), storage="namespaces")
    created = admission_attributes(WriteRequest("create", Target(namespace), User("u"), {}), None, body)
    assert (created.operation, created.name, created.namespace) == ("CREATE", "made", "made")


# -- conditions


def all_hold(*expressions: str, write: AdmissionAttributes | None = None) -> bool:
    write = write or attributes()
    listed = [{"name": f"c{number}", "expression": each} for number, each in enumerate(expressions)]
    return compile_conditions(listed).all_hold(expression_variables(write, write.resource, allow_all))


def test_conditions_hold_if_all_hold() -> None:
    assert all_hold()
    assert all_hold("request.operation == 'CREATE'", "object.metadata.name == 'a'")
    assert not all_hold("request.operation == 'CREATE'", "request.userInfo.username == 'nobody'")
    assert all_hold("oldObject == null", "request.namespace == 'default' && request.resource.resource == 'pods'")
    assert all_hold("authorizer.group('').resource('pods').namespace('default').check('create').allowed()")


def test_condition_error_counts_only_if_none_is_false() -> None:
    assert not all_hold("object.nope == 1", "false")
    with pytest.raises(EvaluationError, match=r"expression 'object\.nope == 1' resulted in error: no such key: nope"):
        all_hold("object.nope == 1", "true")


def test_conditions_cannot_use_unknown_variables() -> None:
    assert "params" not in VARIABLE_TYPES
    with pytest.raises(CompileError):
        all_hold("params.x == 1")


def test_conditions_have_cost_limit() -> None:
    many = {"metadata": {"name": "a"}, "items": list(range(3000))}
    with pytest.raises(EvaluationError, match="cost limit exceeded"):
        all_hold("object.items.all(x, object.items.all(y, x + y >= 0))", write=attributes(new=many))
