"""The audit log: who asked for what, as the policy says, and no secrets unless it says so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tapestry.apiserver.access.audit_policy import METADATA_POLICY, AuditPolicy, AuditRule, load_policy
from tapestry.apiserver.access.auditing import Auditor, source_ips
from tapestry.apiserver.api_errors import unauthorized
from tapestry.apiserver.requests import Call, Target, User
from tapestry.apiserver.server import ApiResponse, Attributes
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.apiserver.watches import WatchResponse
from tapestry.kube.objects import Object
from tapestry.kube.resources import CONFIGMAPS, NODES, PODS, SECRETS
from tapestry.process.audit import AuditLog

from .conftest import ADMIN, Hand

BOB = User("bob", ("devs", "system:authenticated"))
MAPS = "/api/v1/namespaces/default/configmaps"

Log = Callable[[], list[Any]]


def policy(*rules: Object, **more: Any) -> AuditPolicy:
    return msgspec.convert({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules, **more}, AuditPolicy)


class Audited:
    """A server with an audit log."""

    def __init__(self, call: Hand, path: Path, policy: AuditPolicy) -> None:
        self._path = path
        self._file = AuditLog(str(path))
        server = call.server
        auditor = Auditor(policy, self._file, server.authorize, server.verbs.now)
        self.reception = RequestHandler(server, 10, auditor)

    async def __call__(self, method: str, path: str, body: Any = None, user: User = ADMIN, **more: Any) -> Any:
        raw = msgspec.json.encode(body) if body is not None else b""
        headers = {"content-type": "application/json", "user-agent": "test"}
        return await self.reception.handle(Call(method, path, more.pop("query", {}), headers, raw, user, **more))

    def events(self) -> list[Any]:
        self._file.close()
        return [json.loads(line) for line in self._path.read_text().splitlines()]


async def test_by_default_every_request_is_written_down_and_no_body_is(call: Hand, tmp_path: Path) -> None:
    audited = Audited(call, tmp_path / "audit.log", METADATA_POLICY)
    secret = {"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}}
    answer = await audited("POST", "/api/v1/namespaces/default/secrets", secret, uri="/u?a=b", source="10.0.0.1")
    first, last = audited.events()
    assert "hunter2" not in (tmp_path / "audit.log").read_text()
    assert (first["stage"], last["stage"]) == ("RequestReceived", "ResponseComplete")
    assert first["auditID"] == last["auditID"] == answer.headers["Audit-Id"]
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


def a_policy(**spec: Any) -> Object:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["*"]}
    return {"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [rule]}, **spec}}


async def test_what_policies_have_to_say_is_written_down_whether_or_not_they_refuse(call: Hand, tmp_path: Path) -> None:
    group = "/apis/admissionregistration.k8s.io/v1"
    remarks = {
        "who": "'named ' + object.metadata.name",
        "where": "' ' + params.metadata.name",
        "nothing": "' '",
        "null": "null",
    }
    written = a_policy(
        paramKind={"apiVersion": "v1", "kind": "Namespace"},
        validations=[{"expression": "true"}, {"expression": "false", "message": "never"}, {"expression": "1 > 2"}],
        auditAnnotations=[{"key": key, "valueExpression": each} for key, each in remarks.items()],
    )
    await call.made(f"{group}/validatingadmissionpolicies", written)
    for name, namespace, actions in (("a", "default", ["Warn", "Audit"]), ("b", "kube-system", ["Deny", "Audit"])):
        given = {"name": namespace, "parameterNotFoundAction": "Deny"}
        spec = {"policyName": "p", "validationActions": actions, "paramRef": given}
        await call.made(f"{group}/validatingadmissionpolicybindings", {"metadata": {"name": name}, "spec": spec})
    audited = Audited(call, tmp_path / "audit.log", METADATA_POLICY)
    answer = await audited("POST", MAPS, {"metadata": {"name": "m"}})
    assert answer.status == 422
    _, last = audited.events()
    found = last["annotations"]
    failure = "validation.policy.admission.k8s.io/validation_failure"
    assert json.loads(found.pop(failure)) == [
        {
            "message": "never",
            "policy": "p",
            "binding": "a",
            "expressionIndex": 1,
            "validationActions": ["Warn", "Audit"],
        }
    ]
    assert {key: each for key, each in found.items() if not key.startswith("authorization")} == {
        "p/who": "named m",
        "p/where": "default, kube-system",
    }


async def test_a_remark_that_cannot_be_made_refuses_unless_failures_are_ignored(call: Hand, tmp_path: Path) -> None:
    group = "/apis/admissionregistration.k8s.io/v1"
    wrong = a_policy(auditAnnotations=[{"key": "k", "valueExpression": "string(object.nope)"}])
    made = await call.made(f"{group}/validatingadmissionpolicies", wrong)
    binding = {"policyName": "p", "validationActions": ["Deny"]}
    await call.made(f"{group}/validatingadmissionpolicybindings", {"metadata": {"name": "b"}, "spec": binding})
    audited = Audited(call, tmp_path / "audit.log", METADATA_POLICY)
    assert (await audited("POST", MAPS, {"metadata": {"name": "m"}})).status == 422
    forgiving = {**made, "spec": {**made["spec"], "failurePolicy": "Ignore"}}
    assert (await call("PUT", f"{group}/validatingadmissionpolicies/p", forgiving))[0] == 200
    assert (await audited("POST", MAPS, {"metadata": {"name": "m"}})).status == 201
    assert not [key for each in audited.events() for key in each.get("annotations", {}) if key.startswith("p/")]
    nameless = a_policy(auditAnnotations=[{"valueExpression": "'x'"}])
    status, found = await call("POST", f"{group}/validatingadmissionpolicies", nameless, dryRun="All")
    assert (status, found["details"]["causes"][0]["field"]) == (422, "spec.auditAnnotations[0].key")


async def test_levels_say_whether_bodies_are_written_down(call: Hand, tmp_path: Path) -> None:
    rules = [{"level": "Request", "users": ["admin"]}, {"level": "RequestResponse"}]
    audited = Audited(call, tmp_path / "audit.log", policy(*rules, omitStages=["RequestReceived"]))
    await audited("POST", MAPS, {"metadata": {"name": "a"}, "data": {"k": "v"}})
    await audited("GET", f"{MAPS}/a", user=User("other", ("system:masters",)))
    written, read = audited.events()
    assert written["requestObject"] == {"metadata": {"name": "a"}, "data": {"k": "v"}}
    assert "responseObject" not in written
    assert read["responseObject"]["data"] == {"k": "v"}


@pytest.mark.parametrize("omits", [True, False])
async def test_managed_fields_are_left_out_where_the_policy_says_so(call: Hand, tmp_path: Path, omits: bool) -> None:
    wanted = policy({"level": "RequestResponse"}, omitManagedFields=omits, omitStages=["RequestReceived"])
    audited = Audited(call, tmp_path / "audit.log", wanted)
    await audited("POST", MAPS, {"metadata": {"name": "a"}, "data": {"k": "v"}})
    await audited("GET", MAPS)
    made, listed = audited.events()
    for shown in (made["responseObject"], next(each for each in listed["responseObject"]["items"])):
        assert ("managedFields" in shown["metadata"]) is not omits


async def test_a_refusal_is_written_down_with_its_reason(call: Hand, tmp_path: Path) -> None:
    audited = Audited(call, tmp_path / "audit.log", policy({"level": "Metadata"}, omitStages=["RequestReceived"]))
    await audited("GET", MAPS, user=BOB)
    await audited("GET", "/version", user=BOB)
    refused, allowed = audited.events()
    status = refused["responseStatus"]
    assert (status["code"], status["reason"], status["status"]) == (403, "Forbidden", "Failure")
    assert refused["annotations"] == {"authorization.k8s.io/decision": "forbid", "authorization.k8s.io/reason": ""}
    assert allowed["annotations"]["authorization.k8s.io/reason"].startswith("RBAC: allowed by ClusterRoleBinding")


async def test_whose_name_was_used_is_written_down(call: Hand, tmp_path: Path) -> None:
    audited = Audited(call, tmp_path / "audit.log", policy({"level": "Metadata"}, omitStages=["RequestReceived"]))
    await audited("GET", "/version", impersonates=(("impersonate-user", "joe"),))
    [event] = audited.events()
    assert event["user"]["username"] == "admin"
    assert event["impersonatedUser"] == {"username": "joe", "groups": ["system:authenticated"]}


async def test_a_watch_is_written_down_when_it_begins_and_when_it_ends(call: Hand, tmp_path: Path) -> None:
    audited = Audited(call, tmp_path / "audit.log", METADATA_POLICY)
    watching = await audited("GET", MAPS, query={"watch": "true"})
    assert isinstance(watching, WatchResponse)
    watching.end()
    watching.end()
    stages = [each["stage"] for each in audited.events()]
    assert stages == ["RequestReceived", "ResponseStarted", "ResponseComplete"]


async def test_whom_nobody_knows_is_written_down_with_the_refusal(call: Hand, tmp_path: Path) -> None:
    audited = Audited(call, tmp_path / "audit.log", METADATA_POLICY)
    answer = audited.reception.reject(Call("GET", MAPS, {}, {}, b"", User("")), unauthorized())
    *_, last = audited.events()
    assert (answer.status, last["responseStatus"]["code"], last["verb"]) == (401, 401, "list")
    assert last["user"]["username"] == ""


async def test_what_no_rule_is_about_leaves_no_trace(call: Hand, tmp_path: Path) -> None:
    audited = Audited(call, tmp_path / "audit.log", policy({"level": "Metadata", "verbs": ["delete"]}))
    answer = await audited("GET", MAPS)
    assert isinstance(answer, ApiResponse)
    assert answer.headers["Audit-Id"]  # Kubernetes tells it also where nothing is written down
    assert audited.events() == []


def asked(
    call: Hand, resource: Any, verb: str = "get", name: str = "", sub: str = "", namespace: str = ""
) -> Attributes:
    return Attributes(BOB, verb, Target(call.server.registry.info_for(resource), namespace, name, sub))


async def test_rules_fit_by_user_group_verb_resource_namespace_and_path(call: Hand) -> None:
    pod, status = asked(call, PODS, namespace="default", name="p"), asked(call, PODS, sub="status", name="p")
    node, page = asked(call, NODES, name="n"), Attributes(BOB, "get", path="/healthz/ping")
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
        assert [rule.matches(each) for each in (pod, status, node, page)] == fits, spec


async def test_the_first_rule_that_fits_decides_and_stages_add_up(call: Hand) -> None:
    first: Object = {"level": "None", "resources": [{"resources": ["configmaps"]}]}
    second: Object = {"level": "Request", "omitStages": ["Panic"], "omitManagedFields": False}
    found = policy(first, second, omitStages=["RequestReceived"], omitManagedFields=True)
    assert found.rule_for(asked(call, CONFIGMAPS)).level == "None"
    verdict = found.rule_for(asked(call, SECRETS))
    assert (verdict.level, set(verdict.omit_stages)) == ("Request", {"RequestReceived", "Panic"})
    assert verdict.omit_managed_fields is False


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
def test_a_policy_that_cannot_be_meant_is_refused_with_its_place(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"policy\.yaml") as refusal:
        load_policy(path)
    assert fault in str(refusal.value)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, ["10.0.0.1"]),
        ({"x-forwarded-for": "1.1.1.1, 2.2.2.2"}, ["1.1.1.1", "2.2.2.2", "10.0.0.1"]),
        ({"x-forwarded-for": "1.1.1.1", "x-real-ip": "3.3.3.3"}, ["1.1.1.1", "3.3.3.3", "10.0.0.1"]),
        ({"x-real-ip": "10.0.0.1"}, ["10.0.0.1"]),
    ],
)
def test_where_a_request_came_from_ends_with_what_is_known(headers: dict[str, str], found: list[str]) -> None:
    assert source_ips(Call("GET", "/", {}, headers, b"", ADMIN, source_ip="10.0.0.1")) == found
