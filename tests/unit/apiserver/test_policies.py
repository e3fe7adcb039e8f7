"""ValidatingAdmissionPolicies: what they refuse, of whom, and in which words."""

from typing import Any

import pytest

from tapestry.kube.objects import Object

from .conftest import Hand

GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICIES, BINDINGS = f"{GROUP}/validatingadmissionpolicies", f"{GROUP}/validatingadmissionpolicybindings"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def a_policy(*expressions: str, rules: list[Object] | None = None, **spec: Any) -> Object:
    matched = rules or [rule("apps", "v1", "deployments")]
    return {
        "metadata": {"name": "replicas"},
        "spec": {
            "matchConstraints": {"resourceRules": matched},
            "validations": [{"expression": each} for each in expressions],
            **spec,
        },
    }


def rule(group: str, version: str, plural: str, *operations: str) -> Object:
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "resources": [plural],
        "operations": list(operations or ("CREATE", "UPDATE")),
    }


def a_binding(**spec: Any) -> Object:
    return {
        "metadata": {"name": "everywhere"},
        "spec": {"policyName": "replicas", "validationActions": ["Deny"], **spec},
    }


def a_deployment(replicas: int, **metadata: Any) -> Object:
    labels = {"app": "web"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod}
    return {"metadata": {"name": "web", **metadata}, "spec": spec}


async def bound(call: Hand, policy: Object, **binding: Any) -> None:
    await call.made(POLICIES, policy)
    await call.made(BINDINGS, a_binding(**binding))


async def test_a_policy_without_a_binding_refuses_nothing(call: Hand) -> None:
    await call.made(POLICIES, a_policy("object.spec.replicas > 1"))
    assert (await call("POST", DEPLOYMENTS, a_deployment(1)))[0] == 201


async def test_a_write_that_an_expression_is_false_of_is_refused_in_the_words_of_kubernetes(call: Hand) -> None:
    await bound(call, a_policy("object.spec.replicas > 1"))
    status, found = await call("POST", DEPLOYMENTS, a_deployment(1))
    why = (
        "ValidatingAdmissionPolicy 'replicas' with binding 'everywhere' denied request: "
        "failed expression: object.spec.replicas > 1"
    )
    assert status == 422
    assert found["reason"] == "Invalid"
    assert found["message"] == f'deployments.apps "web" is forbidden: {why}'
    assert found["details"]["causes"] == [{"message": why}]
    await call.made(DEPLOYMENTS, a_deployment(2))
    status, _ = await call(
        "PATCH", f"{DEPLOYMENTS}/web", {"spec": {"replicas": 1}}, kind="application/merge-patch+json"
    )
    assert status == 422


async def test_the_message_is_what_its_expression_says_or_what_is_written_or_the_expression(call: Hand) -> None:
    validations = [
        {
            "expression": "object.spec.replicas > 1",
            "messageExpression": "'wants more than ' + string(object.spec.replicas)",
            "message": "more",
            "reason": "Forbidden",
        }
    ]
    await bound(call, a_policy(validations=validations))
    status, found = await call("POST", DEPLOYMENTS, a_deployment(1))
    assert (status, found["reason"]) == (403, "Forbidden")
    assert found["message"].endswith("denied request: wants more than 1")


async def test_an_expression_that_fails_refuses_unless_failures_are_ignored(call: Hand) -> None:
    await bound(call, a_policy("object.spec.nope > 1"))
    status, found = await call("POST", DEPLOYMENTS, a_deployment(1))
    assert status == 422
    assert "expression 'object.spec.nope > 1' resulted in error: no such key: nope" in found["message"]
    found = (await call("GET", f"{POLICIES}/replicas"))[1]
    found["spec"]["failurePolicy"] = "Ignore"
    assert (await call("PUT", f"{POLICIES}/replicas", found))[0] == 200
    await call.made(DEPLOYMENTS, a_deployment(1))


async def test_a_write_that_changes_nothing_is_judged_as_any_other(call: Hand) -> None:
    await call.made(DEPLOYMENTS, a_deployment(1))
    await bound(call, a_policy("object.spec.replicas > 1"))
    status, found = await call("PATCH", f"{DEPLOYMENTS}/web", {}, kind="application/merge-patch+json")
    assert (status, "failed expression: object.spec.replicas > 1" in found["message"]) == (422, True)


