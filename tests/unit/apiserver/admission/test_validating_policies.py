"""ValidatingAdmissionPolicies: denials, bindings, parameters and validation of the policies themselves."""

from typing import Any

import pytest

from tapestry.kube.objects import Object

from ..conftest import ServerClient

GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICIES, BINDINGS = f"{GROUP}/validatingadmissionpolicies", f"{GROUP}/validatingadmissionpolicybindings"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def policy_body(*expressions: str, rules: list[Object] | None = None, **spec: Any) -> Object:
    resource_rules = rules or [rule("apps", "v1", "deployments")]
    return {
        "metadata": {"name": "replicas"},
        "spec": {
            "matchConstraints": {"resourceRules": resource_rules},
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


def binding_body(**spec: Any) -> Object:
    return {
        "metadata": {"name": "everywhere"},
        "spec": {"policyName": "replicas", "validationActions": ["Deny"], **spec},
    }


def deployment_body(replicas: int, **metadata: Any) -> Object:
    labels = {"app": "web"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod}
    return {"metadata": {"name": "web", **metadata}, "spec": spec}


async def create_bound_policy(call: ServerClient, policy: Object, **binding: Any) -> None:
    await call.made(POLICIES, policy)
    await call.made(BINDINGS, binding_body(**binding))


async def test_policy_without_binding_denies_nothing(call: ServerClient) -> None:
    await call.made(POLICIES, policy_body("object.spec.replicas > 1"))
    assert (await call("POST", DEPLOYMENTS, deployment_body(1)))[0] == 201


async def test_false_expression_denies_write(call: ServerClient) -> None:
    await create_bound_policy(call, policy_body("object.spec.replicas > 1"))
    status, response = await call("POST", DEPLOYMENTS, deployment_body(1))
    reason = (
        "ValidatingAdmissionPolicy 'replicas' with binding 'everywhere' denied request: "
        "failed expression: object.spec.replicas > 1"
    )
    assert status == 422
    assert response["reason"] == "Invalid"
    assert response["message"] == f'deployments.apps "web" is forbidden: {reason}'
    assert response["details"]["causes"] == [{"message": reason}]
    await call.made(DEPLOYMENTS, deployment_body(2))
    status, _ = await call(
        "PATCH", f"{DEPLOYMENTS}/web", {"spec": {"replicas": 1}}, kind="application/merge-patch+json"
    )
    assert status == 422


async def test_message_expression_sets_denial_message(call: ServerClient) -> None:
    validations = [
        {
            "expression": "object.spec.replicas > 1",
            "messageExpression": "'wants more than ' + string(object.spec.replicas)",
            "message": "more",
            "reason": "Forbidden",
        }
    ]
    await create_bound_policy(call, policy_body(validations=validations))
    status, response = await call("POST", DEPLOYMENTS, deployment_body(1))
    assert (status, response["reason"]) == (403, "Forbidden")
    assert response["message"].endswith("denied request: wants more than 1")


async def test_expression_error_denies_unless_ignored(call: ServerClient) -> None:
    await create_bound_policy(call, policy_body("object.spec.nope > 1"))
    status, response = await call("POST", DEPLOYMENTS, deployment_body(1))
    assert status == 422
    assert "expression 'object.spec.nope > 1' resulted in error: no such key: nope" in response["message"]
    response = (await call("GET", f"{POLICIES}/replicas"))[1]
    response["spec"]["failurePolicy"] = "Ignore"
    assert (await call("PUT", f"{POLICIES}/replicas", response))[0] == 200
    await call.made(DEPLOYMENTS, deployment_body(1))


async def test_write_without_changes_is_validated(call: ServerClient) -> None:
    await call.made(DEPLOYMENTS, deployment_body(1))
    await create_bound_policy(call, policy_body("object.spec.replicas > 1"))
    status, response = await call("PATCH", f"{DEPLOYMENTS}/web", {}, kind="application/merge-patch+json")
    assert (status, "failed expression: object.spec.replicas > 1" in response["message"]) == (422, True)


async def test_expressions_can_use_variables(call: ServerClient) -> None:
    variables = [
        {"name": "replicas", "expression": "object.spec.replicas"},
        {"name": "odd", "expression": "variables.replicas % 2 == 1"},
    ]
    await create_bound_policy(call, policy_body("variables.replicas > 1", "variables.odd", variables=variables))
    assert (await call("POST", DEPLOYMENTS, deployment_body(2)))[0] == 422
    await call.made(DEPLOYMENTS, deployment_body(3))


async def test_match_conditions_limit_policy(call: ServerClient) -> None:
    conditions = [{"name": "not mine", "expression": "request.userInfo.username != 'admin'"}]
    await create_bound_policy(call, policy_body("false", matchConditions=conditions))
    assert (await call("POST", DEPLOYMENTS, deployment_body(1)))[0] == 201


async def test_expressions_can_use_namespace_old_object_and_request(call: ServerClient) -> None:
    expressions = (
        "namespaceObject.metadata.name == 'default' && namespaceObject.metadata.creationTimestamp.getFullYear() > 2000",
        "request.operation == 'CREATE' ? oldObject == null : oldObject.spec.replicas <= object.spec.replicas",
        "authorizer.group('apps').resource('deployments').namespace('default').check('create').allowed()",
        "authorizer.requestResource.check('create').allowed()",
        "request.kind.kind == 'Deployment' && request.resource.resource == 'deployments' && !has(request.subResource)",
    )
    await create_bound_policy(call, policy_body(*expressions))
    await call.made(DEPLOYMENTS, deployment_body(2))
    status, response = await call(
        "PATCH", f"{DEPLOYMENTS}/web", {"spec": {"replicas": 1}}, kind="application/merge-patch+json"
    )
    assert status == 422, response


async def test_warn_action_adds_warning(call: ServerClient) -> None:
    await create_bound_policy(call, policy_body("object.spec.replicas > 1"), validationActions=["Warn", "Audit"])
    reply = await call.answer("POST", DEPLOYMENTS, deployment_body(1))
    assert reply.status == 201  # type: ignore[union-attr]
    [warning] = [value for key, value in reply.headers.items() if key.lower() == "warning"]  # type: ignore[union-attr]
    assert "Validation failed for ValidatingAdmissionPolicy 'replicas' with binding 'everywhere'" in warning


async def test_binding_selectors_limit_namespaces(call: ServerClient) -> None:
    elsewhere = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "elsewhere"}}}
    await create_bound_policy(call, policy_body("false"), matchResources=elsewhere)
    await call.made(DEPLOYMENTS, deployment_body(1))
    await call.made("/api/v1/namespaces", {"metadata": {"name": "elsewhere"}})
    status, _ = await call("POST", DEPLOYMENTS.replace("default", "elsewhere"), deployment_body(1))
    assert status == 422


