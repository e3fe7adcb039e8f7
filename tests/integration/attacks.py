"""Requests that a stolen token of the syncer `east` must not be able to make.

Every target exists, so that a refusal is the only reason for a failure. `west` is another binding, `team-a` a namespace
with a pod of east that uses the Secret `used` and the account `robot`, and `team-b` one without pods of east.
"""

from dataclasses import dataclass
from typing import Any

from tapestry.apis import keys
from tapestry.kube.objects import Object

RBAC = "/apis/rbac.authorization.k8s.io/v1"
BINDINGS = "/apis/cloud.tencent.com/v1beta1/clusterbindings"
POLICIES = "/apis/cloud.tencent.com/v1beta1/resourceleasingpolicies"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces"
SIGNING_REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
MERGE = "application/merge-patch+json"
LABELLED = {"metadata": {"labels": {"stolen": "true"}}}


@dataclass(frozen=True)
class Attack:
    method: str
    path: str
    body: Any = None

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.body or ''}"[:240]


def get(path: str) -> Attack:
    return Attack("GET", path)


def post(path: str, body: Object) -> Attack:
    return Attack("POST", path, body)


def patch(path: str, body: Object | None = None) -> Attack:
    return Attack("PATCH", path, body or LABELLED)


def delete(path: str) -> Attack:
    return Attack("DELETE", path)


def core(kind: str, name: str = "", namespace: str = "", subresource: str = "") -> str:
    place = f"/namespaces/{namespace}" if namespace else ""
    return "/".join(filter(None, (f"/api/v1{place}", kind, name, subresource)))


def new_node(name: str, binding_uid: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": {keys.CLUSTER_BINDING_UID: binding_uid, **labels}}}


def new_placeholder(name: str, node: str, binding_uid: str, spec: Object, container: Object) -> Object:
    labels = {keys.HOST_PORTS: "true", keys.CLUSTER_BINDING_UID: binding_uid}
    whole = {"name": "none", "image": "host-ports-taken-below", **container}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": node, "automountServiceAccountToken": False, "containers": [whole], **spec},
    }


def new_token(**spec: Any) -> Object:
    return {"spec": {"expirationSeconds": 600, **spec}}


def new_event(namespace: str, component: str) -> Object:
    about = {"kind": "Pod", "namespace": namespace, "name": "other"}
    metadata = {"name": f"stolen-{component}", "namespace": namespace}
    return {"metadata": metadata, "involvedObject": about, "reason": "Stolen", "reportingComponent": component}


def attacks(east_uid: str, west_uid: str, east_node: str, pod_uid: str) -> list[Attack]:
    """Return the requests. `east_node` is a virtual node of east, and the pod runs on it."""
    return [
        *kubeconfig_and_secret_attacks(),
        *token_attacks(pod_uid),
        *binding_attacks(),
        *node_attacks(east_uid, west_uid, east_node),
        *pod_attacks(east_uid, west_uid, east_node),
        *right_attacks(),
        *certificate_attacks(),
    ]


def kubeconfig_and_secret_attacks() -> list[Attack]:
    system = core("secrets", "", "tapestry-system")
    return [
        get(f"{system}/west"),
        get(system),
        get(f"{system}?fieldSelector=metadata.name%3Dwest"),
        get(f"{system}?watch=1&timeoutSeconds=1"),
        patch(f"{system}/west", {"stringData": {"kubeconfig": "mine"}}),
        patch(f"{system}/east", {"metadata": {"annotations": {keys.LEFT_BEHIND: "[]"}}}),
        delete(f"{system}/west"),
        delete(f"{system}/east"),
        post(system, {"metadata": {"name": "stolen"}}),
        get(core("secrets", "unused", "team-a")),
        get(core("secrets", "", "team-a")),
        get(f"{core('secrets', '', 'team-a')}?watch=1&timeoutSeconds=1"),
        get(core("secrets", "secret", "team-b")),
        get(core("secrets")),
        get(core("secrets", "system", "kube-system")),
        patch(core("secrets", "used", "team-a"), {"stringData": {"password": "mine"}}),
        delete(core("secrets", "used", "team-a")),
        post(core("secrets", "", "team-a"), {"metadata": {"name": "stolen"}}),
        get(core("configmaps", "settings", "team-b")),
        get(core("configmaps")),
        get(core("configmaps", "", "kube-system")),
        patch(core("configmaps", "settings", "team-a"), {"data": {"mode": "mine"}}),
        get(core("persistentvolumeclaims", "data", "team-b")),
        get(core("persistentvolumeclaims")),
    ]


