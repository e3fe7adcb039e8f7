"""Requests to a plane that must be refused, although they come from its cluster-admin.

In a plane with a tenant only the syncer writes what the host cluster decides: nodes, their leases, the nodes of pods,
addresses of Services, and the condition `Mapped`.
"""

from dataclasses import dataclass, field
from typing import Any

from .escaping_tenant import CANARY, EscapingTenant

NODES, LEASES = "/api/v1/nodes", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
PODS = "/api/v1/namespaces/default/pods"
SERVICES = "/api/v1/namespaces/default/services"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
FORBIDDEN, INVALID, MISSING, UNREACHABLE = (403,), (400, 403, 422), (403, 404), (400, 403, 404, 502, 503)
SYNCER = "system:syncer"


@dataclass(frozen=True)
class Refused:
    """A request that must be refused with one of the statuses, and must not show anything of others."""

    name: str
    statuses: tuple[int, ...]
    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    target: str = "plane"

    async def act(self, tenant: EscapingTenant) -> None:
        status, text = await tenant.request(self.method, self.path, self.body, self.headers, self.target)
        assert status in self.statuses, f"{status}, expected {self.statuses}: {text[:300]}"
        assert CANARY not in text


def node(name: str, **more: Any) -> Any:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, **more}


READY = {"type": "Ready", "status": "True"}
ADDRESSES = {"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}], "conditions": [READY]}}
TAINT = {"key": "a", "effect": "NoExecute"}
MAPPED = {"status": {"conditions": [{"type": "tapestry.io/Mapped", "status": "False"}]}}
BINDING = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "own"}, "target": {"kind": "Node"}}
LEASE = {"metadata": {"name": "<node>", "namespace": "kube-node-lease"}, "spec": {"holderIdentity": "own"}}
IMPERSONATED = {
    "the syncer": {"Impersonate-User": SYNCER, "Impersonate-Group": "system:masters"},
    "a node": {"Impersonate-User": "system:node:<node>", "Impersonate-Group": "system:nodes"},
    "the API server": {"Impersonate-User": "system:apiserver", "Impersonate-Group": "system:masters"},
    "the node controller": {"Impersonate-User": "system:serviceaccount:kube-system:node-controller"},
    "the scheduler": {"Impersonate-User": "system:kube-scheduler"},
    "an account of the host cluster": {"Impersonate-User": "system:serviceaccount:<own-namespace>:tapestry-tenant"},
}
MARKERS = {
    "X-Tapestry-Origin": "syncer",
    "X-Tapestry-Internal": "true",
    "X-Remote-User": SYNCER,
    "X-Remote-Group": "system:masters",
    "Call-Origin": "SYNCER",
    "X-Tapestry-Call-Origin": "syncer",
}


def writes_of_node() -> list[Refused]:
    """Return writes of what belongs to nodes."""
    return [
        Refused("create a node", FORBIDDEN, "POST", NODES, node("evil")),
        Refused("create the closed node", FORBIDDEN, "POST", NODES, node("<closed>")),
        Refused("replace a node", FORBIDDEN, "PUT", f"{NODES}/<node>", node("<node>")),
        Refused("label a node", FORBIDDEN, "PATCH", f"{NODES}/<node>", {"metadata": {"labels": {"a": "b"}}}),
        Refused("taint a node", FORBIDDEN, "PATCH", f"{NODES}/<node>", {"spec": {"taints": [TAINT]}}),
        Refused("provider of a node", FORBIDDEN, "PATCH", f"{NODES}/<node>", {"spec": {"providerID": "x://y"}}),
        Refused("delete a node", FORBIDDEN, "DELETE", f"{NODES}/<node>"),
        Refused("delete all nodes", FORBIDDEN, "DELETE", NODES),
        Refused("address of a node", FORBIDDEN, "PATCH", f"{NODES}/<node>/status", ADDRESSES),
        Refused("port of a node's kubelet", FORBIDDEN, "PATCH", f"{NODES}/<node>/status",
                {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 22}}}}),
        Refused("capacity of a node", FORBIDDEN, "PATCH", f"{NODES}/<node>/status",
                {"status": {"capacity": {"cpu": "1000"}, "allocatable": {"cpu": "1000"}}}),
        Refused("create a node lease", FORBIDDEN, "POST", LEASES, LEASE),
        Refused("create a CSI node", FORBIDDEN, "POST", CSI_NODES,
                {"metadata": {"name": "<node>"}, "spec": {"drivers": [{"name": "a.example.com", "nodeID": "b"}]}}),
    ]  # fmt: skip


