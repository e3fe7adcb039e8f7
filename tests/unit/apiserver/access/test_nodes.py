"""The Node authorizer and NodeRestriction: a kubelet can only use objects of its own node."""

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tapestry.apiserver.access.node_graph import NodeGraph
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.references import SECRETS, pod_references, referenced_api_objects, volume_secrets
from tapestry.apiserver.core.requests import User
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.core.store import Key, ObjectVersion, WatchEvent
from tapestry.apiserver.storage.local_store import LocalStore
from tapestry.apiserver.storage.log import MemoryLog
from tapestry.kube.objects import Object

from ..conftest import ServerClient

API, DEFAULT = "/api/v1", "/api/v1/namespaces/default"
STORAGE, DEVICES = "/apis/storage.k8s.io/v1", "/apis/resource.k8s.io/v1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
MERGE = "application/merge-patch+json"
MIRROR = "kubernetes.io/config.mirror"
UNRELATED = "no relationship found between node 'n1' and this object"


def kubelet(name: str) -> User:
    return User(f"system:node:{name}", ("system:nodes", "system:authenticated"))


def pod_body(name: str, node: str, **spec: Any) -> Object:
    container = {"name": "c", "image": "i", **spec.pop("container", {})}
    return {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [container], **spec}}


def node_body(name: str, **metadata: Any) -> Object:
    return {"metadata": {"name": name, **metadata}}


