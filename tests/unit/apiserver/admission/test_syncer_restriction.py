"""Writes that only the syncer of a tenant may make, and attacks on them by an administrator of the plane.

Each attack uses all rights that RBAC and impersonation give. The only effect it may have is a refusal.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import Call, CallOrigin, User
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.kube.objects import EMPTY_MAPPING, Object

MAPPED = "tapestry.io/Mapped"
CORE, DEFAULT = "/api/v1", "/api/v1/namespaces/default"
NODES, PODS, SERVICES, BINDINGS = f"{CORE}/nodes", f"{DEFAULT}/pods", f"{DEFAULT}/services", f"{DEFAULT}/bindings"
CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
OTHER_LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
JSON, MERGE = "application/json", "application/merge-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"

ADMIN = User("admin", ("system:masters", "system:authenticated"))
JANE = User("jane", ("system:authenticated",))
ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))
SYNCER = User("system:syncer", ("system:masters",))
Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Plane:
    """A server with a tenant, called by one user from one origin."""

    handler: RequestHandler
    user: User = ADMIN
    origin: CallOrigin = CallOrigin.CLIENT
    headers: Headers = ()

    async def __call__(self, method: str, path: str, body: Any = None, kind: str = JSON, **query: str) -> Any:
        """Return the status and the body of a response."""
        raw = b"" if body is None else msgspec.json.encode(body)
        call = Call(method, path, query, {"content-type": kind}, raw, self.user, self.headers, origin=self.origin)
        response = await self.handler.handle(call)
        assert isinstance(response, ApiResponse)
        return response.status, msgspec.json.decode(response.body)

    async def done(self, method: str, path: str, body: Any = None, kind: str = JSON, **query: str) -> Any:
        status, answer = await self(method, path, body, kind, **query)
        assert status < 300, answer
        return answer

    @property
    def syncer(self) -> "Plane":
        return replace(self, user=SYNCER, origin=CallOrigin.SYNCER)

    @property
    def controller(self) -> "Plane":
        return replace(self, user=User("system:apiserver", ("system:masters",)), origin=CallOrigin.CONTROLLER)

    def being(self, user: User) -> "Plane":
        return replace(self, user=user)

    def impersonating(self, name: str, *groups: str) -> "Plane":
        headers = ("impersonate-user", name), *(("impersonate-group", each) for each in groups)
        return replace(self, headers=headers)

    def revision(self) -> int:
        """Return the revision of the store, which every write increments."""
        return self.handler.server.verbs.store.revision

    def enable(self) -> None:
        self.handler.server.syncer_restriction.enable((MAPPED,))

    def disable(self) -> None:
        self.handler.server.syncer_restriction.disable()


def new_node(name: str = "n", **spec: Any) -> Object:
    return {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}, "spec": spec}


def new_csi_node(name: str = "n") -> Object:
    return {
        "kind": "CSINode",
        "apiVersion": "storage.k8s.io/v1",
        "metadata": {"name": name},
        "spec": {"drivers": []},
    }


def new_lease(name: str = "n", namespace: str = "kube-node-lease") -> Object:
    metadata = {"name": name, "namespace": namespace}
    return {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": metadata, "spec": {}}


def new_pod(name: str = "p", status: Mapping[str, Any] = EMPTY_MAPPING, **spec: Any) -> Object:
    content = {"containers": [{"name": "c", "image": "i"}], **spec}
    identity = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default"}}
    return {**identity, "spec": content, **({"status": status} if status else {})}


def new_binding(pod: str, node: str = "n") -> Object:
    return {
        "kind": "Binding",
        "apiVersion": "v1",
        "metadata": {"name": pod, "namespace": "default"},
        "target": {"kind": "Node", "name": node},
    }


def new_service(name: str = "s", **spec: Any) -> Object:
    metadata = {"name": name, "namespace": "default"}
    return {"kind": "Service", "apiVersion": "v1", "metadata": metadata, "spec": {"ports": [{"port": 80}], **spec}}


def condition(status: str = "True", type: str = MAPPED, message: str = "uid-of-a-twin") -> Object:
    return {"type": type, "status": status, "reason": "Mapped", "message": message}


def with_conditions(*conditions: Object) -> Object:
    return {"status": {"conditions": list(conditions)}}


INGRESS = {"status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}]}}}


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    """A plane with the node `n`, the mapped pod `mapped`, the pod `pending` and a LoadBalancer `s` of its tenant."""
    config = ApiServerConfig(backend="memory", secure_address="", pod_accounts=False, file_rootpath=str(tmp_path))
    async with run_apiserver(config) as running:
        plane = Plane(running.request_handler)
        plane.enable()
        for name in ("kube-node-lease", "other"):
            await plane("POST", f"{CORE}/namespaces", {"metadata": {"name": name}})
        for path, obj in ((NODES, new_node()), (CSI_NODES, new_csi_node()), (LEASES, new_lease())):
            await plane.syncer.done("POST", path, obj)
        for pod in (new_pod("mapped", nodeName="n"), new_pod("pending")):
            await plane.done("POST", PODS, pod)
        await plane.syncer.done("PATCH", f"{PODS}/mapped/status", with_conditions(condition()), STRATEGIC)
        await plane.done("POST", SERVICES, new_service(type="LoadBalancer"))
        addresses = {"spec": {"clusterIP": "10.9.0.1", "clusterIPs": ["10.9.0.1"]}}
        await plane.syncer.done("PATCH", f"{SERVICES}/s", addresses, MERGE)
        await plane.syncer.done("PATCH", f"{SERVICES}/s/status", INGRESS, MERGE)
        yield plane


@dataclass(frozen=True)
class Attack:
    method: str
    path: str
    body: Any = None
    kind: str = JSON
    query: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        place = self.path.removeprefix("/apis/").removeprefix("/api/v1/").removeprefix("namespaces/")
        flavor = {JSON: "", MERGE: "merge", STRATEGIC: "strategic", APPLY: "apply", JSON_PATCH: "json"}[self.kind]
        text = f"{self.method} {flavor} {place} {' '.join(self.query)}".split()
        return "-".join(text).replace("/", ".")

    async def answer(self, plane: Plane) -> tuple[int, Any]:
        status, body = await plane(self.method, self.path, self.body, self.kind, **self.query)
        return status, body


def writes_of(collection: str, obj: Object, change: Object) -> list[Attack]:
    """Return writes of every verb to the object `n` and to new objects of a resource."""
    one, named = f"{collection}/n", {**obj, "metadata": {**obj["metadata"], "name": "forged"}}
    generated = {**obj, "metadata": {"generateName": "forged-"}}
    operations = [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]
    return [
        Attack("POST", collection, named),
        Attack("POST", collection, named, query={"dryRun": "All"}),
        Attack("POST", collection, generated),
        Attack("PUT", one, {**obj, **change}),
        Attack("PUT", one, {**obj, **change}, query={"dryRun": "All"}),
        Attack("PATCH", one, change, MERGE),
        Attack("PATCH", one, change, STRATEGIC),
        Attack("PATCH", one, operations, JSON_PATCH),
        Attack("PATCH", one, {**obj, **change}, APPLY, {"fieldManager": "me", "force": "true"}),
        Attack("PATCH", f"{collection}/forged", named, APPLY, {"fieldManager": "me"}),
        Attack("DELETE", one),
        Attack("DELETE", one, {"gracePeriodSeconds": 0, "propagationPolicy": "Foreground"}),
        Attack("DELETE", collection),
        Attack("DELETE", collection, query={"labelSelector": "!nothing"}),
    ]


LABELS: Object = {"metadata": {"name": "n", "labels": {"tapestry.io/cluster-binding-uid": "forged"}}}
MAPPED_POD = f"{PODS}/mapped"
NODE_STATUS = {"status": {"capacity": {"cpu": "1000"}, "conditions": [condition("True", "Ready")]}}
FORGED, FALSE = condition(message="another-twin"), condition("False")
OPERATION = {"op": "replace", "path": "/status/conditions", "value": [FORGED]}
BEST_EFFORT = {"qosClass": "BestEffort"}
REMOVAL = {"op": "remove", "path": "/status/conditions"}

NODE_ATTACKS = [
    *writes_of(NODES, new_node(), LABELS),
    *writes_of(CSI_NODES, new_csi_node(), LABELS),
    *writes_of(LEASES, new_lease(), LABELS),
    Attack("PUT", f"{NODES}/n/status", {**new_node(), **NODE_STATUS}),
    Attack("PATCH", f"{NODES}/n/status", NODE_STATUS, MERGE),
    Attack("PATCH", f"{NODES}/n/status", NODE_STATUS, STRATEGIC),
    Attack("PATCH", f"{NODES}/n/status", [{"op": "add", "path": "/status/phase", "value": "Running"}], JSON_PATCH),
    Attack("PATCH", f"{NODES}/n/status", {**new_node(), **NODE_STATUS}, APPLY, {"fieldManager": "me", "force": "true"}),
    Attack("PATCH", f"{NODES}/n", {"spec": {"unschedulable": True}}, MERGE),
    Attack("PATCH", f"{NODES}/n", {"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}, MERGE),
    Attack("PATCH", f"{NODES}/n", {"metadata": {"finalizers": ["example.com/stay"]}}, MERGE),
    Attack("PATCH", f"{NODES}/n", {"metadata": {"ownerReferences": []}}, MERGE),
    Attack("POST", BINDINGS, new_binding("pending")),
    Attack("POST", f"{PODS}/pending/binding", new_binding("pending")),
    Attack("POST", f"{PODS}/pending/binding", new_binding("pending", "closed")),
    Attack("POST", f"{PODS}/pending/binding", new_binding("pending"), query={"dryRun": "All"}),
    Attack("DELETE", f"{CORE}/namespaces/kube-node-lease"),
    Attack("DELETE", f"{CORE}/namespaces/kube-node-lease", {"gracePeriodSeconds": 0}),
]
FIELD_ATTACKS = [
    *(
        Attack(method, f"{PODS}/{pod}/status", body, kind, query)
        for pod, change in (("mapped", FORGED), ("mapped", FALSE), ("pending", FORGED), ("pending", FALSE))
        for method, body, kind, query in (
            ("PUT", new_pod(pod, {**BEST_EFFORT, "conditions": [change]}), JSON, EMPTY_MAPPING),
            ("PATCH", with_conditions(change), MERGE, EMPTY_MAPPING),
            ("PATCH", with_conditions(change), STRATEGIC, EMPTY_MAPPING),
            ("PATCH", [{**OPERATION, "op": "add", "value": [change]}], JSON_PATCH, EMPTY_MAPPING),
            ("PATCH", new_pod(pod) | with_conditions(change), APPLY, {"fieldManager": "me", "force": "true"}),
        )
    ),
    Attack("PUT", f"{MAPPED_POD}/status", new_pod("mapped", {**BEST_EFFORT, "phase": "Running"})),
    Attack("PATCH", f"{MAPPED_POD}/status", {"status": {"conditions": None}}, MERGE),
    Attack("PATCH", f"{MAPPED_POD}/status", {"status": {"conditions": []}}, MERGE),
    Attack("PATCH", f"{MAPPED_POD}/status", [REMOVAL], JSON_PATCH),
    Attack("PATCH", f"{MAPPED_POD}/status", with_conditions({"type": MAPPED, "$patch": "delete"}), STRATEGIC),
    Attack("PATCH", f"{MAPPED_POD}/status", with_conditions(condition(), condition()), MERGE),
    Attack("PATCH", f"{MAPPED_POD}/status", with_conditions(condition(), FALSE), MERGE),
    Attack("POST", SERVICES, new_service("own", clusterIP="10.9.0.9")),
    Attack("POST", SERVICES, new_service("own", clusterIP="10.9.0.1", clusterIPs=["10.9.0.1"])),
    Attack("POST", SERVICES, new_service("own", clusterIP="10.9.0.9"), query={"dryRun": "All"}),
    Attack("PATCH", f"{SERVICES}/own", new_service("own", clusterIP="10.9.0.9"), APPLY, {"fieldManager": "me"}),
    Attack("PATCH", f"{SERVICES}/s/status", {"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}}, MERGE),
    Attack("PATCH", f"{SERVICES}/s/status", {"status": {"loadBalancer": {"ingress": None}}}, MERGE),
    Attack("PATCH", f"{SERVICES}/s/status", {"status": None}, MERGE),
    Attack("PUT", f"{SERVICES}/s/status", {**new_service(type="LoadBalancer"), **INGRESS, "status": {}}),
]
DISGUISES: list[Headers] = [
    (("impersonate-user", "system:syncer"), ("impersonate-group", "system:masters")),
    (("impersonate-user", "system:apiserver"), ("impersonate-group", "system:masters")),
    (("impersonate-user", "system:node:n"), ("impersonate-group", "system:nodes")),
    (("impersonate-user", "system:node:n"), ("impersonate-group", "system:masters")),
    (("impersonate-user", "system:kube-scheduler"), ("impersonate-group", "system:masters")),
    (("impersonate-user", "system:serviceaccount:kube-system:node-controller"),),
    (("impersonate-user", "syncer"), ("impersonate-group", "system:masters"), ("impersonate-extra-origin", "syncer")),
]


async def check_refused(plane: Plane, attack: Attack) -> None:
    before = plane.revision()
    status, answer = await attack.answer(plane)
    assert status == 403, (str(attack), answer["message"])
    assert plane.revision() == before, str(attack)


@pytest.mark.parametrize("user", [ADMIN, JANE, ANONYMOUS], ids=lambda each: each.name)
async def test_clients_cannot_write_what_the_syncer_owns(plane: Plane, user: User) -> None:
    for attack in (*NODE_ATTACKS, *FIELD_ATTACKS):
        await check_refused(plane.being(user), attack)


@pytest.mark.parametrize("headers", DISGUISES, ids=lambda each: each[0][1])
async def test_impersonation_gives_no_right_of_the_syncer(plane: Plane, headers: Headers) -> None:
    for attack in (*NODE_ATTACKS, *FIELD_ATTACKS):
        await check_refused(replace(plane, headers=headers), attack)


async def test_refusal_names_the_remedy_and_never_webhooks(plane: Plane) -> None:
    await register_webhooks(plane, "https://127.0.0.1:9/unreachable")  # it fails every request that calls it
    _, cordon = await plane("PATCH", f"{NODES}/n", {"spec": {"unschedulable": True}}, MERGE)
    assert "ask the operator of the host cluster to cordon" in cordon["message"]
    _, binding = await plane("POST", f"{PODS}/pending/binding", new_binding("pending"))
    assert binding["reason"] == "Forbidden", "the webhooks of the plane are called before the refusal"


@pytest.mark.parametrize("attack", FIELD_ATTACKS, ids=str)
async def test_controllers_cannot_change_fields_of_the_syncer(plane: Plane, attack: Attack) -> None:
    await check_refused(plane.controller, attack)


async def test_condition_in_a_new_pod_is_dropped(plane: Plane) -> None:
    created = await plane.done("POST", PODS, new_pod("forged", {"conditions": [FORGED], "phase": "Running"}))
    assert "conditions" not in created["status"]
    assert created["status"]["phase"] == "Pending"


@pytest.mark.parametrize("kind", [MERGE, STRATEGIC, APPLY])
async def test_write_to_a_pod_keeps_the_condition(plane: Plane, kind: str) -> None:
    body = {**new_pod("mapped"), **with_conditions(FALSE)} if kind == APPLY else with_conditions(FALSE)
    query = {"fieldManager": "me", "force": "true"} if kind == APPLY else {}
    await plane.done("PATCH", MAPPED_POD, body, kind, **query)
    found = (await plane.done("GET", MAPPED_POD))["status"]["conditions"]
    assert [(each["type"], each["status"], each["message"]) for each in found] == [(MAPPED, "True", "uid-of-a-twin")]


async def test_subresources_of_pods_keep_the_condition(plane: Plane) -> None:
    debug = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "i"}]}, **with_conditions(FALSE)}
    await plane.done("PATCH", f"{MAPPED_POD}/ephemeralcontainers", debug, STRATEGIC)
    size = {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}, **with_conditions(FALSE)}
    await plane("PATCH", f"{MAPPED_POD}/resize", size, STRATEGIC)
    [found] = (await plane.done("GET", MAPPED_POD))["status"]["conditions"]
    assert (found["type"], found["status"]) == (MAPPED, "True")


async def test_clients_use_their_own_objects_as_before(plane: Plane) -> None:
    await plane.done("POST", PODS, new_pod("named", nodeName="n"))
    await plane.done("PATCH", MAPPED_POD, {"metadata": {"labels": {"a": "b"}}}, MERGE)
    await plane.done("PATCH", f"{MAPPED_POD}/status", with_conditions(condition("True", "Mine")), STRATEGIC)
    await plane.done("POST", OTHER_LEASES, new_lease("leader", "default"))
    await plane.done("DELETE", OTHER_LEASES)
    await plane.done("POST", SERVICES, new_service("own"))
    await plane.done("POST", SERVICES, new_service("headless", clusterIP="None"))
    await plane.done("PATCH", f"{SERVICES}/s", {"spec": {"ports": [{"port": 81}]}}, MERGE)
    await plane.done("DELETE", MAPPED_POD, {"gracePeriodSeconds": 0})
    await plane.done("DELETE", PODS)
    await plane.done("DELETE", f"{SERVICES}/s")
    namespace = await plane.done("DELETE", f"{CORE}/namespaces/other")
    assert namespace["metadata"]["deletionTimestamp"]


async def test_evicted_pod_keeps_its_condition(plane: Plane) -> None:
    body = {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "mapped", "namespace": "default"}}
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 0, "selector": {}}}
    await plane.done("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
    status, answer = await plane("POST", f"{MAPPED_POD}/eviction", body)
    assert status in (201, 429), answer  # without a controller of budgets nothing may be disrupted


@pytest.mark.parametrize(
    "spec",
    [
        {"clusterIP": "10.9.0.3", "clusterIPs": ["10.9.0.3"]},
        {"clusterIPs": ["10.9.0.1", "fd00::1"], "ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4", "IPv6"]},
        {"clusterIP": "None", "clusterIPs": ["None"], "type": "ClusterIP"},
    ],
    ids=str,
)
async def test_clients_cannot_replace_addresses_of_the_host(plane: Plane, spec: Object) -> None:
    before = plane.revision()
    status, answer = await plane("PATCH", f"{SERVICES}/s", {"spec": spec}, MERGE)
    assert (status in (403, 422), plane.revision()) == (True, before), answer


async def test_services_of_other_types_end_their_load_balancer(plane: Plane) -> None:
    changed = await plane.done("PATCH", f"{SERVICES}/s", {"spec": {"type": "ClusterIP"}}, MERGE)
    assert changed["status"] == {"loadBalancer": {}}
    status, answer = await plane("PATCH", f"{SERVICES}/s/status", INGRESS, MERGE)
    assert status == 422, answer


async def test_node_without_restriction_is_written_by_clients(plane: Plane) -> None:
    plane.disable()
    await plane.done("PATCH", f"{NODES}/n", {"spec": {"unschedulable": True}}, MERGE)
    await plane.done("POST", f"{PODS}/pending/binding", new_binding("pending"))
    await plane.done("DELETE", f"{CORE}/namespaces/kube-node-lease")
    assert (await plane.done("GET", f"{NODES}/n"))["spec"]["unschedulable"]


# -- the syncer


async def register_webhooks(plane: Plane, url: str) -> None:
    """Register a mutating and a validating webhook of everything, and a policy that denies everything."""
    rule = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}
    for kind in ("mutating", "validating"):
        hook = {
            "name": f"{kind}.example.com",
            "clientConfig": {"url": url},
            "rules": [rule],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail",
        }
        body = {"metadata": {"name": "all"}, "webhooks": [hook]}
        await plane.done("POST", f"{ADMISSION}/{kind}webhookconfigurations", body)


async def register_policy(plane: Plane) -> None:
    rule = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "false"}]}
    await plane.done("POST", f"{ADMISSION}/validatingadmissionpolicies", {"metadata": {"name": "never"}, "spec": spec})
    binding = {"metadata": {"name": "never"}, "spec": {"policyName": "never", "validationActions": ["Deny"]}}
    await plane.done("POST", f"{ADMISSION}/validatingadmissionpolicybindings", binding)


async def nodes_after_all_writes(plane: Plane) -> list[str]:
    """Write everything that a syncer writes, delete it again, and return the names of the nodes that are left."""
    await plane.done("POST", NODES, new_node("m"))
    await plane.done("PATCH", f"{NODES}/m/status", NODE_STATUS, MERGE)
    await plane.done("POST", CSI_NODES, new_csi_node("m"))
    await plane.done("POST", f"{PODS}/pending/binding", new_binding("pending", "m"))
    await plane.done("PATCH", f"{PODS}/pending/status", with_conditions(condition()), STRATEGIC)
    await plane.done("PATCH", f"{SERVICES}/s", {"spec": {"clusterIP": "10.9.0.2", "clusterIPs": ["10.9.0.2"]}}, MERGE)
    await plane.done("PATCH", f"{SERVICES}/s/status", {"status": {"loadBalancer": None}}, MERGE)
    await plane.done("DELETE", f"{PODS}/pending", {"gracePeriodSeconds": 0})
    await plane.done("DELETE", f"{CSI_NODES}/m")
    await plane.done("DELETE", f"{NODES}/m")
    return [each["metadata"]["name"] for each in (await plane.done("GET", NODES))["items"]]


async def test_syncer_writes_all_that_it_owns(plane: Plane) -> None:
    assert await nodes_after_all_writes(plane.syncer) == ["n"]


async def test_webhooks_do_not_apply_to_the_syncer(plane: Plane) -> None:
    await register_webhooks(plane, "https://127.0.0.1:9/unreachable")
    status, _ = await plane("POST", PODS, new_pod("other"))
    assert status == 500, "the webhooks apply to clients"
    assert await nodes_after_all_writes(plane.syncer) == ["n"]


async def test_policies_do_not_apply_to_the_syncer(plane: Plane) -> None:
    await register_policy(plane)
    status, _ = await plane("POST", PODS, new_pod("other"))
    assert status == 422, "the policy applies to clients"
    assert await nodes_after_all_writes(plane.syncer) == ["n"]


async def test_quotas_and_limits_do_not_apply_to_the_syncer(plane: Plane) -> None:
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0", "services": "0", "count/events": "0"}}}
    limits = [{"type": "Container", "max": {"cpu": "1m"}, "default": {"cpu": "1m"}}]
    await plane.done("POST", f"{DEFAULT}/limitranges", {"metadata": {"name": "l"}, "spec": {"limits": limits}})
    await plane.done("POST", f"{DEFAULT}/resourcequotas", quota)
    assert await nodes_after_all_writes(plane.syncer) == ["n"]


async def test_syncer_evicts_without_webhooks(plane: Plane) -> None:
    await register_webhooks(plane, "https://127.0.0.1:9/unreachable")
    body = {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "mapped", "namespace": "default"}}
    await plane.syncer.done("POST", f"{MAPPED_POD}/eviction", body)
    assert (await plane.done("GET", MAPPED_POD))["metadata"]["deletionTimestamp"]


async def test_webhooks_do_not_apply_to_nodes_of_controllers(plane: Plane) -> None:
    await register_webhooks(plane, "https://127.0.0.1:9/unreachable")
    taints = {"spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]}}
    await plane.controller.done("PATCH", f"{NODES}/n", taints, MERGE)
    await plane.controller.done("POST", f"{PODS}/pending/binding", new_binding("pending"))
    status, _ = await plane.controller("PATCH", MAPPED_POD, {"metadata": {"labels": {"a": "b"}}}, MERGE)
    assert status == 500, "what controllers write to pods is admitted by the plane"
