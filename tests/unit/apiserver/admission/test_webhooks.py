"""Admission webhooks: matching, requests, responses, failures and configurations."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import web

from tapestry.apiserver import bootstrap
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.outgoing_http import ServiceResolver, ServiceUnresolved
from tapestry.apiserver.core.requests import Call
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.kube.objects import Object

from ..conftest import ServerClient
from ..hooks import Hook, Say, allowing, denying, listening, patching

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
GROUP = "/apis/admissionregistration.k8s.io/v1"
MERGE = "application/merge-patch+json"
ANY = {"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}

Listen = Callable[..., Any]


@pytest.fixture
async def listen(tmp_path: Path) -> AsyncIterator[Listen]:
    """Start webhooks that stop at the end of the test."""
    async with AsyncExitStack() as stack:

        async def start(say: Say = allowing, *names: str) -> Hook:
            folder = tmp_path / f"pki-{len(names)}"
            return await stack.enter_async_context(listening(folder, say, *names))

        yield start


def hook_body(client: Object, name: str = "one.example.com", **more: Any) -> Object:
    return {
        "name": name,
        "clientConfig": client,
        "rules": [ANY],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **more,
    }


def configuration_body(*hooks: Object, name: str = "hooks") -> Object:
    return {"metadata": {"name": name}, "webhooks": list(hooks)}


async def create_mutating(call: ServerClient, *hooks: Object, name: str = "hooks") -> Object:
    return await call.made(f"{GROUP}/mutatingwebhookconfigurations", configuration_body(*hooks, name=name))


async def create_validating(call: ServerClient, *hooks: Object, name: str = "hooks") -> Object:
    return await call.made(f"{GROUP}/validatingwebhookconfigurations", configuration_body(*hooks, name=name))


def map_body(name: str = "a", **data: str) -> Object:
    return {"metadata": {"name": name}, "data": data}


# -- requests


async def test_webhook_gets_user_operation_and_object(call: ServerClient, listen: Listen) -> None:
    hook = await listen()
    await create_validating(call, hook_body(hook.client))
    created = await call.made(MAPS, map_body(k="v"))
    [request] = hook.requests
    assert request["operation"] == "CREATE"
    assert request["kind"] == request["requestKind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
    assert request["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
    assert (request["name"], request["namespace"], request["dryRun"]) == ("a", "default", False)
    assert request["userInfo"] == {"username": "admin", "groups": ["system:masters"]}
    assert request["object"]["data"] == {"k": "v"}
    assert request["object"]["metadata"]["uid"] == created["metadata"]["uid"]
    assert request["oldObject"] is None
    assert request["options"] == {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
    assert "subResource" not in request


async def test_webhook_gets_updates_and_deletions(call: ServerClient, listen: Listen) -> None:
    hook = await listen()
    await call.made(MAPS, map_body(k="1"))
    await create_validating(call, hook_body(hook.client))
    await call("PATCH", f"{MAPS}/a", {"data": {"k": "2"}}, kind=MERGE, fieldManager="me")
    await call("DELETE", f"{MAPS}/a", {"propagationPolicy": "Background"})
    changed, deleted = hook.requests
    assert (changed["operation"], changed["object"]["data"], changed["oldObject"]["data"]) == (
        "UPDATE",
        {"k": "2"},
        {"k": "1"},
    )
    assert changed["options"]["kind"] == "UpdateOptions"
    assert changed["options"]["fieldManager"] == "me"
    assert (deleted["operation"], deleted["object"], deleted["oldObject"]["data"]) == ("DELETE", None, {"k": "2"})
    assert deleted["options"]["propagationPolicy"] == "Background"


@pytest.mark.parametrize("configure", [create_mutating, create_validating])
async def test_webhook_gets_writes_without_changes(
    call: ServerClient, listen: Listen, configure: Callable[..., Any]
) -> None:
    hook = await listen()
    before = await call.made(MAPS, map_body(k="1"))
    await configure(call, hook_body(hook.client))
    assert await call("PATCH", f"{MAPS}/a", {"data": {"k": "1"}}, kind=MERGE) == (200, before)
    assert await call("PUT", f"{MAPS}/a", before) == (200, before)
    assert [(each["operation"], each["object"]["data"]) for each in hook.requests] == [("UPDATE", {"k": "1"})] * 2
    hook.say = denying("not even this")
    status, response = await call("PATCH", f"{MAPS}/a", {}, kind=MERGE)
    assert (status, "not even this" in response["message"]) == (400, True)


async def test_mutation_does_not_affect_equal_specs(call: ServerClient, listen: Listen) -> None:
    steps = [
        {"op": "add", "path": "/spec/containers/0/env", "value": [{"name": "A", "value": "b"}]},
        {"op": "remove", "path": "/spec/tolerations/0"},
    ]
    change = patching(*steps)
    hook = await listen(lambda request: change(request) if request["name"] == "odd" else allowing(request))
    await create_mutating(call, hook_body(hook.client, rules=[{**ANY, "resources": ["pods"]}]))
    spec = {"containers": [{"name": "c", "image": "nginx"}], "tolerations": [{"key": "k", "operator": "Exists"}]}
    one, odd, other = [
        (await call.made(PODS, {"metadata": {"name": name}, "spec": spec}))["spec"] for name in ("one", "odd", "other")
    ]
    assert one == other
    assert odd["containers"][0].pop("env") == [{"name": "A", "value": "b"}]
    assert one == {**odd, "tolerations": [one["tolerations"][0], *odd["tolerations"]]}


async def test_subresource_needs_its_own_rule(call: ServerClient, listen: Listen) -> None:
    hook = await listen()
    rule = {**ANY, "resources": ["pods/status"]}
    await create_validating(call, hook_body(hook.client, rules=[rule]))
    await call.made(PODS, {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    assert hook.requests == []
    await call("PATCH", f"{PODS}/web/status", {"status": {"phase": "Running"}}, kind=MERGE)
    [request] = hook.requests
    assert (request["subResource"], request["requestSubResource"]) == ("status", "status")


# -- denials


@pytest.mark.parametrize(
    ("say", "status", "message"),
    [
        (denying("not today"), 400, 'admission webhook "one.example.com" denied the request: not today'),
        (denying("no", 403), 403, 'admission webhook "one.example.com" denied the request: no'),
        (denying(), 400, 'admission webhook "one.example.com" denied the request without explanation'),
    ],
)
async def test_denial_has_kubernetes_wording(
    call: ServerClient, listen: Listen, say: Say, status: int, message: str
) -> None:
    hook = await listen(say)
    await create_validating(call, hook_body(hook.client))
    code, response = await call("POST", MAPS, map_body())
    assert (code, response["message"]) == (status, message)
    assert (await call("GET", f"{MAPS}/a"))[0] == 404


async def test_first_of_several_denials_is_returned(call: ServerClient, listen: Listen) -> None:
    one, two = await listen(denying("one")), await listen(denying("two"))
    await create_validating(call, hook_body(one.client), hook_body(two.client, "two.example.com"))
    assert (await call("POST", MAPS, map_body()))[1]["message"].endswith("one")
    assert len(one.requests) == len(two.requests) == 1


async def test_webhook_warning_reaches_client(call: ServerClient, listen: Listen) -> None:
    hook = await listen(lambda _: {"allowed": True, "warnings": ["look out"]})
    await create_validating(call, hook_body(hook.client))
    response = await call.answer("POST", MAPS, map_body())
    assert isinstance(response, ApiResponse)
    assert response.headers["Warning"] == '299 - "look out"'


async def test_webhook_audit_annotations_are_recorded(call: ServerClient, listen: Listen) -> None:
    hook = await listen(lambda _: {"allowed": True, "auditAnnotations": {"why": "because"}})
    await create_validating(call, hook_body(hook.client))
    request = Call("POST", MAPS, {}, {}, b'{"metadata":{"name":"a"}}', call.user)
    await call.server.handle(request)
    assert request.audit_annotations == {"one.example.com/why": "because"}


# -- mutations


async def test_mutation_is_stored_and_validated(call: ServerClient, listen: Listen) -> None:
    mutating_hook = await listen(patching({"op": "add", "path": "/data", "value": {"k": "patched"}}))
    validating_hook = await listen()
    await create_mutating(call, hook_body(mutating_hook.client))
    await create_validating(call, hook_body(validating_hook.client))
    created = await call.made(MAPS, map_body(k="sent"))
    assert created["data"] == validating_hook.requests[0]["object"]["data"] == {"k": "patched"}


async def test_mutation_is_defaulted_and_pruned(call: ServerClient, listen: Listen) -> None:
    container = {"name": "side", "image": "sidecar", "surprise": True}
    hook = await listen(patching({"op": "add", "path": "/spec/containers/-", "value": container}))
    await create_mutating(
        call, hook_body(hook.client, rules=[{**ANY, "resources": ["pods"], "operations": ["CREATE"]}])
    )
    pod = await call.made(PODS, {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    side = pod["spec"]["containers"][1]
    assert side["imagePullPolicy"] == "Always"
    assert "surprise" not in side


async def test_mutating_webhooks_run_in_name_order(call: ServerClient, listen: Listen) -> None:
    first = await listen(patching({"op": "add", "path": "/data/order", "value": "first"}))
    second = await listen(patching({"op": "add", "path": "/data/order", "value": "then"}))
    await create_mutating(call, hook_body(second.client), name="b")
    await create_mutating(call, hook_body(first.client), name="a")
    created = await call.made(MAPS, map_body(k="v"))
    assert created["data"]["order"] == "then"
    assert second.requests[0]["object"]["data"]["order"] == "first"


@pytest.mark.parametrize(("policy", "call_count"), [("IfNeeded", 2), ("Never", 1)])
async def test_webhook_is_reinvoked_if_needed(call: ServerClient, listen: Listen, policy: str, call_count: int) -> None:
    first = await listen()
    second = await listen(patching({"op": "add", "path": "/data/k", "value": "changed"}))
    await create_mutating(
        call,
        hook_body(first.client, reinvocationPolicy=policy),
        hook_body(second.client, "two.example.com", reinvocationPolicy="IfNeeded"),
    )
    await call.made(MAPS, map_body(k="v"))
    assert len(first.requests) == call_count
    assert len(second.requests) == 1
    assert first.requests[-1]["object"]["data"]["k"] == ("changed" if call_count == 2 else "v")


async def test_patch_that_does_not_apply_fails_write(call: ServerClient, listen: Listen) -> None:
    hook = await listen(patching({"op": "remove", "path": "/data/missing"}))
    await create_mutating(call, hook_body(hook.client, failurePolicy="Ignore"))
    status, response = await call("POST", MAPS, map_body())
    assert (status, response["reason"]) == (500, "InternalError")
    assert response["message"].startswith("Internal error occurred: ")


async def test_webhook_cannot_modify_deletion(call: ServerClient, listen: Listen) -> None:
    hook = await listen(patching({"op": "add", "path": "/data/k", "value": "v"}))
    await call.made(MAPS, map_body())
    await create_mutating(call, hook_body(hook.client))
    status, response = await call("DELETE", f"{MAPS}/a")
    assert status == 500
    assert response["message"].endswith(
        'admission webhook "one.example.com" attempted to modify the object, which is not supported for this operation'
    )
    assert (await call("GET", f"{MAPS}/a"))[0] == 200


async def test_webhook_cannot_change_namespace(call: ServerClient, listen: Listen) -> None:
    hook = await listen(patching({"op": "replace", "path": "/metadata/namespace", "value": "kube-system"}))
    await create_mutating(call, hook_body(hook.client))
    status, response = await call("POST", MAPS, map_body())
    assert (status, response["reason"]) == (400, "BadRequest")
    assert "does not match the namespace" in response["message"]


async def test_webhook_can_choose_generated_name(call: ServerClient, listen: Listen) -> None:
    hook = await listen()
    await create_mutating(call, hook_body(hook.client))
    created = await call.made(MAPS, {"metadata": {"generateName": "a-"}})
    assert created["metadata"]["name"].startswith("a-")
    assert "name" not in hook.requests[0]
    assert "name" not in hook.requests[0]["object"]["metadata"]
    hook.say = patching({"op": "add", "path": "/metadata/name", "value": "chosen"})
    assert (await call.made(MAPS, {"metadata": {"generateName": "a-"}}))["metadata"]["name"] == "chosen"
    assert (await call("GET", f"{MAPS}/chosen"))[0] == 200


async def test_patch_with_wrong_type_is_internal_error(call: ServerClient, listen: Listen) -> None:
    hook = await listen(patching({"op": "add", "path": "/data", "value": 7}))
    await create_mutating(call, hook_body(hook.client))
    status, response = await call("POST", MAPS, map_body())
    assert (status, response["reason"]) == (500, "InternalError")


# -- matching


async def test_selectors_match_object_and_namespace_labels(call: ServerClient, listen: Listen) -> None:
    hook = await listen(denying())
    await create_validating(
        call,
        hook_body(hook.client, objectSelector={"matchLabels": {"watched": "yes"}}),
        hook_body(hook.client, "two.example.com", namespaceSelector={"matchLabels": {"strict": "yes"}}),
    )
    await call.made(MAPS, map_body())
    labeled = {"metadata": {"name": "b", "labels": {"watched": "yes"}}}
    assert "one.example.com" in (await call("POST", MAPS, labeled))[1]["message"]
    await call.made("/api/v1/namespaces", {"metadata": {"name": "strict", "labels": {"strict": "yes"}}})
    status, response = await call("POST", "/api/v1/namespaces/strict/configmaps", map_body())
    assert (status, "two.example.com" in response["message"]) == (400, True)


async def test_match_conditions_limit_webhook(call: ServerClient, listen: Listen) -> None:
    hook = await listen(denying())
    conditions = [{"name": "only-k", "expression": "has(object.data) && 'k' in object.data"}]
    await create_validating(call, hook_body(hook.client, matchConditions=conditions))
    await call.made(MAPS, map_body(other="v"))
    assert (await call("POST", MAPS, map_body("b", k="v")))[0] == 400


async def test_webhooks_do_not_apply_to_configurations(call: ServerClient, listen: Listen) -> None:
    hook = await listen(denying())
    everything = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}
    await create_validating(call, hook_body(hook.client, rules=[everything]))
    assert (await call("POST", MAPS, map_body()))[0] == 400
    assert (await call("DELETE", f"{GROUP}/validatingwebhookconfigurations/hooks"))[0] == 200
    await call.made(MAPS, map_body())


async def test_dry_run_calls_webhook_without_side_effects(call: ServerClient, listen: Listen) -> None:
    hook = await listen()
    await create_validating(call, hook_body(hook.client))
    assert (await call("POST", MAPS, map_body(), dryRun="All"))[0] == 201
    assert hook.requests[0]["dryRun"] is True
    assert hook.requests[0]["options"]["dryRun"] == ["All"]


async def test_webhook_gets_equivalent_version_of_rule(call: ServerClient, listen: Listen) -> None:
    hook = await listen()
    rule = {"operations": ["*"], "apiGroups": ["autoscaling"], "apiVersions": ["v1"], "resources": ["*"]}
    await create_validating(call, hook_body(hook.client, rules=[rule]))
    scaler = {
        "metadata": {"name": "s"},
        "spec": {
            "maxReplicas": 3,
            "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"},
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 7}},
                }
            ],
        },
    }
    await call.made("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", scaler)
    [request] = hook.requests
    assert (request["kind"]["version"], request["requestKind"]["version"]) == ("v1", "v2")
    assert request["object"]["apiVersion"] == "autoscaling/v1"
    assert request["object"]["spec"]["targetCPUUtilizationPercentage"] == 7


# -- failures


async def failure_message(call: ServerClient, hook: Object) -> str:
    """The error of a write whose webhook fails. Also checks that the write succeeds with failurePolicy Ignore."""
    await create_validating(call, hook)
    status, response = await call("POST", MAPS, map_body())
    assert (status, response["reason"]) == (500, "InternalError")
    await call("DELETE", f"{GROUP}/validatingwebhookconfigurations/hooks")
    await create_validating(call, {**hook, "failurePolicy": "Ignore"})
    assert (await call("POST", MAPS, map_body()))[0] == 201
    message: str = response["message"]
    return message.removeprefix('Internal error occurred: failed calling webhook "one.example.com": ')


async def test_unreachable_webhook_follows_failure_policy(call: ServerClient, listen: Listen) -> None:
    client = {"url": "https://127.0.0.1:1/hook"}
    assert await failure_message(call, hook_body(client)) == (
        'failed to call webhook: Post "https://127.0.0.1:1/hook?timeout=10s": '
        "dial tcp 127.0.0.1:1: connect: connection refused"
    )


async def test_certificate_of_unknown_authority_is_rejected(call: ServerClient, listen: Listen) -> None:
    hook = await listen()
    other = await listen(allowing, "127.0.0.1", "another.example.com")
    message = await failure_message(call, hook_body({**hook.client, "caBundle": other.bundle}))
    assert message.endswith("tls: failed to verify certificate: x509: certificate signed by unknown authority")
    assert hook.requests == []


async def test_certificate_for_other_name_is_rejected(call: ServerClient, listen: Listen) -> None:
    hook = await listen(allowing, "elsewhere.example.com")
    message = await failure_message(call, hook_body(hook.client))
    assert message.endswith("x509: cannot validate certificate for 127.0.0.1 because it doesn't contain any IP SANs")
    assert hook.requests == []


@pytest.mark.parametrize(
    ("say", "error"),
    [
        (
            lambda _: web.Response(status=404, text="nobody"),
            "failed to call webhook: the server could not find the requested resource",
        ),
        (
            lambda _: web.Response(status=500, text="oh no"),
            'failed to call webhook: an error on the server ("oh no") has prevented the request from succeeding',
        ),
        (
            lambda _: web.Response(status=307, headers={"Location": "https://127.0.0.1:1/elsewhere"}),
            "failed to call webhook: the server responded with the status code 307 but did not return more information",
        ),
        (
            lambda _: {"uid": "another", "allowed": True},
            "received invalid webhook response: expected response.uid=",
        ),
        (
            lambda _: web.json_response({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}),
            "received invalid webhook response: webhook response was absent",
        ),
        (
            patching({"op": "add", "path": "/data", "value": {}}),
            "received invalid webhook response: validating webhook may not return response.patch",
        ),
    ],
)
async def test_invalid_response_is_failure(call: ServerClient, listen: Listen, say: Say, error: str) -> None:
    hook = await listen(say)
    assert (await failure_message(call, hook_body(hook.client))).startswith(error)


async def test_slow_webhook_times_out(call: ServerClient, listen: Listen) -> None:
    hook = await listen(lambda _: asyncio.Event().wait())
    await create_validating(call, hook_body(hook.client, timeoutSeconds=1))
    status, response = await call("POST", MAPS, map_body())
    assert (status, response["message"]) == (
        500,
        'Internal error occurred: failed calling webhook "one.example.com": failed to call webhook: '
        f'Post "https://127.0.0.1:{hook.port}/hook?timeout=1s": context deadline exceeded',
    )


async def test_oversized_response_is_failure(
    call: ServerClient, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tapestry.apiserver.core.outgoing_http.MAX_RESPONSE_BYTES", 1000)
    monkeypatch.setattr("tapestry.apiserver.core.outgoing_http.MAX_RESPONSE_GROWTH", 0)
    hook = await listen(lambda _: {"allowed": True, "warnings": ["x" * 2000]})
    assert (
        await failure_message(call, hook_body(hook.client))
    ) == "failed to call webhook: the response is longer than 1000 bytes"


# -- Services


async def test_service_webhook_certificate_has_service_name(call: ServerClient, listen: Listen) -> None:
    hook = await listen(allowing, "guard.default.svc")
    service = {"metadata": {"name": "guard"}, "spec": {"type": "ExternalName", "externalName": "localhost"}}
    await call.made("/api/v1/namespaces/default/services", service)
    service_reference = {"name": "guard", "namespace": "default", "path": "/judge", "port": hook.port}
    await create_validating(call, hook_body({"service": service_reference, "caBundle": hook.bundle}))
    await call.made(MAPS, map_body())
    assert len(hook.requests) == 1


async def test_service_resolves_to_ready_endpoint_or_cluster_ip(call: ServerClient) -> None:
    port = {"port": 443, "targetPort": 8443, "name": "https"}
    spec = {"ports": [port], "clusterIP": "None"}
    services = ServiceResolver(call.server.verbs.store, Random(1))
    with pytest.raises(ServiceUnresolved, match='no endpoints available for service "guard"'):
        services.address("default", "guard", spec, 443)
    with pytest.raises(ServiceUnresolved, match='no service port 80 found for service "guard"'):
        services.address("default", "guard", spec, 80)
    assert services.address("default", "guard", {**spec, "clusterIP": "10.96.0.9"}, 443) == ("10.96.0.9", 443)
    endpoints = {
        "metadata": {"name": "guard-1", "labels": {"kubernetes.io/service-name": "guard"}},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": 8443}, {"name": "other", "port": 1}],
        "endpoints": [
            {"addresses": ["10.0.0.6"], "conditions": {"ready": False}},
            {"addresses": ["10.0.0.7"], "conditions": {"ready": True}},
        ],
    }
    await call.made("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", endpoints)
    assert services.address("default", "guard", {**spec, "clusterIP": "10.96.0.9"}, 443) == ("10.0.0.7", 8443)


async def test_missing_service_follows_failure_policy(call: ServerClient) -> None:
    client = {"service": {"name": "guard", "namespace": "default", "path": "/judge"}}
    assert (await failure_message(call, hook_body(client))) == (
        'failed to call webhook: Post "https://guard.default.svc:443/judge?timeout=10s": service "guard" not found'
    )


async def test_connections_are_reused(call: ServerClient, listen: Listen) -> None:
    hook = await listen()
    await create_validating(call, hook_body(hook.client))
    for number in range(5):
        await call.made(MAPS, map_body(f"m{number}"))
    assert len(hook.requests) == 5
    assert len(hook.connections) == 1


# -- subresources


async def test_webhook_gets_scale(call: ServerClient, listen: Listen) -> None:
    hook = await listen(patching({"op": "replace", "path": "/spec/replicas", "value": 2}))
    rule = {"operations": ["*"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments/scale"]}
    await create_mutating(call, hook_body(hook.client, rules=[rule]))
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    path = "/apis/apps/v1/namespaces/default/deployments"
    await call.made(path, {"metadata": {"name": "d"}, "spec": spec})
    status, scale = await call("PATCH", f"{path}/d/scale", {"spec": {"replicas": 5}}, kind=MERGE)
    assert (status, scale["spec"]["replicas"]) == (200, 2)
    [request] = hook.requests
    assert (request["kind"]["kind"], request["object"]["spec"]["replicas"]) == ("Scale", 5)
    assert request["oldObject"]["spec"]["replicas"] == 1


async def test_webhook_gets_binding(call: ServerClient, listen: Listen) -> None:
    hook = await listen(denying("not there"))
    await call.made(PODS, {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    rule = {**ANY, "resources": ["pods/binding"]}
    await create_validating(call, hook_body(hook.client, rules=[rule]))
    status, _ = await call("POST", f"{PODS}/web/binding", {"metadata": {"name": "web"}, "target": {"name": "n"}})
    [request] = hook.requests
    assert (status, request["operation"], request["kind"]["kind"]) == (400, "CREATE", "Binding")
    assert request["object"]["target"] == {"name": "n"}


async def test_webhook_gets_connect_request(call: ServerClient, listen: Listen) -> None:
    hook = await listen(denying("nobody gets in"))
    await call.made(PODS, {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    _, admitted = await call("POST", f"{PODS}/web/exec", command="ls")
    assert admitted["message"] == "pod web does not have a host assigned"
    await create_validating(
        call, hook_body(hook.client, rules=[{**ANY, "operations": ["CONNECT"], "resources": ["pods/exec"]}])
    )
    status, response = await call("POST", f"{PODS}/web/exec", command="ls", stdin="1")
    assert (status, "nobody gets in" in response["message"]) == (400, True)
    [request] = hook.requests
    assert (request["operation"], request["kind"]["kind"], request["options"]) == ("CONNECT", "PodExecOptions", None)
    assert request["object"] == {"kind": "PodExecOptions", "apiVersion": "v1", "command": ["ls"], "stdin": True}


async def test_bootstrap_does_not_call_webhooks(call: ServerClient) -> None:
    everything = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}
    await call("DELETE", "/api/v1/namespaces/kube-node-lease")
    await call("PUT", "/api/v1/namespaces/kube-node-lease/finalize", {"metadata": {"name": "kube-node-lease"}})
    assert (await call("GET", "/api/v1/namespaces/kube-node-lease"))[0] == 404
    await create_validating(call, hook_body({"url": "https://127.0.0.1:1/"}, rules=[everything]))
    await bootstrap.install(call.server)
    assert (await call("GET", "/api/v1/namespaces/kube-node-lease"))[0] == 200


# -- configurations


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"name": "short"},
            'webhooks[0].name: Invalid value: "short": should be a domain with at least three segments',
        ),
        ({"sideEffects": None}, "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun"),
        ({"sideEffects": "Some"}, 'webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None"'),
        (
            {"timeoutSeconds": 31},
            "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and",
        ),
        ({"clientConfig": {}}, "webhooks[0].clientConfig: Required value: exactly one of url or service is required"),
        (
            {"clientConfig": {"url": "http://a/b"}},
            "webhooks[0].clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired",
        ),
        (
            {"admissionReviewVersions": ["v2"]},
            'webhooks[0].admissionReviewVersions: Invalid value: ["v2"]: must include at least one of v1, v1beta1',
        ),
        (
            {"rules": [{**ANY, "resources": ["*/*", "pods"]}]},
            'webhooks[0].rules[0].resources: Invalid value: ["*/*","pods"]: if \'*/*\' is present, must not specify',
        ),
        ({"rules": [{**ANY, "operations": []}]}, "webhooks[0].rules[0].operations: Required value"),
    ],
)
async def test_invalid_configuration_is_rejected(call: ServerClient, change: Object, message: str) -> None:
    hook = {
        key: value for key, value in (hook_body({"url": "https://a.example.com"}) | change).items() if value is not None
    }
    status, response = await call("POST", f"{GROUP}/validatingwebhookconfigurations", configuration_body(hook))
    assert status == 422
    assert message in response["message"]


async def test_configuration_gets_defaults(call: ServerClient) -> None:
    service = {"name": "guard", "namespace": "default"}
    created = await create_mutating(call, hook_body({"service": service}))
    [hook] = created["webhooks"]
    assert (hook["failurePolicy"], hook["matchPolicy"], hook["timeoutSeconds"]) == ("Fail", "Equivalent", 10)
    assert (hook["namespaceSelector"], hook["objectSelector"], hook["reinvocationPolicy"]) == ({}, {}, "Never")
    assert hook["rules"][0]["scope"] == "*"
    assert hook["clientConfig"]["service"]["port"] == 443


@pytest.mark.parametrize("configure", [create_mutating, create_validating])
async def test_webhooks_are_called_after_restart(listen: Listen, configure: Callable[..., Any], tmp_path: Path) -> None:
    config = ApiServerConfig(backend="file", secure_address="", file_rootpath=str(tmp_path / "data"))
    hook = await listen(denying("no", 400))
    async with run_apiserver(config) as served:
        await configure(ServerClient(served.server, served.account_tokens), hook_body(hook.client))
    async with run_apiserver(config) as served:
        status, _ = await ServerClient(served.server, served.account_tokens)("POST", MAPS, map_body())
    assert (status, len(hook.requests)) == (400, 1)