def mirror_pod_body(node: Object, **spec: Any) -> Object:
    metadata = node["metadata"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
    pod = pod_body("static", metadata["name"], **spec)
    return {**pod, "metadata": {"name": "static", "annotations": {MIRROR: "x"}, "ownerReferences": [owner]}}


@pytest.fixture
async def n1(call: ServerClient) -> ServerClient:
    """The kubelet of n1, in a cluster with the nodes n1 and n2."""
    for name in ("n1", "n2"):
        await call.made(f"{API}/nodes", node_body(name))
    return call.being(kubelet("n1"))


def assert_forbidden(response: tuple[int, Any], message: str = "") -> None:
    status, body = response
    assert (status, message in body["message"]) == (403, True), body


async def can_read(api: ServerClient, path: str, **query: str) -> bool:
    status, body = await api("GET", path, **query)
    assert status in (200, 403), body
    return status == 200


# -- the authorizer


SOURCES: dict[str, Object] = {
    "volume": {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]},
    "projection": {"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}]}}]},
    "image pull": {"imagePullSecrets": [{"name": "s"}]},
    "variables": {"container": {"envFrom": [{"secretRef": {"name": "s"}}]}},
    "variable": {
        "container": {"env": [{"name": "V", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
    },
    "csi": {"volumes": [{"name": "v", "csi": {"driver": "d.io", "nodePublishSecretRef": {"name": "s"}}}]},
}


@pytest.mark.parametrize("spec", SOURCES.values(), ids=SOURCES)
async def test_node_reads_secrets_that_its_pods_reference(call: ServerClient, n1: ServerClient, spec: Object) -> None:
    secret = f"{DEFAULT}/secrets/s"
    for name in ("s", "other"):
        await call.made(f"{DEFAULT}/secrets", {"metadata": {"name": name}})
    assert_forbidden(await n1("GET", secret), UNRELATED)
    await call.made(f"{DEFAULT}/pods", pod_body("p", "n1", **spec))
    assert await can_read(n1, secret)
    assert_forbidden(await n1("GET", f"{DEFAULT}/secrets/other"), UNRELATED)
    assert_forbidden(await n1("GET", f"{API}/namespaces/kube-system/secrets/s"), UNRELATED)
    assert_forbidden(await call.being(kubelet("n2"))("GET", secret), "no relationship found between node 'n2'")
    for method, body in (("PUT", {"metadata": {"name": "s"}}), ("DELETE", None)):
        assert_forbidden(await n1(method, secret, body), "can only read resources of this type")
    await call("DELETE", f"{DEFAULT}/pods/p", {"gracePeriodSeconds": 0})
    assert_forbidden(await n1("GET", secret), UNRELATED)


async def test_node_lists_and_watches_secret_by_name(call: ServerClient, n1: ServerClient) -> None:
    for name in ("s", "other"):
        await call.made(f"{DEFAULT}/secrets", {"metadata": {"name": name}})
    await call.made(f"{DEFAULT}/pods", pod_body("p", "n1", imagePullSecrets=[{"name": "s"}]))
    status, listed = await n1("GET", f"{DEFAULT}/secrets", fieldSelector="metadata.name=s")
    assert (status, [each["metadata"]["name"] for each in listed["items"]]) == (200, ["s"])
    watch = await n1.answer("GET", f"{DEFAULT}/secrets", fieldSelector="metadata.name=s", watch="true")
    assert not isinstance(watch, ApiResponse)
    watch.end()
    for query in ({}, {"fieldSelector": "metadata.name!=x"}, {"fieldSelector": "metadata.name=other"}):
        assert_forbidden(await n1("GET", f"{DEFAULT}/secrets", **query))
        assert_forbidden(await n1("GET", f"{API}/secrets", **query))


async def test_node_reads_config_map_of_ephemeral_container(call: ServerClient, n1: ServerClient) -> None:
    await call.made(f"{DEFAULT}/configmaps", {"metadata": {"name": "m"}})
    await call.made(f"{DEFAULT}/pods", pod_body("p", "n1"))
    assert not await can_read(n1, f"{DEFAULT}/configmaps/m")
    container = {"name": "e", "image": "i", "envFrom": [{"configMapRef": {"name": "m"}}]}
    patch = {"spec": {"ephemeralContainers": [container]}}
    assert (await call("PATCH", f"{DEFAULT}/pods/p/ephemeralcontainers", patch, kind=MERGE))[0] == 200
    assert await can_read(n1, f"{DEFAULT}/configmaps/m")


async def test_node_reads_claim_volume_and_its_secret(call: ServerClient, n1: ServerClient) -> None:
    sizes = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "v"}
    await call.made(f"{DEFAULT}/persistentvolumeclaims", {"metadata": {"name": "c"}, "spec": claim})
    stage = {"namespace": "kube-system", "name": "stage"}
    source = {"driver": "d.io", "volumeHandle": "h", "nodeStageSecretRef": stage}
    source["controllerPublishSecretRef"] = {"namespace": "kube-system", "name": "controller"}
    volume = {**sizes, "csi": source, "claimRef": {"namespace": "default", "name": "c"}}
    await call.made(f"{API}/persistentvolumes", {"metadata": {"name": "v"}, "spec": volume})
    for name in ("stage", "controller"):
        await call.made(f"{API}/namespaces/kube-system/secrets", {"metadata": {"name": name}})
    paths = [f"{DEFAULT}/persistentvolumeclaims/c", f"{API}/persistentvolumes/v"]
    paths.append(f"{API}/namespaces/kube-system/secrets/stage")
    assert [await can_read(n1, each) for each in paths] == [False] * 3
    mounted = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    await call.made(f"{DEFAULT}/pods", pod_body("p", "n1", volumes=mounted))
    assert [await can_read(n1, each) for each in paths] == [True] * 3
    assert not await can_read(n1, f"{API}/namespaces/kube-system/secrets/controller")
    status = f"{paths[0]}/status"
    assert (await n1("PATCH", status, {"status": {"capacity": {"storage": "2Gi"}}}, kind=MERGE))[0] == 200
    assert_forbidden(await n1("PATCH", status, {"metadata": {"labels": {"a": "b"}}}, kind=MERGE), "fields other than")
    assert_forbidden(await n1("PATCH", paths[0], {"spec": {}}, kind=MERGE), "can only get individual resources")
    await call("PATCH", paths[1], {"spec": {"claimRef": None}}, kind=MERGE)
    assert [await can_read(n1, each) for each in paths] == [True, False, False]


async def test_node_reads_own_volume_attachments_and_device_claims(call: ServerClient, n1: ServerClient) -> None:
    for name in ("n1", "n2"):
        spec = {"attacher": "d.io", "nodeName": name, "source": {"persistentVolumeName": "v"}}
        await call.made(f"{STORAGE}/volumeattachments", {"metadata": {"name": f"on-{name}"}, "spec": spec})
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        slices = {"driver": "d.io", "nodeName": name, "pool": pool, "devices": [{"name": "d"}]}
        await call.made(f"{DEVICES}/resourceslices", {"metadata": {"name": f"on-{name}"}, "spec": slices})
    for path in (f"{STORAGE}/volumeattachments", f"{DEVICES}/resourceslices"):
        assert await can_read(n1, f"{path}/on-n1")
        assert_forbidden(await n1("GET", f"{path}/on-n2"), UNRELATED)
        assert_forbidden(await n1("GET", path))
    assert await can_read(n1, f"{DEVICES}/resourceslices", fieldSelector="spec.nodeName=n1")
    other = {"driver": "d.io", "nodeName": "n2", "pool": {**pool, "name": "x"}, "devices": []}
    response = await n1("POST", f"{DEVICES}/resourceslices", {"metadata": {"name": "x"}, "spec": other})
    assert_forbidden(response, "with the same NodeName as the requesting node")
    claim = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}
    await call.made(f"{DEVICES}/namespaces/default/resourceclaims", {"metadata": {"name": "rc"}, "spec": claim})
    assert not await can_read(n1, f"{DEVICES}/namespaces/default/resourceclaims/rc")
    pod = pod_body("p", "n1", resourceClaims=[{"name": "r", "resourceClaimName": "rc"}])
    await call.made(f"{DEFAULT}/pods", pod)
    assert await can_read(n1, f"{DEVICES}/namespaces/default/resourceclaims/rc")


async def test_node_reads_own_pods_and_own_node(call: ServerClient, n1: ServerClient) -> None:
    for name, node in (("mine", "n1"), ("other", "n2")):
        await call.made(f"{DEFAULT}/pods", pod_body(name, node))
    status, listed = await n1("GET", f"{API}/pods", fieldSelector="spec.nodeName=n1")
    assert (status, [each["metadata"]["name"] for each in listed["items"]]) == (200, ["mine"])
    assert await can_read(n1, f"{DEFAULT}/pods/mine")
    assert_forbidden(await n1("GET", f"{DEFAULT}/pods/other"), UNRELATED)
    for query in ({}, {"fieldSelector": "spec.nodeName=n2"}, {"fieldSelector": "spec.nodeName!=n1"}):
        assert_forbidden(await n1("GET", f"{API}/pods", **query), "spec.nodeName field selector")
    assert await can_read(n1, f"{API}/nodes/n1")
    assert await can_read(n1, f"{API}/nodes", fieldSelector="metadata.name=n1")
    assert_forbidden(await n1("GET", f"{API}/nodes/n2"), "only its own Node object")
    assert_forbidden(await n1("GET", f"{API}/nodes"), "cannot read all nodes")
    assert await can_read(n1, f"{API}/services")
    for path in ("pods/mine/exec", "pods/mine/log", "pods/mine/portforward"):
        assert_forbidden(await n1("GET", f"{DEFAULT}/{path}"))


async def test_node_needs_group_and_name(call: ServerClient, n1: ServerClient) -> None:
    for user in (User("system:node:n1", ("system:authenticated",)), User("n1", ("system:nodes",))):
        assert_forbidden(await call.being(user)("GET", f"{API}/nodes/n1"))
    nameless = call.being(User("system:node:", ("system:nodes",)))
    assert_forbidden(await nameless("GET", f"{API}/nodes/n1"), 'unknown node for user "system:node:"')


async def test_access_reviews_include_node_permissions(call: ServerClient, n1: ServerClient) -> None:
    await call.made(f"{DEFAULT}/pods", pod_body("p", "n1", imagePullSecrets=[{"name": "s"}]))

    async def review(**attributes: Any) -> Object:
        user = kubelet("n1")
        spec = {"user": user.name, "groups": list(user.groups), "resourceAttributes": attributes}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        status: Object = (await call("POST", path, {"spec": spec}))[1]["status"]
        return status

    query = {"verb": "get", "resource": "secrets", "namespace": "default"}
    assert (await review(**query, name="s"))["allowed"]
    assert await review(**query, name="t") == {"allowed": False, "reason": UNRELATED}
    on_node = {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]}
    assert (await review(verb="list", resource="pods", fieldSelector=on_node))["allowed"]
    assert not (await review(verb="list", resource="pods"))["allowed"]
    _, rules = await n1("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", {"spec": {"namespace": "d"}})
    assert rules["status"]["incomplete"]


async def test_node_references_survive_restart(tmp_path: Path) -> None:
    config = ApiServerConfig(backend="file", secure_address="", pod_accounts=False, file_rootpath=str(tmp_path))
    async with run_apiserver(config) as served:
        admin = ServerClient(served.server, served.account_tokens)
        await admin.made(f"{DEFAULT}/secrets", {"metadata": {"name": "s"}})
        await admin.made(f"{DEFAULT}/pods", pod_body("p", "n1", imagePullSecrets=[{"name": "s"}]))
    async with run_apiserver(config) as served:
        api = ServerClient(served.server, served.account_tokens)
        assert await can_read(api.being(kubelet("n1")), f"{DEFAULT}/secrets/s")
        assert not await can_read(api.being(kubelet("n2")), f"{DEFAULT}/secrets/s")


# -- NodeRestriction


async def test_node_writes_only_own_node_lease_and_csi_node(call: ServerClient, n1: ServerClient) -> None:
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert (await n1("PATCH", f"{API}/nodes/n1/status", ready, kind=MERGE))[0] == 200
    for subresource in ("", "/status"):
        response = await n1("PATCH", f"{API}/nodes/n2{subresource}", ready, kind=MERGE)
        assert_forbidden(response, 'node "n1" is not allowed to modify node "n2"')
        assert_forbidden(await n1("PATCH", f"{API}/nodes/n2{subresource}", {}, kind=MERGE))  # nor read it
    assert_forbidden(await n1("POST", f"{API}/nodes", node_body("n3")), 'not allowed to modify node "n3"')
    assert_forbidden(await n1("DELETE", f"{API}/nodes/n1"))
    for path in (LEASES, f"{STORAGE}/csinodes"):
        body: Object = {"metadata": {"name": "n1"}, "spec": {"drivers": []} if "csi" in path else {}}
        assert (await n1("POST", path, body))[0] == 201
        assert (await n1("PATCH", f"{path}/n1", {"metadata": {"labels": {"a": "b"}}}, kind=MERGE))[0] == 200
        other = {**body, "metadata": {"name": "n2"}}
        assert_forbidden(await n1("POST", path, other), "with the same name as the requesting node")
        assert_forbidden(await n1("PUT", f"{path}/n2", other))
        await call.made(path, other)
        assert_forbidden(await n1("DELETE", f"{path}/n2"))
        assert (await n1("DELETE", f"{path}/n1"))[0] == 200
    elsewhere = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    assert_forbidden(await n1("POST", elsewhere, {"metadata": {"name": "n1"}, "spec": {}}), "kube-node-lease")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}, "modify taints"),
        ({"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}}, "modify labels: node-restriction"),
        ({"metadata": {"labels": {"a.node-restriction.kubernetes.io/x": "y"}}}, "modify labels"),
        ({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}, "modify labels"),
        ({"metadata": {"labels": {"kubernetes.io/metadata": "x"}}}, "modify labels"),
        (
            {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}},
            "modify ownerReferences",
        ),
    ],
)
async def test_node_cannot_change_its_scheduling_fields(n1: ServerClient, change: Object, message: str) -> None:
    assert_forbidden(await n1("PATCH", f"{API}/nodes/n1", change, kind=MERGE), message)