def token_attacks(pod_uid: str) -> list[Attack]:
    bound = {"apiVersion": "v1", "kind": "Pod", "name": "work", "uid": pod_uid}
    accounts = "serviceaccounts"
    return [
        post(core(accounts, "robot", "team-a", "token"), new_token()),
        post(
            core(accounts, "robot", "team-a", "token"),
            new_token(boundObjectRef={"apiVersion": "v1", "kind": "Secret", "name": "used"}),
        ),
        post(core(accounts, "admin", "team-a", "token"), new_token(boundObjectRef=bound)),
        post(core(accounts, "admin", "team-a", "token"), new_token()),
        post(core(accounts, "robot", "team-b", "token"), new_token()),
        post(core(accounts, "tapestry-manager", "tapestry-system", "token"), new_token()),
        post(core(accounts, "tapestry-syncer-west", "tapestry-system", "token"), new_token()),
        post(core(accounts, "tapestry-syncer-east", "tapestry-system", "token"), new_token()),
        post(core(accounts, "admin", "kube-system", "token"), new_token()),
        post(core(accounts, "", "tapestry-system"), {"metadata": {"name": "tapestry-syncer-stolen"}}),
    ]


def binding_attacks() -> list[Attack]:
    return [
        get(f"{BINDINGS}/west"),
        get(BINDINGS),
        patch(f"{BINDINGS}/west", {"spec": {"podSecurity": "privileged"}}),
        patch(f"{BINDINGS}/west/status", {"status": {"phase": "Failed"}}),
        delete(f"{BINDINGS}/west"),
        delete(f"{BINDINGS}/east"),
        patch(f"{BINDINGS}/east", {"spec": {"podSecurity": "privileged"}}),
        patch(f"{BINDINGS}/east", {"spec": {"secretRef": {"name": "west", "namespace": "tapestry-system"}}}),
        patch(f"{BINDINGS}/east", {"spec": {"syncBack": {"namespaces": ["team-a"]}}}),
        patch(f"{BINDINGS}/east", {"metadata": {"annotations": {keys.FORCE_UNBIND: "true"}}}),
        patch(f"{BINDINGS}/east", {"metadata": {"finalizers": []}}),
        post(BINDINGS, {"metadata": {"name": "stolen"}, "spec": {"clusterID": "s", "secretRef": {"name": "west"}}}),
        patch(f"{POLICIES}/west", {"spec": {"cluster": "east"}}),
        patch(f"{POLICIES}/west/status", {"status": {"lastGood": {"cluster": "west"}}}),
        patch(f"{POLICIES}/east", {"spec": {"forceReclaim": True}}),
        post(POLICIES, {"metadata": {"name": "stolen"}, "spec": {"cluster": "east"}}),
    ]


def node_attacks(east_uid: str, west_uid: str, east_node: str) -> list[Attack]:
    node_leases, system_leases = f"{LEASES}/kube-node-lease/leases", f"{LEASES}/tapestry-system/leases"
    lease = {"spec": {"holderIdentity": "stolen"}}
    return [
        *(patch(core("nodes", name)) for name in ("vnode-west-n1", "worker")),
        *(patch(core("nodes", name, subresource="status")) for name in ("vnode-west-n1", "worker")),
        *(delete(core("nodes", name)) for name in ("vnode-west-n1", "worker")),
        post(core("nodes"), new_node("vnode-west-n2", west_uid)),
        post(core("nodes"), new_node("vnode-east-n2", "")),
        post(core("nodes"), {"metadata": {"name": "vnode-east-n2"}}),
        post(core("nodes"), new_node("control-plane-2", east_uid)),
        patch(core("nodes", east_node), {"metadata": {"labels": {keys.CLUSTER_BINDING_UID: west_uid}}}),
        patch(core("nodes", east_node), {"metadata": {"labels": {keys.CLUSTER_BINDING_UID: None}}}),
        delete(core("nodes")),
        post(CSI_NODES, {**new_node("vnode-west-n2", east_uid), "spec": {"drivers": []}}),
        post(CSI_NODES, {**new_node("worker-2", east_uid), "spec": {"drivers": []}}),
        delete(f"{CSI_NODES}/vnode-west-n1"),
        post(node_leases, {"metadata": {"name": "vnode-west-n2"}, **lease}),
        Attack("PUT", f"{node_leases}/vnode-west-n1", {"metadata": {"name": "vnode-west-n1"}, **lease}),
        delete(f"{node_leases}/worker"),
        post(system_leases, {"metadata": {"name": "tapestry-syncer-other"}, **lease}),
        post(system_leases, {"metadata": {"name": east_node}, **lease}),
        Attack("PUT", f"{system_leases}/tapestry-manager", {"metadata": {"name": "tapestry-manager"}, **lease}),
        post(f"{LEASES}/kube-system/leases", {"metadata": {"name": "stolen"}, **lease}),
        get(core("nodes", east_node, subresource="proxy")),
    ]