def writes_of_placement() -> list[Refused]:
    """Return writes of what the host cluster decides about pods and Services."""
    target = {"kind": "Node", "name": "<node>"}
    closed = {"kind": "Node", "name": "<closed>"}
    return [
        Refused("bind a pod", FORBIDDEN, "POST", f"{PODS}/own/binding", {**BINDING, "target": target}),
        Refused("bind a pod to the closed node", FORBIDDEN, "POST", f"{PODS}/own/binding",
                {**BINDING, "target": closed}),
        Refused("bind a pod through bindings", (403, 404, 405), "POST", "/api/v1/namespaces/default/bindings",
                {**BINDING, "target": closed}),
        Refused("move a running pod", INVALID, "PATCH", f"{PODS}/own", {"spec": {"nodeName": "<closed>"}}),
        Refused("write the condition Mapped", FORBIDDEN, "PATCH", f"{PODS}/own/status", MAPPED),
        Refused("choose the address of a victim's Service", FORBIDDEN, "POST", SERVICES,
                {"metadata": {"name": "a"}, "spec": {"clusterIP": "<victim-service-ip>", "ports": [{"port": 80}]}}),
        Refused("move a Service to the address of a victim", INVALID, "PATCH", f"{SERVICES}/own",
                {"spec": {"clusterIP": "<victim-service-ip>", "clusterIPs": ["<victim-service-ip>"]}}),
    ]  # fmt: skip


def other_identities() -> list[Refused]:
    """Return writes of nodes under the names and markers of others."""
    found = []
    for name, headers in IMPERSONATED.items():
        found += [
            Refused(f"label a node as {name}", FORBIDDEN, "PATCH", f"{NODES}/<node>",
                    {"metadata": {"labels": {"a": "b"}}}, headers),
            Refused(f"create a node as {name}", FORBIDDEN, "POST", NODES, node("evil"), headers),
            Refused(f"write Mapped as {name}", FORBIDDEN, "PATCH", f"{PODS}/own/status", MAPPED, headers),
        ]  # fmt: skip
    found += [
        Refused(f"create a node with the header {header}", FORBIDDEN, "POST", NODES, node("evil"), {header: value})
        for header, value in MARKERS.items()
    ]
    return found


def reads_of_others() -> list[Refused]:
    """Return reads of what belongs to others through the plane."""
    api = "/api/v1/namespaces"
    return [
        Refused("read a pod by the name of the victim's twin", MISSING, "GET", f"{PODS}/<victim-twin>"),
        Refused("read logs by the name of the victim's twin", MISSING, "GET", f"{PODS}/<victim-twin>/log"),
        Refused("read logs by the name of the own twin", MISSING, "GET", f"{PODS}/<own-twin>/log"),
        Refused("read a namespace of the host cluster", MISSING, "GET", f"{api}/<victim-namespace>/pods/<victim-twin>"),
        Refused("read secrets of the host cluster", MISSING, "GET", f"{api}/foreign/secrets/foreign"),
        Refused("call the kubelet of a node by a path outside", UNREACHABLE, "GET",
                f"{NODES}/<node>/proxy/containerLogs/<victim-namespace>/<victim-twin>/c"),
        Refused("read the pods of a node's kubelet with dots", UNREACHABLE, "GET",
                f"{NODES}/<node>/proxy/pods/../../../api/v1/secrets"),
        Refused("run in the victim's container through a node", (*UNREACHABLE, 405), "POST",
                f"{NODES}/<node>/proxy/run/<victim-namespace>/<victim-twin>/c?cmd=id"),
        Refused("call the closed node", UNREACHABLE, "GET", f"{NODES}/<closed>/proxy/pods"),
        Refused("call a port of a node", UNREACHABLE, "GET", f"{NODES}/<node>:22/proxy/"),
        Refused("call a node by address", UNREACHABLE, "GET", f"{NODES}/127.0.0.1/proxy/"),
        Refused("call a pod by the victim's address", UNREACHABLE, "GET", f"{PODS}/<victim-ip>:80/proxy/"),
        Refused("call the victim's Service by its twin", UNREACHABLE, "GET", f"{SERVICES}/<victim-service>:80/proxy/"),
        Refused("call a path of the host's API through a Service", UNREACHABLE, "GET",
                f"{SERVICES}/kubernetes:443/proxy/../../../../foreign/secrets/foreign"),
        Refused("metrics of the closed node", MISSING, "GET", "/apis/metrics.k8s.io/v1beta1/nodes/<closed>"),
        Refused("metrics of the victim's pod", MISSING, "GET",
                "/apis/metrics.k8s.io/v1beta1/namespaces/<victim-namespace>/pods/<victim-twin>"),
    ]  # fmt: skip


REFUSED = [*writes_of_node(), *writes_of_placement(), *other_identities(), *reads_of_others()]