async def test_node_registers_with_taints_and_kubelet_labels(call: ServerClient) -> None:
    n3 = call.being(kubelet("n3"))
    labels = {"kubernetes.io/hostname": "n3", "node.kubernetes.io/a": "b", "x.kubelet.kubernetes.io/a": "b", "own": "x"}
    bad = {**labels, "node-restriction.kubernetes.io/a": "b"}
    assert_forbidden(
        await n3("POST", f"{API}/nodes", node_body("n3", labels=bad)), "not allowed to set the following labels"
    )
    node = {**node_body("n3", labels=labels), "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}
    assert (await n3("POST", f"{API}/nodes", node))[0] == 201
    patch = {"metadata": {"labels": {"topology.kubernetes.io/zone": "z", "own": None}}}
    assert (await n3("PATCH", f"{API}/nodes/n3", patch, kind=MERGE))[0] == 200


async def test_node_creates_only_own_mirror_pods(call: ServerClient, n1: ServerClient) -> None:
    _, node = await call("GET", f"{API}/nodes/n1")
    _, other = await call("GET", f"{API}/nodes/n2")
    mirror = mirror_pod_body(node)
    plain = {**mirror, "metadata": {**mirror["metadata"], "annotations": {}}}
    owner = mirror["metadata"]["ownerReferences"][0]

    def with_owners(*owners: Object) -> Object:
        return {**mirror, "metadata": {**mirror["metadata"], "ownerReferences": list(owners)}}

    forbidden = {
        "can only create mirror pods": plain,
        "spec.nodeName set to itself": mirror_pod_body(other),
        "an owner reference set to itself": with_owners(),
        "a controller owner reference": with_owners({**owner, "controller": False}),
        "must not set blockOwnerDeletion": with_owners({**owner, "blockOwnerDeletion": True}),
        "UID mismatch": with_owners({**owner, "uid": "another"}),
        "reference secrets": mirror_pod_body(node, imagePullSecrets=[{"name": "s"}]),
        "reference serviceaccounts": mirror_pod_body(node, serviceAccountName="default"),
        "reference persistentvolumeclaims": mirror_pod_body(
            node, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
        ),
        "reference csidrivers": mirror_pod_body(node, volumes=[{"name": "v", "csi": {"driver": "d.io"}}]),
    }
    for message, pod in forbidden.items():
        assert_forbidden(await n1("POST", f"{DEFAULT}/pods", pod), message)
    assert (await n1("POST", f"{DEFAULT}/pods", mirror))[0] == 201
    assert (await n1("DELETE", f"{DEFAULT}/pods/static", {"gracePeriodSeconds": 0}))[0] == 200


async def test_mirror_pod_grants_no_access(call: ServerClient, n1: ServerClient) -> None:
    await call.made(f"{DEFAULT}/secrets", {"metadata": {"name": "s"}})
    pod = pod_body("p", "n1", imagePullSecrets=[{"name": "s"}])
    await call.made(f"{DEFAULT}/pods", {**pod, "metadata": {"name": "p", "annotations": {MIRROR: "x"}}})
    assert not await can_read(n1, f"{DEFAULT}/secrets/s")


async def test_node_writes_only_status_of_own_pods(call: ServerClient, n1: ServerClient) -> None:
    for name, node in (("mine", "n1"), ("other", "n2")):
        await call.made(f"{DEFAULT}/pods", pod_body(name, node))
    running = {"status": {"phase": "Running"}}
    mine, other = f"{DEFAULT}/pods/mine", f"{DEFAULT}/pods/other"
    assert (await n1("PATCH", f"{mine}/status", running, kind=MERGE))[0] == 200
    assert_forbidden(await n1("PATCH", f"{other}/status", running, kind=MERGE), "spec.nodeName set to itself")
    assert_forbidden(await n1("PATCH", f"{other}/status", {}, kind=MERGE), "spec.nodeName set to itself")
    labelled = {"metadata": {"labels": {"a": "b"}}}
    assert_forbidden(await n1("PATCH", f"{mine}/status", labelled, kind=MERGE), "cannot update labels")
    claimed = {"status": {"resourceClaimStatuses": [{"name": "r", "resourceClaimName": "c"}]}}
    assert_forbidden(await n1("PATCH", f"{mine}/status", claimed, kind=MERGE), "resource claim")
    assert_forbidden(await n1("PATCH", mine, labelled, kind=MERGE))
    for subresource in ("ephemeralcontainers", "resize", "binding"):
        assert_forbidden(await n1("PATCH", f"{mine}/{subresource}", labelled, kind=MERGE))
    assert_forbidden(await n1("DELETE", other), "spec.nodeName set to itself")
    assert (await n1("DELETE", mine, {"gracePeriodSeconds": 0}))[0] == 200


async def test_roles_do_not_bypass_node_restriction(call: ServerClient, n1: ServerClient) -> None:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}
    binding = {"metadata": {"name": "all"}, "roleRef": reference, "subjects": [subject]}
    await call.made(f"{RBAC}/clusterrolebindings", binding)
    await call.made(f"{DEFAULT}/pods", pod_body("other", "n2"))
    assert await can_read(n1, f"{API}/nodes/n2")
    assert_forbidden(await n1("PATCH", f"{API}/nodes/n2", {"spec": {"unschedulable": True}}, kind=MERGE))
    assert_forbidden(await n1("PATCH", f"{DEFAULT}/pods/other", {"metadata": {"labels": {"a": "b"}}}, kind=MERGE))
    assert_forbidden(await n1("DELETE", f"{DEFAULT}/pods"), "spec.nodeName set to itself")
    patch = {"spec": {"ephemeralContainers": [{"name": "e", "image": "i"}]}}
    path = f"{DEFAULT}/pods/other/ephemeralcontainers"
    assert_forbidden(await n1("PATCH", path, patch, kind=MERGE), "unexpected pod subresource")