def pod_attacks(east_uid: str, west_uid: str, east_node: str) -> list[Attack]:
    host_ports = core("pods", "", keys.HOST_PORTS_NAMESPACE)
    root = [{"name": "root", "hostPath": {"path": "/"}}]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "settings", "uid": "0"}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction"}
    daemon = {"metadata": {"annotations": {keys.RUNNING_DAEMONSET: "true"}}}
    targets = [("west-pod", "team-a"), ("unbound", "team-a"), ("other", "team-b"), ("system", "kube-system")]
    return [
        *(patch(core("pods", *target)) for target in targets),
        *(patch(core("pods", *target, "status"), {"status": {"phase": "Failed"}}) for target in targets),
        *(delete(core("pods", *target)) for target in targets),
        patch(core("pods", "work", "team-a"), daemon),
        patch(core("pods", "work", "team-a", "status"), daemon),
        patch(core("pods", "work", "team-a"), {"metadata": {"ownerReferences": [owner]}}),
        patch(core("pods", "work", "team-a", "ephemeralcontainers"), {"spec": {"ephemeralContainers": []}}),
        post(
            core("pods", "unbound", "team-a", "binding"),
            {"metadata": {"name": "unbound"}, "target": {"kind": "Node", "name": east_node}},
        ),
        get(core("pods", "work", "team-a", "exec") + "?command=id"),
        post(core("pods", "other", "team-b", "eviction"), {**eviction, "metadata": {"name": "other"}}),
        post(core("pods", "system", "kube-system", "eviction"), {**eviction, "metadata": {"name": "system"}}),
        delete(core("pods", "", "team-a")),
        post(core("pods", "", "team-a"), new_placeholder("stolen", east_node, east_uid, {}, {})),
        post(core("pods", "", "kube-system"), new_placeholder("stolen", east_node, east_uid, {}, {})),
        post(host_ports, new_placeholder("stolen", "worker", east_uid, {}, {})),
        post(host_ports, new_placeholder("stolen", "vnode-west-n1", west_uid, {}, {})),
        post(host_ports, new_placeholder("stolen", east_node, west_uid, {}, {})),
        post(host_ports, new_placeholder("stolen", east_node, east_uid, {"nodeName": ""}, {})),
        post(host_ports, new_placeholder("stolen", east_node, east_uid, {"hostPID": True}, {})),
        post(host_ports, new_placeholder("stolen", east_node, east_uid, {"hostNetwork": True}, {})),
        post(host_ports, new_placeholder("stolen", east_node, east_uid, {"volumes": root}, {})),
        post(host_ports, new_placeholder("stolen", east_node, east_uid, {"automountServiceAccountToken": True}, {})),
        post(host_ports, new_placeholder("stolen", east_node, east_uid, {}, {"image": "mine"})),
        post(host_ports, new_placeholder("stolen", east_node, east_uid, {}, {"command": ["sh"]})),
        post(host_ports, new_placeholder("stolen", east_node, east_uid, {}, {"securityContext": {"privileged": True}})),
    ]


def right_attacks() -> list[Attack]:
    subject = {"kind": "ServiceAccount", "name": "tapestry-syncer-east", "namespace": "tapestry-system"}
    admin = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    bound = {"metadata": {"name": "tapestry-syncer-stolen"}, "roleRef": admin, "subjects": [subject]}
    return [
        post(f"{RBAC}/clusterrolebindings", bound),
        post(f"{RBAC}/namespaces/team-a/rolebindings", bound),
        patch(f"{RBAC}/clusterroles/tapestry-syncer-east:nodes", {"rules": []}),
        patch(f"{RBAC}/namespaces/team-a/roles/tapestry-syncer-east:pods", {"rules": []}),
        get(f"{RBAC}/clusterroles"),
        delete(f"{ADMISSION}/validatingadmissionpolicies/tapestry-syncers"),
        delete(f"{ADMISSION}/validatingadmissionpolicybindings/tapestry-syncers"),
        post(core("events", "", "team-b"), new_event("team-b", "kubelet")),
        post(core("events", "", "team-b"), new_event("team-b", "tapestry-syncer-west")),
        patch(core("events", "theirs", "team-b"), {"message": "mine"}),
        patch(core("namespaces", "team-a")),
        delete(core("namespaces", "team-b")),
        patch("/apis/apps/v1/namespaces/tapestry-system/deployments/tapestry-syncer-east", {"spec": {"replicas": 9}}),
    ]