async def test_variables_are_expressions_of_their_own_that_others_refer_to(call: Hand) -> None:
    variables = [
        {"name": "replicas", "expression": "object.spec.replicas"},
        {"name": "odd", "expression": "variables.replicas % 2 == 1"},
    ]
    await bound(call, a_policy("variables.replicas > 1", "variables.odd", variables=variables))
    assert (await call("POST", DEPLOYMENTS, a_deployment(2)))[0] == 422
    await call.made(DEPLOYMENTS, a_deployment(3))


async def test_conditions_say_which_writes_a_policy_is_about(call: Hand) -> None:
    conditions = [{"name": "not mine", "expression": "request.userInfo.username != 'admin'"}]
    await bound(call, a_policy("false", matchConditions=conditions))
    assert (await call("POST", DEPLOYMENTS, a_deployment(1)))[0] == 201


async def test_the_namespace_and_the_old_object_and_the_request_can_be_asked_for(call: Hand) -> None:
    expressions = (
        "namespaceObject.metadata.name == 'default' && namespaceObject.metadata.creationTimestamp.getFullYear() > 2000",
        "request.operation == 'CREATE' ? oldObject == null : oldObject.spec.replicas <= object.spec.replicas",
        "authorizer.group('apps').resource('deployments').namespace('default').check('create').allowed()",
        "authorizer.requestResource.check('create').allowed()",
        "request.kind.kind == 'Deployment' && request.resource.resource == 'deployments' && !has(request.subResource)",
    )
    await bound(call, a_policy(*expressions))
    await call.made(DEPLOYMENTS, a_deployment(2))
    status, found = await call(
        "PATCH", f"{DEPLOYMENTS}/web", {"spec": {"replicas": 1}}, kind="application/merge-patch+json"
    )
    assert status == 422, found


async def test_a_binding_can_warn_instead_of_refusing(call: Hand) -> None:
    await bound(call, a_policy("object.spec.replicas > 1"), validationActions=["Warn", "Audit"])
    answer = await call.answer("POST", DEPLOYMENTS, a_deployment(1))
    assert answer.status == 201  # type: ignore[union-attr]
    [warning] = [value for key, value in answer.headers.items() if key.lower() == "warning"]  # type: ignore[union-attr]
    assert "Validation failed for ValidatingAdmissionPolicy 'replicas' with binding 'everywhere'" in warning


async def test_selectors_of_a_binding_leave_namespaces_and_objects_out(call: Hand) -> None:
    elsewhere = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "elsewhere"}}}
    await bound(call, a_policy("false"), matchResources=elsewhere)
    await call.made(DEPLOYMENTS, a_deployment(1))
    await call.made("/api/v1/namespaces", {"metadata": {"name": "elsewhere"}})
    status, _ = await call("POST", DEPLOYMENTS.replace("default", "elsewhere"), a_deployment(1))
    assert status == 422


async def test_parameters_are_the_objects_that_a_binding_names_or_selects(call: Hand) -> None:
    maps = "/api/v1/namespaces/default/configmaps"
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    by_label = {"selector": {"matchLabels": {"limit": "yes"}}, "parameterNotFoundAction": "Deny"}
    await bound(call, a_policy("object.spec.replicas <= int(params.data.most)", paramKind=kind), paramRef=by_label)
    status, found = await call("POST", DEPLOYMENTS, a_deployment(1))
    assert status == 422
    assert "no params found for policy binding with `Deny` parameterNotFoundAction" in found["message"]
    limit = {"metadata": {"name": "limit", "labels": {"limit": "yes"}}, "data": {"most": "3"}}
    await call.made(maps, limit)
    assert (await call("POST", DEPLOYMENTS, a_deployment(4)))[0] == 422
    await call.made(DEPLOYMENTS, a_deployment(3))
    lower = {"metadata": {"name": "lower", "labels": {"limit": "yes"}}, "data": {"most": "1"}}
    await call.made(maps, lower)
    assert (await call("POST", DEPLOYMENTS, a_deployment(2, name="other")))[0] == 422


async def test_a_deletion_can_be_refused(call: Hand) -> None:
    await bound(call, a_policy("oldObject.spec.replicas > 1", rules=[rule("apps", "v1", "deployments", "DELETE")]))
    await call.made(DEPLOYMENTS, a_deployment(1))
    assert (await call("DELETE", f"{DEPLOYMENTS}/web"))[0] == 422