async def test_node_evicts_only_own_pods(call: ServerClient, n1: ServerClient) -> None:
    for name, node in (("mine", "n1"), ("other", "n2")):
        await call.made(f"{DEFAULT}/pods", {**pod_body(name, node), "metadata": {"name": name, "labels": {"app": "a"}}})
        await call("PATCH", f"{DEFAULT}/pods/{name}/status", {"status": {"phase": "Running"}}, kind=MERGE)
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    budget = {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"app": "a"}}, "minAvailable": 0}}
    await call.made(budgets, budget)
    spare = {"status": {"disruptionsAllowed": 2, "observedGeneration": 1, "currentHealthy": 0, "desiredHealthy": 0}}
    await call("PATCH", f"{budgets}/b/status", spare, kind=MERGE)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction"}
    assert_forbidden(await n1("POST", f"{DEFAULT}/pods/other/eviction", eviction), "can only evict pods")
    assert (await call("GET", f"{budgets}/b"))[1]["status"]["disruptionsAllowed"] == 2
    assert (await n1("POST", f"{DEFAULT}/pods/mine/eviction", eviction))[0] == 201


async def test_node_gets_tokens_for_own_pods_and_audiences(call: ServerClient, n1: ServerClient) -> None:
    for name in ("robot", "other"):
        await call.made(f"{DEFAULT}/serviceaccounts", {"metadata": {"name": name}})
    tokens = [{"serviceAccountToken": {"path": "t", "audience": "vault"}}, {"serviceAccountToken": {"path": "u"}}]
    volumes = [{"name": "t", "projected": {"sources": tokens}}, {"name": "d", "csi": {"driver": "d.io"}}]
    driver = {"metadata": {"name": "d.io"}, "spec": {"tokenRequests": [{"audience": "disk"}]}}
    await call.made(f"{STORAGE}/csidrivers", driver)
    pods = {
        node: await call.made(f"{DEFAULT}/pods", pod_body(node, node, serviceAccountName="robot", volumes=volumes))
        for node in ("n1", "n2")
    }

    async def request_token(pod: str, *audiences: str, account: str = "robot", **reference: Any) -> tuple[int, Any]:
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pods[pod]["metadata"]["uid"], **reference}
        body = {"spec": {"audiences": list(audiences), "boundObjectRef": bound}}
        return await n1("POST", f"{DEFAULT}/serviceaccounts/{account}/token", body)

    for audience in ((), ("vault",), ("disk",)):
        assert (await request_token("n1", *audience))[0] == 201
    assert_forbidden(await request_token("n1", "bank"), 'audience "bank" not found in pod spec volume')
    assert_forbidden(await request_token("n1", "vault", "disk"), "0 or 1 audiences")
    assert_forbidden(await request_token("n2"), "a pod scheduled on a different node")
    assert_forbidden(await request_token("n1", uid="x"), "does not match the UID in record")
    assert_forbidden(await request_token("n1", uid=""), "without a uid")
    assert_forbidden(await request_token("n1", kind="Secret"), "not bound to a pod")
    assert_forbidden(await request_token("n1", account="other"), UNRELATED)
    unbound = {"spec": {"audiences": []}}
    assert_forbidden(await n1("POST", f"{DEFAULT}/serviceaccounts/robot/token", unbound), "not bound to a pod")
    rule = {"apiGroups": [""], "resources": ["bank"], "verbs": ["request-serviceaccounts-token-audience"]}
    await call.made(f"{RBAC}/clusterroles", {"metadata": {"name": "bank"}, "rules": [rule]})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "bank"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}
    await call.made(
        f"{RBAC}/clusterrolebindings",
        {"metadata": {"name": "bank"}, "roleRef": reference, "subjects": [subject]},
    )
    assert (await request_token("n1", "bank"))[0] == 201


