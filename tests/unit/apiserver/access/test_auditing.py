"""The audit log: events by policy, without secrets unless the policy includes bodies."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tapestry.apiserver.access.audit_policy import METADATA_POLICY, AuditPolicy, AuditRule, load_policy
from tapestry.apiserver.access.auditing import Auditor, source_ips
from tapestry.apiserver.core.api_errors import unauthorized
from tapestry.apiserver.core.requests import Attributes, Call, Target, User
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.handlers.watches import WatchResponse
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.kube.objects import Object
from tapestry.kube.resources import CONFIGMAPS, NODES, PODS, SECRETS
from tapestry.process.audit import AuditLog

from ..conftest import ADMIN, ServerClient

BOB = User("bob", ("devs", "system:authenticated"))
MAPS = "/api/v1/namespaces/default/configmaps"

Log = Callable[[], list[Any]]


def policy(*rules: Object, **more: Any) -> AuditPolicy:
    return msgspec.convert({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules, **more}, AuditPolicy)


class Audited:
    """A server with an audit log."""

    def __init__(self, call: ServerClient, path: Path, policy: AuditPolicy) -> None:
        self._path = path
        self._file = AuditLog(str(path))
        server = call.server
        auditor = Auditor(policy, self._file, server.authorize, server.verbs.now)
        self.handler = RequestHandler(server, 10, auditor)

    async def __call__(self, method: str, path: str, body: Any = None, user: User = ADMIN, **more: Any) -> Any:
        raw = msgspec.json.encode(body) if body is not None else b""
        headers = {"content-type": "application/json", "user-agent": "test"}
        return await self.handler.handle(Call(method, path, more.pop("query", {}), headers, raw, user, **more))

    def events(self) -> list[Any]:
        self._file.close()
        return [json.loads(line) for line in self._path.read_text().splitlines()]


async def test_default_policy_logs_requests_without_bodies(call: ServerClient, tmp_path: Path) -> None:
    audited = Audited(call, tmp_path / "audit.log", METADATA_POLICY)
    secret = {"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}}
    response = await audited("POST", "/api/v1/namespaces/default/secrets", secret, uri="/u?a=b", source_ip="10.0.0.1")
    first, last = audited.events()
    assert "hunter2" not in (tmp_path / "audit.log").read_text()
    assert (first["stage"], last["stage"]) == ("RequestReceived", "ResponseComplete")
    assert first["auditID"] == last["auditID"] == response.headers["Audit-Id"]
    assert {key: last[key] for key in ("kind", "apiVersion", "level", "verb", "requestURI", "userAgent")} == {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "verb": "create",
        "requestURI": "/u?a=b",
        "userAgent": "test",
    }
    assert last["sourceIPs"] == ["10.0.0.1"]
    assert last["user"] == {"username": "admin", "groups": ["system:masters"]}
    assert last["objectRef"] == {"resource": "secrets", "namespace": "default", "name": "s", "apiVersion": "v1"}
    assert last["responseStatus"] == {"metadata": {}, "code": 201}
    assert last["annotations"]["authorization.k8s.io/decision"] == "allow"
    assert "requestObject" not in last
    assert "responseObject" not in last


def new_policy(**spec: Any) -> Object:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["*"]}
    return {"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [rule]}, **spec}}


async def test_policy_annotations_are_logged_for_rejected_requests(call: ServerClient, tmp_path: Path) -> None:
    group = "/apis/admissionregistration.k8s.io/v1"
    annotations = {
        "who": "'named ' + object.metadata.name",
        "where": "' ' + params.metadata.name",
        "nothing": "' '",
        "null": "null",
    }
    policy_object = new_policy(
        paramKind={"apiVersion": "v1", "kind": "Namespace"},
        validations=[{"expression": "true"}, {"expression": "false", "message": "never"}, {"expression": "1 > 2"}],
        auditAnnotations=[{"key": key, "valueExpression": each} for key, each in annotations.items()],
    )
    await call.made(f"{group}/validatingadmissionpolicies", policy_object)
    for name, namespace, actions in (("a", "default", ["Warn", "Audit"]), ("b", "kube-system", ["Deny", "Audit"])):
        parameters = {"name": namespace, "parameterNotFoundAction": "Deny"}
        spec = {"policyName": "p", "validationActions": actions, "paramRef": parameters}
        await call.made(f"{group}/validatingadmissionpolicybindings", {"metadata": {"name": name}, "spec": spec})
    audited = Audited(call, tmp_path / "audit.log", METADATA_POLICY)
    response = await audited("POST", MAPS, {"metadata": {"name": "m"}})
    assert response.status == 422
    _, last = audited.events()
    result = last["annotations"]
    failure = "validation.policy.admission.k8s.io/validation_failure"
    assert json.loads(result.pop(failure)) == [
        {
            "message": "never",
            "policy": "p",
            "binding": "a",
            "expressionIndex": 1,
            "validationActions": ["Warn", "Audit"],
        }
    ]
    assert {key: each for key, each in result.items() if not key.startswith("authorization")} == {
        "p/who": "named m",
        "p/where": "default, kube-system",
    }


async def test_failing_annotation_rejects_unless_failure_policy_ignores(call: ServerClient, tmp_path: Path) -> None:
    group = "/apis/admissionregistration.k8s.io/v1"
    failing = new_policy(auditAnnotations=[{"key": "k", "valueExpression": "string(object.nope)"}])
    created = await call.made(f"{group}/validatingadmissionpolicies", failing)
    binding = {"policyName": "p", "validationActions": ["Deny"]}
    await call.made(f"{group}/validatingadmissionpolicybindings", {"metadata": {"name": "b"}, "spec": binding})
    audited = Audited(call, tmp_path / "audit.log", METADATA_POLICY)
    assert (await audited("POST", MAPS, {"metadata": {"name": "m"}})).status == 422
    ignoring = {**created, "spec": {**created["spec"], "failurePolicy": "Ignore"}}
    assert (await call("PUT", f"{group}/validatingadmissionpolicies/p", ignoring))[0] == 200
    assert (await audited("POST", MAPS, {"metadata": {"name": "m"}})).status == 201
    assert not [key for each in audited.events() for key in each.get("annotations", {}) if key.startswith("p/")]
    keyless = new_policy(auditAnnotations=[{"valueExpression": "'x'"}])
    status, result = await call("POST", f"{group}/validatingadmissionpolicies", keyless, dryRun="All")
    assert (status, result["details"]["causes"][0]["field"]) == (422, "spec.auditAnnotations[0].key")


async def test_level_decides_which_bodies_are_logged(call: ServerClient, tmp_path: Path) -> None:
    rules = [{"level": "Request", "users": ["admin"]}, {"level": "RequestResponse"}]
    audited = Audited(call, tmp_path / "audit.log", policy(*rules, omitStages=["RequestReceived"]))
    await audited("POST", MAPS, {"metadata": {"name": "a"}, "data": {"k": "v"}})
    await audited("GET", f"{MAPS}/a", user=User("other", ("system:masters",)))
    written, read = audited.events()
    assert written["requestObject"] == {"metadata": {"name": "a"}, "data": {"k": "v"}}
    assert "responseObject" not in written
    assert read["responseObject"]["data"] == {"k": "v"}


@pytest.mark.parametrize("omits", [True, False])
async def test_managed_fields_are_omitted_by_policy(call: ServerClient, tmp_path: Path, omits: bool) -> None:
    audit_policy = policy({"level": "RequestResponse"}, omitManagedFields=omits, omitStages=["RequestReceived"])
    audited = Audited(call, tmp_path / "audit.log", audit_policy)
    await audited("POST", MAPS, {"metadata": {"name": "a"}, "data": {"k": "v"}})
    await audited("GET", MAPS)
    create_event, list_event = audited.events()
    for logged in (create_event["responseObject"], next(each for each in list_event["responseObject"]["items"])):
        assert ("managedFields" in logged["metadata"]) is not omits


async def test_rejected_request_is_logged_with_reason(call: ServerClient, tmp_path: Path) -> None:
    audited = Audited(call, tmp_path / "audit.log", policy({"level": "Metadata"}, omitStages=["RequestReceived"]))
    await audited("GET", MAPS, user=BOB)
    await audited("GET", "/version", user=BOB)
    rejected, allowed = audited.events()
    status = rejected["responseStatus"]
    assert (status["code"], status["reason"], status["status"]) == (403, "Forbidden", "Failure")
    assert rejected["annotations"] == {"authorization.k8s.io/decision": "forbid", "authorization.k8s.io/reason": ""}
    assert allowed["annotations"]["authorization.k8s.io/reason"].startswith("RBAC: allowed by ClusterRoleBinding")


async def test_impersonated_user_is_logged(call: ServerClient, tmp_path: Path) -> None:
    audited = Audited(call, tmp_path / "audit.log", policy({"level": "Metadata"}, omitStages=["RequestReceived"]))
    await audited("GET", "/version", impersonation_headers=(("impersonate-user", "joe"),))
    [event] = audited.events()
    assert event["user"]["username"] == "admin"
    assert event["impersonatedUser"] == {"username": "joe", "groups": ["system:authenticated"]}


async def test_watch_is_logged_at_start_and_end(call: ServerClient, tmp_path: Path) -> None:
    audited = Audited(call, tmp_path / "audit.log", METADATA_POLICY)
    watch = await audited("GET", MAPS, query={"watch": "true"})
    assert isinstance(watch, WatchResponse)
    watch.end()
    watch.end()
    stages = [each["stage"] for each in audited.events()]
    assert stages == ["RequestReceived", "ResponseStarted", "ResponseComplete"]


async def test_unauthorized_request_is_logged(call: ServerClient, tmp_path: Path) -> None:
    audited = Audited(call, tmp_path / "audit.log", METADATA_POLICY)
    response = audited.handler.reject(Call("GET", MAPS, {}, {}, b"", User("")), unauthorized())
    *_, last = audited.events()
    assert (response.status, last["responseStatus"]["code"], last["verb"]) == (401, 401, "list")
    assert last["user"]["username"] == ""


async def test_request_without_matching_rule_is_not_logged(call: ServerClient, tmp_path: Path) -> None:
    audited = Audited(call, tmp_path / "audit.log", policy({"level": "Metadata", "verbs": ["delete"]}))
    response = await audited("GET", MAPS)
    assert isinstance(response, ApiResponse)
    assert response.headers["Audit-Id"]  # Kubernetes sends it even if nothing is logged
    assert audited.events() == []


def attributes_of(
    call: ServerClient, resource: Any, verb: str = "get", name: str = "", sub: str = "", namespace: str = ""
) -> Attributes:
    return Attributes(BOB, verb, Target(call.server.registry.info_for(resource), namespace, name, sub))


async def test_rules_match_all_request_attributes(call: ServerClient) -> None:
    pod, status = (
        attributes_of(call, PODS, namespace="default", name="p"),
        attributes_of(call, PODS, sub="status", name="p"),
    )
    node, path_request = attributes_of(call, NODES, name="n"), Attributes(BOB, "get", path="/healthz/ping")
    cases: list[tuple[Object, list[bool]]] = [
        ({"users": ["bob"]}, [True, True, True, True]),
        ({"users": ["joe"]}, [False, False, False, False]),
        ({"userGroups": ["devs", "x"]}, [True, True, True, True]),
        ({"verbs": ["list"]}, [False, False, False, False]),
        ({"resources": [{"group": ""}]}, [True, True, True, False]),
        ({"resources": [{"resources": ["pods"]}]}, [True, False, False, False]),
        ({"resources": [{"resources": ["pods/*"]}]}, [True, True, False, False]),
        ({"resources": [{"resources": ["*/status"]}]}, [False, True, False, False]),
        ({"resources": [{"resources": ["pods"], "resourceNames": ["q"]}]}, [False, False, False, False]),
        ({"resources": [{"group": "apps"}]}, [False, False, False, False]),
        ({"namespaces": ["default"]}, [True, False, False, False]),
        ({"namespaces": [""]}, [False, True, True, False]),
        ({"nonResourceURLs": ["/healthz*"]}, [False, False, False, True]),
        ({"nonResourceURLs": ["/version"]}, [False, False, False, False]),
    ]
    for spec, fits in cases:
        rule = msgspec.convert({"level": "Metadata", **spec}, AuditRule)
        assert [rule.matches(each) for each in (pod, status, node, path_request)] == fits, spec


async def test_first_matching_rule_applies_and_stages_add_up(call: ServerClient) -> None:
    first: Object = {"level": "None", "resources": [{"resources": ["configmaps"]}]}
    second: Object = {"level": "Request", "omitStages": ["Panic"], "omitManagedFields": False}
    result = policy(first, second, omitStages=["RequestReceived"], omitManagedFields=True)
    assert result.rule_for(attributes_of(call, CONFIGMAPS)).level == "None"
    rule = result.rule_for(attributes_of(call, SECRETS))
    assert (rule.level, set(rule.omit_stages)) == ("Request", {"RequestReceived", "Panic"})
    assert rule.omit_managed_fields is False


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Everything}]", "$.rules[0].level"),
        ("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None, user: [a]}]", "unknown field `user`"),
        ("apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: []", "$.apiVersion"),
        ("kind: Policy\nrules: []", "apiVersion"),
        ("[", "expected"),
        (
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None, namespaces: [a], nonResourceURLs: [/a]}]",
            "rules[0]",
        ),
    ],
)
def test_invalid_policy_is_rejected_with_position(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"policy\.yaml") as caught:
        load_policy(path)
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, ["10.0.0.1"]),
        ({"x-forwarded-for": "1.1.1.1, 2.2.2.2"}, ["1.1.1.1", "2.2.2.2", "10.0.0.1"]),
        ({"x-forwarded-for": "1.1.1.1", "x-real-ip": "3.3.3.3"}, ["1.1.1.1", "3.3.3.3", "10.0.0.1"]),
        ({"x-real-ip": "10.0.0.1"}, ["10.0.0.1"]),
    ],
)
def test_source_ips_end_with_the_client_address(headers: dict[str, str], expected: list[str]) -> None:
    assert source_ips(Call("GET", "/", {}, headers, b"", ADMIN, source_ip="10.0.0.1")) == expected


async def test_long_urls_count_in_the_buffer(
    call: ServerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many requests with long URLs must not hold much memory while the file cannot be written."""
    monkeypatch.setattr("tapestry.process.audit.MAX_BUFFERED_BYTES", 10_000)
    audited = Audited(call, tmp_path / "audit.log", METADATA_POLICY)
    for _ in range(3):
        await audited("GET", MAPS, uri=f"{MAPS}?x={'a' * 6_000}")
    assert len(audited.events()) == 1
