"""Admission webhooks: whom the server asks, what it tells them, and what it makes of their answers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import web

from tapestry.apiserver import bootstrap
from tapestry.apiserver.admission.webhook_client import ServiceResolver, ServiceUnresolved
from tapestry.apiserver.requests import Call
from tapestry.apiserver.server import ApiResponse
from tapestry.kube.objects import Object

from .conftest import Hand
from .hooks import Hook, Say, allowing, denying, listening, patching

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
GROUP = "/apis/admissionregistration.k8s.io/v1"
MERGE = "application/merge-patch+json"
ANY = {"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}

Listen = Callable[..., Any]


@pytest.fixture
async def listen(tmp_path: Path) -> AsyncIterator[Listen]:
    """Starts webhooks, which end with the test."""
    async with AsyncExitStack() as stack:

        async def start(say: Say = allowing, *names: str) -> Hook:
            folder = tmp_path / f"pki-{len(names)}"
            return await stack.enter_async_context(listening(folder, say, *names))

        yield start


def a_hook(client: Object, name: str = "one.example.com", **more: Any) -> Object:
    return {
        "name": name,
        "clientConfig": client,
        "rules": [ANY],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **more,
    }


def a_configuration(*hooks: Object, name: str = "hooks") -> Object:
    return {"metadata": {"name": name}, "webhooks": list(hooks)}


async def mutating(call: Hand, *hooks: Object, name: str = "hooks") -> Object:
    return await call.made(f"{GROUP}/mutatingwebhookconfigurations", a_configuration(*hooks, name=name))


async def validating(call: Hand, *hooks: Object, name: str = "hooks") -> Object:
    return await call.made(f"{GROUP}/validatingwebhookconfigurations", a_configuration(*hooks, name=name))


def a_map(name: str = "a", **data: str) -> Object:
    return {"metadata": {"name": name}, "data": data}


# -- what a webhook is told


async def test_a_webhook_is_told_who_wants_to_do_what(call: Hand, listen: Listen) -> None:
    hook = await listen()
    await validating(call, a_hook(hook.client))
    made = await call.made(MAPS, a_map(k="v"))
    [asked] = hook.asked
    assert asked["operation"] == "CREATE"
    assert asked["kind"] == asked["requestKind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
    assert asked["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
    assert (asked["name"], asked["namespace"], asked["dryRun"]) == ("a", "default", False)
    assert asked["userInfo"] == {"username": "admin", "groups": ["system:masters"]}
    assert asked["object"]["data"] == {"k": "v"}
    assert asked["object"]["metadata"]["uid"] == made["metadata"]["uid"]
    assert asked["oldObject"] is None
    assert asked["options"] == {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
    assert "subResource" not in asked


async def test_a_webhook_sees_what_is_changed_and_what_goes(call: Hand, listen: Listen) -> None:
    hook = await listen()
    await call.made(MAPS, a_map(k="1"))
    await validating(call, a_hook(hook.client))
    await call("PATCH", f"{MAPS}/a", {"data": {"k": "2"}}, kind=MERGE, fieldManager="me")
    await call("DELETE", f"{MAPS}/a", {"propagationPolicy": "Background"})
    changed, gone = hook.asked
    assert (changed["operation"], changed["object"]["data"], changed["oldObject"]["data"]) == (
        "UPDATE",
        {"k": "2"},
        {"k": "1"},
    )
    assert changed["options"]["kind"] == "UpdateOptions"
    assert changed["options"]["fieldManager"] == "me"
    assert (gone["operation"], gone["object"], gone["oldObject"]["data"]) == ("DELETE", None, {"k": "2"})
    assert gone["options"]["propagationPolicy"] == "Background"


@pytest.mark.parametrize("configured", [mutating, validating])
async def test_a_webhook_sees_also_what_would_change_nothing(
    call: Hand, listen: Listen, configured: Callable[..., Any]
) -> None:
    hook = await listen()
    before = await call.made(MAPS, a_map(k="1"))
    await configured(call, a_hook(hook.client))
    assert await call("PATCH", f"{MAPS}/a", {"data": {"k": "1"}}, kind=MERGE) == (200, before)
    assert await call("PUT", f"{MAPS}/a", before) == (200, before)
    assert [(each["operation"], each["object"]["data"]) for each in hook.asked] == [("UPDATE", {"k": "1"})] * 2
    hook.say = denying("not even this")
    status, found = await call("PATCH", f"{MAPS}/a", {}, kind=MERGE)
    assert (status, "not even this" in found["message"]) == (400, True)


async def test_what_a_webhook_makes_of_one_pod_no_other_of_the_same_spec_has(call: Hand, listen: Listen) -> None:
    steps = [
        {"op": "add", "path": "/spec/containers/0/env", "value": [{"name": "A", "value": "b"}]},
        {"op": "remove", "path": "/spec/tolerations/0"},
    ]
    changing = patching(*steps)
    hook = await listen(lambda request: changing(request) if request["name"] == "odd" else allowing(request))
    await mutating(call, a_hook(hook.client, rules=[{**ANY, "resources": ["pods"]}]))
    spec = {"containers": [{"name": "c", "image": "nginx"}], "tolerations": [{"key": "k", "operator": "Exists"}]}
    one, odd, other = [
        (await call.made(PODS, {"metadata": {"name": name}, "spec": spec}))["spec"] for name in ("one", "odd", "other")
    ]
    assert one == other
    assert odd["containers"][0].pop("env") == [{"name": "A", "value": "b"}]
    assert one == {**odd, "tolerations": [one["tolerations"][0], *odd["tolerations"]]}


async def test_a_subresource_is_a_matter_of_its_own(call: Hand, listen: Listen) -> None:
    hook = await listen()
    rule = {**ANY, "resources": ["pods/status"]}
    await validating(call, a_hook(hook.client, rules=[rule]))
    await call.made(PODS, {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    assert hook.asked == []
    await call("PATCH", f"{PODS}/web/status", {"status": {"phase": "Running"}}, kind=MERGE)
    [asked] = hook.asked
    assert (asked["subResource"], asked["requestSubResource"]) == ("status", "status")


# -- refusals


@pytest.mark.parametrize(
    ("say", "status", "message"),
    [
        (denying("not today"), 400, 'admission webhook "one.example.com" denied the request: not today'),
        (denying("no", 403), 403, 'admission webhook "one.example.com" denied the request: no'),
        (denying(), 400, 'admission webhook "one.example.com" denied the request without explanation'),
    ],
)
async def test_a_denial_is_told_in_kubernetes_words(
    call: Hand, listen: Listen, say: Say, status: int, message: str
) -> None:
    hook = await listen(say)
    await validating(call, a_hook(hook.client))
    code, found = await call("POST", MAPS, a_map())
    assert (code, found["message"]) == (status, message)
    assert (await call("GET", f"{MAPS}/a"))[0] == 404


async def test_of_several_denials_the_first_hook_is_heard_and_all_are_asked(call: Hand, listen: Listen) -> None:
    one, two = await listen(denying("one")), await listen(denying("two"))
    await validating(call, a_hook(one.client), a_hook(two.client, "two.example.com"))
    assert (await call("POST", MAPS, a_map()))[1]["message"].endswith("one")
    assert len(one.asked) == len(two.asked) == 1


async def test_what_a_webhook_warns_of_reaches_the_client(call: Hand, listen: Listen) -> None:
    hook = await listen(lambda _: {"allowed": True, "warnings": ["look out"]})
    await validating(call, a_hook(hook.client))
    answer = await call.answer("POST", MAPS, a_map())
    assert isinstance(answer, ApiResponse)
    assert answer.headers["Warning"] == '299 - "look out"'


async def test_what_a_webhook_notes_is_for_the_audit_log(call: Hand, listen: Listen) -> None:
    hook = await listen(lambda _: {"allowed": True, "auditAnnotations": {"why": "because"}})
    await validating(call, a_hook(hook.client))
    asked = Call("POST", MAPS, {}, {}, b'{"metadata":{"name":"a"}}', call.user)
    await call.server.handle(asked)
    assert asked.audit_annotations == {"one.example.com/why": "because"}


# -- changes


async def test_what_a_webhook_changes_is_stored_and_judged(call: Hand, listen: Listen) -> None:
    changing = await listen(patching({"op": "add", "path": "/data", "value": {"k": "patched"}}))
    judging = await listen()
    await mutating(call, a_hook(changing.client))
    await validating(call, a_hook(judging.client))
    made = await call.made(MAPS, a_map(k="sent"))
    assert made["data"] == judging.asked[0]["object"]["data"] == {"k": "patched"}


async def test_what_a_webhook_adds_is_read_like_what_a_client_sends(call: Hand, listen: Listen) -> None:
    container = {"name": "side", "image": "sidecar", "surprise": True}
    hook = await listen(patching({"op": "add", "path": "/spec/containers/-", "value": container}))
    await mutating(call, a_hook(hook.client, rules=[{**ANY, "resources": ["pods"], "operations": ["CREATE"]}]))
    pod = await call.made(PODS, {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    side = pod["spec"]["containers"][1]
    assert side["imagePullPolicy"] == "Always"
    assert "surprise" not in side


async def test_hooks_change_an_object_in_the_order_of_their_names(call: Hand, listen: Listen) -> None:
    first = await listen(patching({"op": "add", "path": "/data/order", "value": "first"}))
    then = await listen(patching({"op": "add", "path": "/data/order", "value": "then"}))
    await mutating(call, a_hook(then.client), name="b")
    await mutating(call, a_hook(first.client), name="a")
    made = await call.made(MAPS, a_map(k="v"))
    assert made["data"]["order"] == "then"
    assert then.asked[0]["object"]["data"]["order"] == "first"


@pytest.mark.parametrize(("policy", "times"), [("IfNeeded", 2), ("Never", 1)])
async def test_a_hook_is_asked_again_about_what_a_later_one_changed_if_it_wants_to(
    call: Hand, listen: Listen, policy: str, times: int
) -> None:
    first = await listen()
    then = await listen(patching({"op": "add", "path": "/data/k", "value": "changed"}))
    await mutating(
        call,
        a_hook(first.client, reinvocationPolicy=policy),
        a_hook(then.client, "two.example.com", reinvocationPolicy="IfNeeded"),
    )
    await call.made(MAPS, a_map(k="v"))
    assert len(first.asked) == times
    assert len(then.asked) == 1
    assert first.asked[-1]["object"]["data"]["k"] == ("changed" if times == 2 else "v")


async def test_a_patch_that_does_not_apply_refuses_the_write(call: Hand, listen: Listen) -> None:
    hook = await listen(patching({"op": "remove", "path": "/data/missing"}))
    await mutating(call, a_hook(hook.client, failurePolicy="Ignore"))
    status, found = await call("POST", MAPS, a_map())
    assert (status, found["reason"]) == (500, "InternalError")
    assert found["message"].startswith("Internal error occurred: ")


async def test_a_deletion_cannot_be_changed(call: Hand, listen: Listen) -> None:
    hook = await listen(patching({"op": "add", "path": "/data/k", "value": "v"}))
    await call.made(MAPS, a_map())
    await mutating(call, a_hook(hook.client))
    status, found = await call("DELETE", f"{MAPS}/a")
    assert status == 500
    assert found["message"].endswith(
        'admission webhook "one.example.com" attempted to modify the object, which is not supported for this operation'
    )
    assert (await call("GET", f"{MAPS}/a"))[0] == 200


async def test_nobody_moves_an_object_to_another_namespace(call: Hand, listen: Listen) -> None:
    hook = await listen(patching({"op": "replace", "path": "/metadata/namespace", "value": "kube-system"}))
    await mutating(call, a_hook(hook.client))
    status, found = await call("POST", MAPS, a_map())
    assert (status, found["reason"]) == (400, "BadRequest")
    assert "does not match the namespace" in found["message"]


async def test_a_name_that_the_server_makes_up_may_be_chosen_by_a_webhook(call: Hand, listen: Listen) -> None:
    hook = await listen()
    await mutating(call, a_hook(hook.client))
    made = await call.made(MAPS, {"metadata": {"generateName": "a-"}})
    assert made["metadata"]["name"].startswith("a-")
    assert "name" not in hook.asked[0]
    assert "name" not in hook.asked[0]["object"]["metadata"]
    hook.say = patching({"op": "add", "path": "/metadata/name", "value": "chosen"})
    assert (await call.made(MAPS, {"metadata": {"generateName": "a-"}}))["metadata"]["name"] == "chosen"
    assert (await call("GET", f"{MAPS}/chosen"))[0] == 200


async def test_a_value_of_a_type_that_cannot_be_is_a_fault_of_the_webhook(call: Hand, listen: Listen) -> None:
    hook = await listen(patching({"op": "add", "path": "/data", "value": 7}))
    await mutating(call, a_hook(hook.client))
    status, found = await call("POST", MAPS, a_map())
    assert (status, found["reason"]) == (500, "InternalError")


# -- whom the server asks


async def test_selectors_choose_by_the_object_and_by_its_namespace(call: Hand, listen: Listen) -> None:
    hook = await listen(denying())
    await validating(
        call,
        a_hook(hook.client, objectSelector={"matchLabels": {"watched": "yes"}}),
        a_hook(hook.client, "two.example.com", namespaceSelector={"matchLabels": {"strict": "yes"}}),
    )
    await call.made(MAPS, a_map())
    marked = {"metadata": {"name": "b", "labels": {"watched": "yes"}}}
    assert "one.example.com" in (await call("POST", MAPS, marked))[1]["message"]
    await call.made("/api/v1/namespaces", {"metadata": {"name": "strict", "labels": {"strict": "yes"}}})
    status, found = await call("POST", "/api/v1/namespaces/strict/configmaps", a_map())
    assert (status, "two.example.com" in found["message"]) == (400, True)


async def test_conditions_decide_whether_a_webhook_is_asked(call: Hand, listen: Listen) -> None:
    hook = await listen(denying())
    conditions = [{"name": "only-k", "expression": "has(object.data) && 'k' in object.data"}]
    await validating(call, a_hook(hook.client, matchConditions=conditions))
    await call.made(MAPS, a_map(other="v"))
    assert (await call("POST", MAPS, a_map("b", k="v")))[0] == 400


async def test_no_webhook_is_asked_about_the_configurations_themselves(call: Hand, listen: Listen) -> None:
    hook = await listen(denying())
    everything = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}
    await validating(call, a_hook(hook.client, rules=[everything]))
    assert (await call("POST", MAPS, a_map()))[0] == 400
    assert (await call("DELETE", f"{GROUP}/validatingwebhookconfigurations/hooks"))[0] == 200
    await call.made(MAPS, a_map())


async def test_a_dry_run_asks_only_hooks_that_do_nothing_else(call: Hand, listen: Listen) -> None:
    hook = await listen()
    await validating(call, a_hook(hook.client))
    assert (await call("POST", MAPS, a_map(), dryRun="All"))[0] == 201
    assert hook.asked[0]["dryRun"] is True
    assert hook.asked[0]["options"]["dryRun"] == ["All"]


async def test_a_version_that_counts_as_the_same_is_shown_as_the_one_of_the_rule(call: Hand, listen: Listen) -> None:
    hook = await listen()
    rule = {"operations": ["*"], "apiGroups": ["autoscaling"], "apiVersions": ["v1"], "resources": ["*"]}
    await validating(call, a_hook(hook.client, rules=[rule]))
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
    [asked] = hook.asked
    assert (asked["kind"]["version"], asked["requestKind"]["version"]) == ("v1", "v2")
    assert asked["object"]["apiVersion"] == "autoscaling/v1"
    assert asked["object"]["spec"]["targetCPUUtilizationPercentage"] == 7


# -- failures


async def failed(call: Hand, hook: Object) -> str:
    """What the server says of a write that fails with a hook; it succeeds where the hook may fail."""
    await validating(call, hook)
    status, found = await call("POST", MAPS, a_map())
    assert (status, found["reason"]) == (500, "InternalError")
    await call("DELETE", f"{GROUP}/validatingwebhookconfigurations/hooks")
    await validating(call, {**hook, "failurePolicy": "Ignore"})
    assert (await call("POST", MAPS, a_map()))[0] == 201
    message: str = found["message"]
    return message.removeprefix('Internal error occurred: failed calling webhook "one.example.com": ')


async def test_a_webhook_that_is_not_there_fails_the_write_or_is_ignored(call: Hand, listen: Listen) -> None:
    client = {"url": "https://127.0.0.1:1/hook"}
    assert await failed(call, a_hook(client)) == (
        'failed to call webhook: Post "https://127.0.0.1:1/hook?timeout=10s": '
        "dial tcp 127.0.0.1:1: connect: connection refused"
    )


async def test_a_webhook_whose_certificate_is_somebody_elses_is_not_believed(call: Hand, listen: Listen) -> None:
    hook = await listen()
    stranger = await listen(allowing, "127.0.0.1", "another.example.com")
    said = await failed(call, a_hook({**hook.client, "caBundle": stranger.bundle}))
    assert said.endswith("tls: failed to verify certificate: x509: certificate signed by unknown authority")
    assert hook.asked == []


async def test_a_webhook_whose_certificate_has_another_name_is_not_believed(call: Hand, listen: Listen) -> None:
    hook = await listen(allowing, "elsewhere.example.com")
    said = await failed(call, a_hook(hook.client))
    assert said.endswith("x509: cannot validate certificate for 127.0.0.1 because it doesn't contain any IP SANs")
    assert hook.asked == []


@pytest.mark.parametrize(
    ("say", "why"),
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
async def test_an_answer_that_is_none_is_a_failure(call: Hand, listen: Listen, say: Say, why: str) -> None:
    hook = await listen(say)
    assert (await failed(call, a_hook(hook.client))).startswith(why)


async def test_a_webhook_that_takes_too_long_is_not_waited_for(call: Hand, listen: Listen) -> None:
    hook = await listen(lambda _: asyncio.Event().wait())
    await validating(call, a_hook(hook.client, timeoutSeconds=1))
    status, found = await call("POST", MAPS, a_map())
    assert (status, found["message"]) == (
        500,
        'Internal error occurred: failed calling webhook "one.example.com": failed to call webhook: '
        f'Post "https://127.0.0.1:{hook.port}/hook?timeout=1s": context deadline exceeded',
    )


async def test_an_answer_that_is_too_long_is_a_failure(
    call: Hand, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tapestry.apiserver.admission.webhook_client.MAX_RESPONSE_BYTES", 1000)
    monkeypatch.setattr("tapestry.apiserver.admission.webhook_client.MAX_RESPONSE_GROWTH", 0)
    hook = await listen(lambda _: {"allowed": True, "warnings": ["x" * 2000]})
    assert (await failed(call, a_hook(hook.client))) == "failed to call webhook: the response is longer than 1000 bytes"


# -- behind a Service


async def test_a_webhook_behind_a_service_is_known_by_the_services_name(call: Hand, listen: Listen) -> None:
    hook = await listen(allowing, "guard.default.svc")
    service = {"metadata": {"name": "guard"}, "spec": {"type": "ExternalName", "externalName": "localhost"}}
    await call.made("/api/v1/namespaces/default/services", service)
    at = {"name": "guard", "namespace": "default", "path": "/judge", "port": hook.port}
    await validating(call, a_hook({"service": at, "caBundle": hook.bundle}))
    await call.made(MAPS, a_map())
    assert len(hook.asked) == 1


async def test_a_service_is_where_something_is_ready_or_else_at_its_address(call: Hand) -> None:
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


async def test_a_service_that_is_not_there_fails_the_write_or_is_ignored(call: Hand) -> None:
    client = {"service": {"name": "guard", "namespace": "default", "path": "/judge"}}
    assert (await failed(call, a_hook(client))) == (
        'failed to call webhook: Post "https://guard.default.svc:443/judge?timeout=10s": service "guard" not found'
    )


async def test_connections_are_used_again(call: Hand, listen: Listen) -> None:
    hook = await listen()
    await validating(call, a_hook(hook.client))
    for number in range(5):
        await call.made(MAPS, a_map(f"m{number}"))
    assert len(hook.asked) == 5
    assert len(hook.connections) == 1


# -- what is no object


async def test_a_scale_is_shown_as_what_it_is(call: Hand, listen: Listen) -> None:
    hook = await listen(patching({"op": "replace", "path": "/spec/replicas", "value": 2}))
    rule = {"operations": ["*"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments/scale"]}
    await mutating(call, a_hook(hook.client, rules=[rule]))
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    path = "/apis/apps/v1/namespaces/default/deployments"
    await call.made(path, {"metadata": {"name": "d"}, "spec": spec})
    status, scale = await call("PATCH", f"{path}/d/scale", {"spec": {"replicas": 5}}, kind=MERGE)
    assert (status, scale["spec"]["replicas"]) == (200, 2)
    [asked] = hook.asked
    assert (asked["kind"]["kind"], asked["object"]["spec"]["replicas"]) == ("Scale", 5)
    assert asked["oldObject"]["spec"]["replicas"] == 1


async def test_a_binding_is_shown_as_what_it_is(call: Hand, listen: Listen) -> None:
    hook = await listen(denying("not there"))
    await call.made(PODS, {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    rule = {**ANY, "resources": ["pods/binding"]}
    await validating(call, a_hook(hook.client, rules=[rule]))
    status, _ = await call("POST", f"{PODS}/web/binding", {"metadata": {"name": "web"}, "target": {"name": "n"}})
    [asked] = hook.asked
    assert (status, asked["operation"], asked["kind"]["kind"]) == (400, "CREATE", "Binding")
    assert asked["object"]["target"] == {"name": "n"}


async def test_whoever_wants_to_connect_is_judged_first(call: Hand, listen: Listen) -> None:
    hook = await listen(denying("nobody gets in"))
    await call.made(PODS, {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    assert (await call("POST", f"{PODS}/web/exec", command="ls"))[0] == 501
    await validating(call, a_hook(hook.client, rules=[{**ANY, "operations": ["CONNECT"], "resources": ["pods/exec"]}]))
    status, found = await call("POST", f"{PODS}/web/exec", command="ls")
    assert (status, "nobody gets in" in found["message"]) == (400, True)
    [asked] = hook.asked
    assert (asked["operation"], asked["kind"]["kind"], asked["options"]) == ("CONNECT", "PodExecOptions", None)


async def test_the_server_has_its_own_things_in_order_without_asking(call: Hand) -> None:
    everything = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}
    await call("DELETE", "/api/v1/namespaces/kube-node-lease")
    await call("PUT", "/api/v1/namespaces/kube-node-lease/finalize", {"metadata": {"name": "kube-node-lease"}})
    assert (await call("GET", "/api/v1/namespaces/kube-node-lease"))[0] == 404
    await validating(call, a_hook({"url": "https://127.0.0.1:1/"}, rules=[everything]))
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
async def test_a_configuration_that_cannot_work_is_refused(call: Hand, change: Object, message: str) -> None:
    hook = {
        key: value for key, value in (a_hook({"url": "https://a.example.com"}) | change).items() if value is not None
    }
    status, found = await call("POST", f"{GROUP}/validatingwebhookconfigurations", a_configuration(hook))
    assert status == 422
    assert message in found["message"]


async def test_a_configuration_says_what_holds_where_nothing_is_said(call: Hand) -> None:
    service = {"name": "guard", "namespace": "default"}
    made = await mutating(call, a_hook({"service": service}))
    [hook] = made["webhooks"]
    assert (hook["failurePolicy"], hook["matchPolicy"], hook["timeoutSeconds"]) == ("Fail", "Equivalent", 10)
    assert (hook["namespaceSelector"], hook["objectSelector"], hook["reinvocationPolicy"]) == ({}, {}, "Never")
    assert hook["rules"][0]["scope"] == "*"
    assert hook["clientConfig"]["service"]["port"] == 443