async def test_node_requests_certificates_for_own_name_only(n1: ServerClient) -> None:
    for node, code in (("n2", 403), ("n1", 201)):
        key = ec.generate_private_key(ec.SECP256R1())
        names = [(NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, f"system:node:{node}")]
        subject = x509.Name([x509.NameAttribute(*each) for each in names])
        request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
        text = base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode()
        usages = ["client auth", "digital signature"]
        spec = {"request": text, "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": usages}
        status, body = await n1("POST", CSRS, {"metadata": {"name": node}, "spec": spec})
        assert status == code, body


# -- references and their index


def test_pod_references_are_complete() -> None:
    volumes = [
        {"name": "a", "configMap": {"name": "m1"}},
        {"name": "b", "projected": {"sources": [{"configMap": {"name": "m2"}}, {"secret": {"name": "s1"}}]}},
        {"name": "c", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
        {"name": "d", "azureFile": {"secretName": "s2", "shareName": "x"}},
        {"name": "e", "rbd": {"secretRef": {"name": "s3"}}},
    ]
    spec = {"volumes": volumes, "serviceAccountName": "a", "resourceClaims": [{"name": "r"}, {"name": "q"}]}
    status = {
        "resourceClaimStatuses": [{"name": "r", "resourceClaimName": "made"}],
        "extendedResourceClaimStatus": {"resourceClaimName": "extended"},
    }
    pod = {"metadata": {"name": "p", "namespace": "ns"}, "spec": spec, "status": status}
    assert {(resource.partition(".")[0], name) for resource, _, name in pod_references(pod)} == {
        *(("pods", "p"), ("serviceaccounts", "a"), ("configmaps", "m1"), ("configmaps", "m2")),
        *(("secrets", "s1"), ("secrets", "s2"), ("secrets", "s3"), ("persistentvolumeclaims", "p-c")),
        *(("resourceclaims", "made"), ("resourceclaims", "extended")),
    }


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        ({"emptyDir": {}}, ""),
        ({"hostPath": {"path": "/"}}, ""),
        ({"projected": {"sources": [{"downwardAPI": {}}]}}, ""),
        ({"projected": {"sources": [{"downwardAPI": {}}, {"serviceAccountToken": {}}]}}, "serviceaccounts"),
        ({"glusterfs": {"endpoints": "e"}}, "endpoints"),
        ({"somethingNew": {}}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_referenced_api_objects_of_volumes(volume: Object, expected: str) -> None:
    assert referenced_api_objects({"spec": {"volumes": [{"name": "v", **volume}]}}).startswith(expected)
    assert bool(referenced_api_objects({"spec": {"volumes": [{"name": "v", **volume}]}})) is bool(expected)


def test_volume_secret_defaults_to_claim_namespace() -> None:
    claim = {"claimRef": {"namespace": "ns", "name": "c"}}
    assert list(volume_secrets({"spec": {**claim, "rbd": {"secretRef": {"name": "s"}}}})) == [(SECRETS, "ns", "s")]
    named = {"secretRef": {"name": "s", "namespace": "x"}}
    assert list(volume_secrets({"spec": {**claim, "iscsi": named}})) == [(SECRETS, "x", "s")]
    assert list(volume_secrets({"spec": {**claim, "cinder": {"secretRef": {"name": "s"}}}})) == []


def test_node_graph_reads_changes_and_forgets_deleted() -> None:
    store = CountingStore()
    graph = NodeGraph(store)
    for number in range(500):
        store.put_pod(f"p{number}", f"n{number % 10}", f"s{number}")
    assert graph.reaches("n1", (SECRETS, "ns", "s11"))
    assert store.reads == 500
    for number in range(500):
        assert graph.reaches(f"n{number % 10}", (SECRETS, "ns", f"s{number}"))
        assert not graph.reaches("n1", (SECRETS, "ns", "s2"))
    assert store.reads == 500
    store.put_pod("p11", "n1", "t")
    assert graph.reaches("n1", (SECRETS, "ns", "t"))
    assert not graph.reaches("n1", (SECRETS, "ns", "s11"))
    assert store.reads == 501
    for number in range(500):
        store.put_pod(f"p{number}", "", "")
    store.put_pod("late", "n1", "s")
    store.delete_pod("late")
    assert not graph.reaches("n1", (SECRETS, "ns", "s12"))
    assert (graph._readable_by_node, graph._node_references, graph._pending_keys) == ({}, {}, {})


class CountingStore(LocalStore):
    """A store of pods that counts reads."""

    def __init__(self) -> None:
        super().__init__(MemoryLog(), ThreadPoolExecutor(1))
        self.reads = 0

    def get(self, resource: str, namespace: str, name: str) -> ObjectVersion | None:
        self.reads += 1
        return super().get(resource, namespace, name)

    def put_pod(self, name: str, node: str, secret: str) -> None:
        key, self.revision = Key("pods", "ns", name), self.revision + 1
        pod = {"metadata": {"name": name, "namespace": "ns"}}
        pod["spec"] = {"nodeName": node, "imagePullSecrets": [{"name": secret}]}
        version = ObjectVersion(key, self.revision, msgspec.json.encode(pod), {})
        self._apply_event(key, WatchEvent(self.revision, super().get(*key), version, version.raw))

    def delete_pod(self, name: str) -> None:
        key, self.revision = Key("pods", "ns", name), self.revision + 1
        old = super().get(*key)
        assert old is not None
        self._apply_event(key, WatchEvent(self.revision, old, None, old.raw))