async def test_parameters_are_selected_by_binding(call: ServerClient) -> None:
    maps = "/api/v1/namespaces/default/configmaps"
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    by_label = {"selector": {"matchLabels": {"limit": "yes"}}, "parameterNotFoundAction": "Deny"}
    await create_bound_policy(
        call, policy_body("object.spec.replicas <= int(params.data.most)", paramKind=kind), paramRef=by_label
    )
    status, response = await call("POST", DEPLOYMENTS, deployment_body(1))
    assert status == 422
    assert "no params found for policy binding with `Deny` parameterNotFoundAction" in response["message"]
    limit = {"metadata": {"name": "limit", "labels": {"limit": "yes"}}, "data": {"most": "3"}}
    await call.made(maps, limit)
    assert (await call("POST", DEPLOYMENTS, deployment_body(4)))[0] == 422
    await call.made(DEPLOYMENTS, deployment_body(3))
    lower = {"metadata": {"name": "lower", "labels": {"limit": "yes"}}, "data": {"most": "1"}}
    await call.made(maps, lower)
    assert (await call("POST", DEPLOYMENTS, deployment_body(2, name="other")))[0] == 422


async def test_policy_can_deny_deletion(call: ServerClient) -> None:
    await create_bound_policy(
        call, policy_body("oldObject.spec.replicas > 1", rules=[rule("apps", "v1", "deployments", "DELETE")])
    )
    await call.made(DEPLOYMENTS, deployment_body(1))
    assert (await call("DELETE", f"{DEPLOYMENTS}/web"))[0] == 422