def certificate_attacks() -> list[Attack]:
    """Return requests about certificates. `theirs` is the request of another account, for a node."""
    approved = {"type": "Approved", "status": "True", "reason": "Stolen", "message": "mine"}
    return [
        get(SIGNING_REQUESTS),
        get(f"{SIGNING_REQUESTS}?watch=1&timeoutSeconds=1"),
        patch(f"{SIGNING_REQUESTS}/theirs"),
        patch(f"{SIGNING_REQUESTS}/theirs/approval", {"status": {"conditions": [approved]}}),
        patch(f"{SIGNING_REQUESTS}/theirs/status", {"status": {"certificate": "bWluZQ=="}}),
        delete(f"{SIGNING_REQUESTS}/theirs"),
    ]


def manager_attacks() -> list[Attack]:
    """Return what a stolen token of the manager must not allow: grants for others, and more than pods use."""

    def subject(name: str = "tapestry-syncer-east", namespace: str = "tapestry-system") -> Object:
        return {"kind": "ServiceAccount", "name": name, "namespace": namespace}

    def binding(name: str, role: str, *subjects: Object, kind: str = "ClusterRole") -> Object:
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
        return {"metadata": {"name": name}, "roleRef": reference, "subjects": list(subjects)}

    def role(name: str, resource: str, *verbs: str, group: str = "", **more: Any) -> Object:
        return {
            "metadata": {"name": name},
            "rules": [{"apiGroups": [group], "resources": [resource], "verbs": list(verbs), **more}],
        }

    name, everyone = "tapestry-syncer-stolen", {"kind": "Group", "name": "system:authenticated"}
    cluster, team = f"{RBAC}/clusterroles", f"{RBAC}/namespaces/team-a"
    everyone["apiGroup"] = "rbac.authorization.k8s.io"
    return [
        post(f"{RBAC}/clusterrolebindings", binding(name, "cluster-admin", subject())),
        post(f"{RBAC}/clusterrolebindings", binding("stolen", "tapestry-syncer", subject())),
        post(f"{RBAC}/clusterrolebindings", binding(name, "tapestry-syncer", subject("tapestry-manager"))),
        post(f"{RBAC}/clusterrolebindings", binding(name, "tapestry-syncer", subject(namespace="team-a"))),
        post(f"{RBAC}/clusterrolebindings", binding(name, "tapestry-syncer", everyone)),
        post(f"{team}/rolebindings", binding(name, "admin", subject())),
        post(f"{RBAC}/namespaces/kube-system/rolebindings", binding(name, "tapestry-syncer", subject())),
        post(f"{RBAC}/namespaces/kube-system/roles", role(name, "secrets", "get", resourceNames=["system"])),
        post(cluster, role(name, "*", "*")),
        post(cluster, role(name, "secrets", "get", resourceNames=["west"])),
        post(cluster, role(name, "nodes", "patch")),
        post(cluster, role(name, "pods", "create", resourceNames=["a"])),
        post(cluster, role(name, "nodes", "*", resourceNames=["worker"])),
        post(cluster, role(name, "persistentvolumes", "delete")),
        post(cluster, {"metadata": {"name": name}, "aggregationRule": {"clusterRoleSelectors": [{}]}, "rules": []}),
        post(cluster, {"metadata": {"name": name}, "rules": [{"nonResourceURLs": ["/*"], "verbs": ["get"]}]}),
        post(f"{team}/roles", role(name, "secrets", "get")),
        post(f"{team}/roles", role(name, "serviceaccounts/token", "create")),
        post(f"{team}/roles", role(name, "pods", "create")),
        post(f"{team}/roles", role(name, "pods/exec", "create")),
        post(f"{team}/roles", role("stolen", "configmaps", "get")),
        patch(f"{cluster}/cluster-admin"),
        patch(f"{cluster}/tapestry-manager", {"rules": []}),
        patch(f"{cluster}/tapestry-syncer", {"rules": []}),
        patch(f"{RBAC}/clusterrolebindings/tapestry-manager"),
        delete(f"{RBAC}/clusterrolebindings/cluster-admin"),
        patch(f"{ADMISSION}/validatingadmissionpolicies/tapestry-manager", {"spec": {"validations": []}}),
        delete(f"{ADMISSION}/validatingadmissionpolicybindings/tapestry-manager"),
        patch(f"{SIGNING_REQUESTS}/theirs/status", {"status": {"certificate": "bWluZQ=="}}),
        get(core("secrets", "secret", "team-b")),
        get(core("secrets")),
        post(core("serviceaccounts", "robot", "team-a", "token"), new_token()),
        post(core("serviceaccounts", "tapestry-syncer-east", "tapestry-system", "token"), new_token()),
    ]