async def test_no_policy_is_about_policies(call: Hand) -> None:
    await bound(call, a_policy("false", rules=[rule("*", "*", "*", "*")]))
    assert (await call("DELETE", f"{BINDINGS}/everywhere"))[0] == 200
    assert (await call("DELETE", f"{POLICIES}/replicas"))[0] == 200


async def test_the_status_says_what_is_wrong_with_the_types_of_expressions(call: Hand) -> None:
    made = await call.made(POLICIES, a_policy("object.spec.replicas > 1"))
    assert made["status"] == {"observedGeneration": 1, "typeChecking": {}}
    assert made["spec"]["failurePolicy"] == "Fail"
    validation = {
        "expression": "object.spec.replicas > '1'",
        "messageExpression": "'wants replicas > 1, got ' + object.spec.replicas",
    }
    confused = {**a_policy(validations=[validation]), "metadata": {"name": "confused"}}
    found = (await call.made(POLICIES, confused))["status"]["typeChecking"]["expressionWarnings"]
    assert [each["fieldRef"] for each in found] == [
        "spec.validations[0].expression",
        "spec.validations[0].messageExpression",
    ]
    assert "apps/v1, Kind=Deployment: " in found[0]["warning"]
    assert "found no matching overload for '_>_' applied to '(int, string)'" in found[0]["warning"]
    assert "found no matching overload for '_+_' applied to '(string, int)'" in found[1]["warning"]


async def test_the_status_of_a_policy_is_its_writers_to_add_to(call: Hand) -> None:
    await call.made(POLICIES, a_policy("true"))
    condition = {
        "type": "Seen",
        "status": "True",
        "reason": "Test",
        "message": "",
        "lastTransitionTime": "2024-01-01T00:00:00Z",
    }
    patch = {"status": {"conditions": [condition]}}
    status, found = await call("PATCH", f"{POLICIES}/replicas/status", patch, kind="application/merge-patch+json")
    assert status == 200
    assert found["status"]["conditions"] == [condition]
    assert found["status"]["typeChecking"] == {}


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        ({"validations": [{"expression": "nope"}]}, "spec.validations[0].expression", "undeclared reference to 'nope'"),
        ({"validations": [{"expression": "1"}]}, "spec.validations[0].expression", "must evaluate to bool"),
        ({"validations": [{"expression": "request.nope"}]}, "spec.validations[0].expression", "undefined field 'nope'"),
        ({"validations": [{"expression": " "}]}, "spec.validations[0].expression", "expression is not specified"),
        ({"validations": []}, "spec.validations", "must contain at least one item"),
        (
            {"validations": [{"expression": "true", "messageExpression": "1"}]},
            "spec.validations[0].messageExpression",
            "must evaluate to string",
        ),
        ({"validations": [{"expression": "true", "reason": "No"}]}, "spec.validations[0].reason", "Unsupported value"),
        ({"validations": [{"expression": "params.x"}]}, "spec.validations[0].expression", "undeclared reference"),
        ({"failurePolicy": "Maybe"}, "spec.failurePolicy", "Unsupported value"),
        (
            {"matchConditions": [{"name": "a", "expression": "variables.x"}]},
            "spec.matchConditions[0].expression",
            "undeclared reference to 'variables'",
        ),
    ],
)
async def test_a_policy_that_cannot_be_meant_is_refused(call: Hand, spec: Object, field: str, words: str) -> None:
    status, found = await call("POST", POLICIES, a_policy("true", **spec))
    assert status == 422
    causes = {each["field"]: each["message"] for each in found["details"]["causes"]}
    assert words in causes[field]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"validationActions": []}, "spec.validationActions"),
        ({"validationActions": ["Deny", "Warn"]}, "spec.validationActions"),
        ({"validationActions": ["Deny", "Deny"]}, "spec.validationActions[1]"),
        ({"policyName": ""}, "spec.policyName"),
        ({"paramRef": {"name": "a"}}, "spec.paramRef.parameterNotFoundAction"),
    ],
)
async def test_a_binding_that_cannot_be_meant_is_refused(call: Hand, spec: Object, field: str) -> None:
    status, found = await call("POST", BINDINGS, a_binding(**spec))
    assert status == 422
    assert field in [each["field"] for each in found["details"]["causes"]]