async def test_policy_can_deny_token_requests(call: ServerClient) -> None:
    unbound = policy_body("has(object.spec.boundObjectRef)", rules=[rule("", "v1", "serviceaccounts/token", "CREATE")])
    await create_bound_policy(call, unbound)
    await call.made("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "robot"}})
    path = "/api/v1/namespaces/default/serviceaccounts/robot/token"
    status, found = await call("POST", path, {"spec": {"expirationSeconds": 600}})
    assert (status, "denied request" in found["message"]) == (422, True)
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "missing"}
    status, _ = await call("POST", path, {"spec": {"expirationSeconds": 600, "boundObjectRef": reference}})
    assert status == 404


async def test_policies_do_not_apply_to_policies(call: ServerClient) -> None:
    await create_bound_policy(call, policy_body("false", rules=[rule("*", "*", "*", "*")]))
    assert (await call("DELETE", f"{BINDINGS}/everywhere"))[0] == 200
    assert (await call("DELETE", f"{POLICIES}/replicas"))[0] == 200


async def test_status_lists_type_errors(call: ServerClient) -> None:
    created = await call.made(POLICIES, policy_body("object.spec.replicas > 1"))
    assert created["status"] == {"observedGeneration": 1, "typeChecking": {}}
    assert created["spec"]["failurePolicy"] == "Fail"
    validation = {
        "expression": "object.spec.replicas > '1'",
        "messageExpression": "'wants replicas > 1, got ' + object.spec.replicas",
    }
    invalid = {**policy_body(validations=[validation]), "metadata": {"name": "confused"}}
    warnings = (await call.made(POLICIES, invalid))["status"]["typeChecking"]["expressionWarnings"]
    assert [each["fieldRef"] for each in warnings] == [
        "spec.validations[0].expression",
        "spec.validations[0].messageExpression",
    ]
    assert "apps/v1, Kind=Deployment: " in warnings[0]["warning"]
    assert "found no matching overload for '_>_' applied to '(int, string)'" in warnings[0]["warning"]
    assert "found no matching overload for '_+_' applied to '(string, int)'" in warnings[1]["warning"]


async def test_policy_status_can_be_patched(call: ServerClient) -> None:
    await call.made(POLICIES, policy_body("true"))
    condition = {
        "type": "Seen",
        "status": "True",
        "reason": "Test",
        "message": "",
        "lastTransitionTime": "2024-01-01T00:00:00Z",
    }
    patch = {"status": {"conditions": [condition]}}
    status, policy = await call("PATCH", f"{POLICIES}/replicas/status", patch, kind="application/merge-patch+json")
    assert status == 200
    assert policy["status"]["conditions"] == [condition]
    assert policy["status"]["typeChecking"] == {}


@pytest.mark.parametrize(
    ("spec", "field", "message"),
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
async def test_invalid_policy_is_rejected(call: ServerClient, spec: Object, field: str, message: str) -> None:
    status, response = await call("POST", POLICIES, policy_body("true", **spec))
    assert status == 422
    causes = {each["field"]: each["message"] for each in response["details"]["causes"]}
    assert message in causes[field]


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
async def test_invalid_binding_is_rejected(call: ServerClient, spec: Object, field: str) -> None:
    status, response = await call("POST", BINDINGS, binding_body(**spec))
    assert status == 422
    assert field in [each["field"] for each in response["details"]["causes"]]
