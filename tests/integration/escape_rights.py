"""Requests to a host cluster with the stolen token of a tenant's account, or with that of the process of planes.

Roles and admission policies of the host cluster must refuse them, even though nothing in the process would send them.
"""

from typing import Any

from tests.unit.tenants.running_tenants import pod_named

from .escape_requests import Refused
from .escaping_tenant import ingress_path

REFUSED = (403, 422)
TENANT, PROCESS = "tenant account", "process account"
CORE, OWN, VICTIM = "/api/v1/namespaces", "/api/v1/namespaces/<own-namespace>", "/api/v1/namespaces/<victim-namespace>"
FOREIGN, SYSTEM = "/api/v1/namespaces/foreign", "/api/v1/namespaces/kube-system"
NGINX = "nginx.ingress.kubernetes.io"
RBAC, NETWORKING = "/apis/rbac.authorization.k8s.io/v1", "/apis/networking.k8s.io/v1"
LABELS = {
    "tapestry.io/managed-by": "tapestry",
    "tapestry.io/virtual-cluster": "<own-cluster>",
    "tapestry.io/cluster-binding-uid": "<own-tenant>",
}
VICTIMS = {
    **LABELS,
    "tapestry.io/virtual-cluster": "<victim-cluster>",
    "tapestry.io/cluster-binding-uid": "<victim-tenant>",
}
SETUP = {**LABELS, "tapestry.io/tenant-setup": "true"}


def pod(labels: dict[str, str] = LABELS, **spec: Any) -> Any:
    body = pod_named("evil")
    body["metadata"] = {"name": "evil", "labels": labels}
    body["spec"] |= {"automountServiceAccountToken": False, "priorityClassName": "tapestry-leased", **spec}
    return body


def labelled(labels: dict[str, str] = LABELS, name: str = "evil", **content: Any) -> Any:
    return {"metadata": {"name": name, "labels": labels}, **content}


def account(name: str) -> Any:
    return labelled(SETUP, name, automountServiceAccountToken=False)


def of_tenant(name: str, method: str, path: str, body: Any = None) -> Refused:
    return Refused(f"account of the tenant: {name}", REFUSED, method, path, body, target=TENANT)


def of_process(name: str, method: str, path: str, body: Any = None) -> Refused:
    return Refused(f"account of the process: {name}", REFUSED, method, path, body, target=PROCESS)


CLAIMS = f"{OWN}/persistentvolumeclaims"
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
SOURCE = {"kind": "PersistentVolumeClaim", "name": "<own-claim>"}


def claim(annotations: dict[str, str] | None = None, **spec: Any) -> Any:
    """Return a claim that would be allowed without the fields that are given here."""
    metadata = {"name": "evil", "labels": LABELS, "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {**CLAIM, "storageClassName": "standard", **spec}}


ADMIN = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
EVERYBODY = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}]
HOST_PATH = [{"name": "v", "hostPath": {"path": "/"}}]
TOKEN_VOLUME = [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]
PRIVILEGED = {"securityContext": {"privileged": True}, "name": "c", "image": "busybox:1"}

INGRESSES, NETWORK_POLICIES = (
    f"{NETWORKING}/namespaces/<own-namespace>/{each}" for each in ("ingresses", "networkpolicies")
)
BUDGETS = "/apis/policy/v1/namespaces/<own-namespace>/poddisruptionbudgets"
SELECTOR = {"matchLabels": LABELS}


def ingress(
    host: str | None = "a.<own-id>.apps.example.com", *, annotations: Any = None, path: Any = None, **spec: Any
) -> Any:
    rule = {"http": {"paths": [{**ingress_path("a"), **(path or {})}]}, **({"host": host} if host is not None else {})}
    body = labelled(spec={"ingressClassName": "public", "rules": [rule], **spec})
    body["metadata"]["annotations"] = annotations or {}
    return body


def api_ingress(
    host: str | None = "a.api.example.com",
    service: str = "kubernetes",
    annotations: Any = None,
    labels: dict[str, str] = SETUP,
    **spec: Any,
) -> Any:
    """Return an Ingress to the API of a plane, which the account of the process may write without other fields."""
    path = {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": service, "port": {"number": 443}}}}
    rule = {"http": {"paths": [path]}, **({"host": host} if host is not None else {})}
    body = labelled(labels, spec={"ingressClassName": "public", "rules": [rule], **spec})
    body["metadata"]["annotations"] = annotations or {f"{NGINX}/ssl-passthrough": "true"}
    return body


def network_policy(**spec: Any) -> Any:
    return labelled(spec={"podSelector": SELECTOR, "policyTypes": ["Ingress", "Egress"], **spec})


def egress(*peers: Any, **rule: Any) -> Any:
    return network_policy(egress=[{"to": list(peers), **rule}])


def block(cidr: str, *excepted: str) -> Any:
    return {"ipBlock": {"cidr": cidr, **({"except": list(excepted)} if excepted else {})}}


def budget(**spec: Any) -> Any:
    return labelled(spec={"selector": SELECTOR, "minAvailable": 1, **spec})


PLAIN_OBJECTS = [
    (f"{OWN}/pods", pod()),
    (f"{OWN}/pods", pod(priorityClassName="tenants-high")),
    (f"{OWN}/pods", pod(serviceAccountName="builder")),
    (INGRESSES, ingress()),
    (INGRESSES, ingress(tls=[{"hosts": ["*.<own-id>.apps.example.com"], "secretName": "a"}])),
    (NETWORK_POLICIES, egress({"podSelector": SELECTOR}, block("8.8.0.0/16"), block("2a00::/16"))),
    (NETWORK_POLICIES, network_policy(ingress=[{"from": [{"podSelector": SELECTOR}]}])),
    (BUDGETS, budget()),
]
"""Objects that the account of a tenant may write."""
PROCESS_OBJECTS = [(INGRESSES, api_ingress()), (INGRESSES, api_ingress(tls=[{"hosts": ["a.api.example.com"]}]))]
"""Objects that the account of the process may write."""

OTHER_KINDS = [
    of_tenant("an Ingress of the host of the owner", "POST", INGRESSES, ingress("shop.example.com")),
    of_tenant("an Ingress of the host of the victim", "POST", INGRESSES,
              ingress("shop.<victim-id>.apps.example.com")),
    of_tenant("an Ingress of all hosts", "POST", INGRESSES, ingress(None)),
    of_tenant("an Ingress of a wildcard", "POST", INGRESSES, ingress("*.apps.example.com")),
    of_tenant("an Ingress with a default backend", "POST", INGRESSES,
              ingress(defaultBackend={"service": {"name": "a", "port": {"number": 1}}})),
    of_tenant("an Ingress with only a default backend", "POST", INGRESSES,
              ingress(rules=None, defaultBackend={"service": {"name": "a", "port": {"number": 1}}})),
    of_tenant("an Ingress of another class", "POST", INGRESSES, ingress(ingressClassName="internal")),
    of_tenant("an Ingress without a class", "POST", INGRESSES, ingress(ingressClassName=None)),
    of_tenant("an Ingress with a certificate for others", "POST", INGRESSES,
              ingress(tls=[{"hosts": ["shop.example.com"]}])),
    of_tenant("an Ingress with a certificate for all", "POST", INGRESSES, ingress(tls=[{"secretName": "a"}])),
    of_tenant("an Ingress with a snippet", "POST", INGRESSES,
              ingress(annotations={"nginx.ingress.kubernetes.io/server-snippet": "return 200;"})),
    of_tenant("an Ingress with configuration in a path", "POST", INGRESSES,
              ingress(path={"path": "/a {} #", "pathType": "ImplementationSpecific"})),
    of_tenant("an Ingress with many rules", "POST", INGRESSES,
              ingress(rules=[{"host": f"a{number}.<own-id>.apps.example.com"} for number in range(101)])),
    of_tenant("a network policy with many peers", "POST", NETWORK_POLICIES,
              egress(*({"podSelector": SELECTOR} for _ in range(101)))),
    of_tenant("an Ingress of a resource", "POST", INGRESSES,
              ingress(path={"backend": {"resource": {"kind": "A", "name": "b", "apiGroup": "c.example.com"}}})),
    of_tenant("a network policy for the victim", "POST", NETWORK_POLICIES,
              network_policy(podSelector={"matchLabels": VICTIMS})),
    of_tenant("a network policy for all pods", "POST", NETWORK_POLICIES, network_policy(podSelector={})),
    of_tenant("a network policy to everywhere", "POST", NETWORK_POLICIES, network_policy(egress=[{}])),
    of_tenant("a network policy from everywhere", "POST", NETWORK_POLICIES, network_policy(ingress=[{}])),
    of_tenant("a network policy to all addresses", "POST", NETWORK_POLICIES, egress(block("0.0.0.0/0"))),
    of_tenant("a network policy to metadata", "POST", NETWORK_POLICIES, egress(block("169.254.169.254/32"))),
    of_tenant("a network policy to half of metadata", "POST", NETWORK_POLICIES,
              egress(block("169.254.0.0/15", "169.254.0.0/17"))),
    of_tenant("a network policy to metadata of IPv6", "POST", NETWORK_POLICIES, egress(block("fd00:ec2::/32"))),
    of_tenant("a network policy to private networks", "POST", NETWORK_POLICIES, egress(block("10.0.0.0/8"))),
    of_tenant("a network policy to a namespace", "POST", NETWORK_POLICIES,
              egress({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "<victim-namespace>"}}})),
    of_tenant("a network policy to pods of all namespaces", "POST", NETWORK_POLICIES,
              egress({"namespaceSelector": {}, "podSelector": SELECTOR})),
    of_tenant("a network policy to a port of an address", "POST", NETWORK_POLICIES,
              egress(block("10.0.0.1/32"), ports=[{"port": 443, "protocol": "TCP"}])),
    of_tenant("a disruption budget of all pods", "POST", BUDGETS, budget(selector={})),
    of_tenant("a disruption budget of the victim", "POST", BUDGETS, budget(selector={"matchLabels": VICTIMS})),
    of_tenant("a disruption budget of a share", "POST", BUDGETS, budget(minAvailable="100%")),
    of_tenant("a disruption budget of unavailable pods", "POST", BUDGETS,
              budget(minAvailable=None, maxUnavailable=0)),
    of_tenant("a pod with the priority of the owner", "POST", f"{OWN}/pods", pod(priorityClassName="of-owner")),
    of_tenant("a pod with the default priority", "POST", f"{OWN}/pods", pod(priorityClassName=None)),
    of_tenant("a priority", "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", labelled(value=1)),
]  # fmt: skip

TENANT_ACCOUNT = [
    of_tenant("read a secret of the victim", "GET", f"{VICTIM}/secrets"),
    of_tenant("read a secret of the owner", "GET", f"{FOREIGN}/secrets/foreign"),
    of_tenant("read all secrets", "GET", "/api/v1/secrets"),
    of_tenant("read the credentials of the process", "GET", f"{CORE}/tapestry-tenants/secrets"),
    of_tenant("list namespaces", "GET", CORE),
    of_tenant("list nodes", "GET", "/api/v1/nodes"),
    of_tenant("call a kubelet", "GET", "/api/v1/nodes/<node>/proxy/pods"),
    of_tenant("delete a pod of the victim", "DELETE", f"{VICTIM}/pods/<victim-twin>"),
    of_tenant("run in a pod of the victim", "POST", f"{VICTIM}/pods/<victim-twin>/exec?command=id&stdout=true"),
    of_tenant("create a pod at the victim", "POST", f"{VICTIM}/pods", pod(VICTIMS)),
    of_tenant("create a pod in kube-system", "POST", f"{SYSTEM}/pods", pod()),
    of_tenant("a pod without labels", "POST", f"{OWN}/pods", pod({})),
    of_tenant("a pod with the labels of the victim", "POST", f"{OWN}/pods", pod(VICTIMS)),
    of_tenant("a pod with the label of the setup", "POST", f"{OWN}/pods", pod(SETUP)),
    of_tenant("a pod with a path of the node", "POST", f"{OWN}/pods", pod(volumes=HOST_PATH)),
    of_tenant("a pod with a token", "POST", f"{OWN}/pods", pod(volumes=TOKEN_VOLUME)),
    of_tenant("a pod with an account", "POST", f"{OWN}/pods", pod(serviceAccountName="tapestry-tenant")),
    of_tenant("a pod with an account of the victim", "POST", f"{OWN}/pods", pod(serviceAccountName="victims")),
    of_tenant("a pod with the token of its account", "POST", f"{OWN}/pods",
              pod(serviceAccountName="builder", automountServiceAccountToken=True)),
    of_tenant("the token of the pods' account", "POST", f"{OWN}/serviceaccounts/builder/token", {"spec": {}}),
    of_tenant("rights for the pods' account", "PATCH", f"{OWN}/serviceaccounts/builder",
              {"metadata": {"annotations": {"eks.amazonaws.com/role-arn": "arn"}}}),
    of_tenant("a pod with a mounted account", "POST", f"{OWN}/pods", pod(automountServiceAccountToken=True)),
    of_tenant("a privileged pod", "POST", f"{OWN}/pods", pod(containers=[PRIVILEGED])),
    of_tenant("a pod in the network of the node", "POST", f"{OWN}/pods", pod(hostNetwork=True)),
    of_tenant("a pod of the system", "POST", f"{OWN}/pods", pod(priorityClassName="system-node-critical")),
    of_tenant("take a pod over for the victim", "PATCH", f"{OWN}/pods/<own-twin>", {"metadata": {"labels": VICTIMS}}),
    of_tenant("a token in a secret", "POST", f"{OWN}/secrets", labelled(type="kubernetes.io/service-account-token")),
    of_tenant("a token of its account", "POST", f"{OWN}/serviceaccounts/tapestry-tenant/token", {"spec": {}}),
    of_tenant("a token of the process", "POST",
              f"{CORE}/tapestry-tenants/serviceaccounts/tapestry-host/token", {"spec": {}}),
    of_tenant("an account", "POST", f"{OWN}/serviceaccounts", labelled()),
    of_tenant("bind its account to cluster-admin", "POST", f"{RBAC}/namespaces/<own-namespace>/rolebindings",
              labelled(roleRef=ADMIN, subjects=EVERYBODY)),
    of_tenant("remove its quota", "DELETE", f"{OWN}/resourcequotas/tapestry-tenant"),
    of_tenant("remove its network policies", "DELETE",
              f"{NETWORKING}/namespaces/<own-namespace>/networkpolicies/<base-policy>"),
    of_tenant("open its network policies", "PATCH",
              f"{NETWORKING}/namespaces/<own-namespace>/networkpolicies/<base-policy>", {"spec": {"egress": [{}]}}),
    of_tenant("relax its namespace", "PATCH", OWN,
              {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}),
    of_tenant("a Service with external addresses", "POST", f"{OWN}/services",
              labelled(spec={"ports": [{"port": 80}], "externalIPs": ["10.0.0.1"]})),
    of_tenant("a Service with a node port", "POST", f"{OWN}/services",
              labelled(spec={"ports": [{"port": 80}], "type": "NodePort"})),
    of_tenant("a Service with an external name", "POST", f"{OWN}/services",
              labelled(spec={"type": "ExternalName", "externalName": "a.example.com"})),
    of_tenant("an Ingress at the victim", "POST", f"{NETWORKING}/namespaces/<victim-namespace>/ingresses",
              labelled(VICTIMS, spec={"rules": [{"http": {"paths": [ingress_path("a")]}}]})),
    of_tenant("a volume", "POST", "/api/v1/persistentvolumes", labelled(spec={})),
    of_tenant("a claim at the victim", "POST", f"{VICTIM}/persistentvolumeclaims", labelled(VICTIMS, spec=CLAIM)),
    of_tenant("a claim of a foreign volume", "POST", CLAIMS, claim(volumeName="foreign", storageClassName="")),
    of_tenant("a claim of a volume of the victim", "POST", CLAIMS, claim(volumeName="<victim-volume>")),
    of_tenant("a claim of a class that is not offered", "POST", CLAIMS, claim(storageClassName="internal")),
    of_tenant("a claim without class", "POST", CLAIMS, claim(storageClassName="")),
    of_tenant("a claim of a class in an annotation", "POST", CLAIMS,
              claim(annotations={"volume.beta.kubernetes.io/storage-class": "internal"})),
    of_tenant("a copy of a claim", "POST", CLAIMS, claim(dataSource=SOURCE)),
    of_tenant("a copy of a claim of the owner", "POST", CLAIMS,
              claim(dataSourceRef={**SOURCE, "namespace": "foreign"})),
    of_tenant("a claim that selects volumes", "POST", CLAIMS, claim(selector={})),
    of_tenant("a claim with attributes", "POST", CLAIMS, claim(volumeAttributesClassName="foreign")),
    of_tenant("a claim with parameters of a provisioner", "POST", CLAIMS,
              claim(annotations={"nfs.io/storage-path": "../foreign"})),
    of_tenant("parameters of a provisioner", "PATCH", f"{CLAIMS}/<own-claim>",
              {"metadata": {"annotations": {"nfs.io/storage-path": "../foreign"}}}),
    of_tenant("move a claim to another volume", "PATCH", f"{CLAIMS}/<own-claim>", {"spec": {"volumeName": "foreign"}}),
    of_tenant("stop the policies of the owner", "DELETE",
              "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/tapestry-tenants"),
    of_tenant("lift the kill switch", "PATCH", f"{CORE}/tapestry-tenants",
              {"metadata": {"annotations": {"tapestry.io/reclaim": "later"}}}),
]  # fmt: skip

NAMESPACE = {"metadata": {"name": "evil", "labels": LABELS}}
PRIVILEGED_NAMESPACE = {
    "metadata": {
        "name": "tapestry-tenant-evil",
        "labels": {**LABELS, "pod-security.kubernetes.io/enforce": "privileged"},
    }
}
PROCESS_ACCOUNT = [
    of_process("read secrets", "GET", "/api/v1/secrets"),
    of_process("read secrets of the owner", "GET", f"{FOREIGN}/secrets/foreign"),
    of_process("read secrets of a tenant", "GET", f"{OWN}/secrets"),
    of_process("create a pod at the owner", "POST", f"{FOREIGN}/pods", pod()),
    of_process("create a pod at a tenant", "POST", f"{OWN}/pods", pod()),
    of_process("delete a pod of the owner", "DELETE", f"{FOREIGN}/pods/foreign"),
    of_process("a namespace with another name", "POST", CORE, NAMESPACE),
    of_process("delete a namespace of the owner", "DELETE", FOREIGN),
    of_process("delete kube-system", "DELETE", SYSTEM),
    of_process("label a namespace of the owner", "PATCH", FOREIGN, {"metadata": {"labels": LABELS}}),
    of_process("a privileged namespace", "POST", CORE, PRIVILEGED_NAMESPACE),
    of_process("change a node", "PATCH", "/api/v1/nodes/<node>", {"spec": {"unschedulable": True}}),
    of_process("bind cluster-admin", "POST", f"{RBAC}/namespaces/<own-namespace>/rolebindings",
               labelled(SETUP, roleRef=ADMIN, subjects=EVERYBODY)),
    of_process("bind everybody", "POST", f"{RBAC}/namespaces/<own-namespace>/rolebindings",
               labelled(SETUP, roleRef={**ADMIN, "name": "tapestry-tenant"}, subjects=EVERYBODY)),
    of_process("bind for the cluster", "POST", f"{RBAC}/clusterrolebindings",
               labelled(SETUP, roleRef=ADMIN, subjects=EVERYBODY)),
    of_process("an account at the owner", "POST", f"{FOREIGN}/serviceaccounts", labelled(SETUP, "tapestry-tenant")),
    of_process("an account with another name", "POST", f"{OWN}/serviceaccounts", account("other")),
    of_process("an account with a cloud identity", "PATCH", f"{OWN}/serviceaccounts/builder",
               {"metadata": {"annotations": {"eks.amazonaws.com/role-arn": "arn"}}}),
    of_process("an account whose token is mounted", "PATCH", f"{OWN}/serviceaccounts/builder",
               {"automountServiceAccountToken": True}),
    of_process("a token of the pods' account", "POST", f"{OWN}/serviceaccounts/builder/token", {"spec": {}}),
    of_process("a token of another account", "POST", f"{SYSTEM}/serviceaccounts/default/token", {"spec": {}}),
    of_process("a Service at the owner", "POST", f"{FOREIGN}/services",
               labelled(SETUP, spec={"ports": [{"port": 80}]})),
    of_process("a Service with a selector", "POST", f"{OWN}/services",
               labelled(SETUP, spec={"ports": [{"port": 80}], "selector": {"app": "shop"}})),
    of_process("a Service with external addresses", "POST", f"{OWN}/services",
               labelled(SETUP, spec={"ports": [{"port": 80}], "externalIPs": ["10.0.0.1"]})),
    *(
        of_process(name, "POST", INGRESSES, api_ingress(**fields))
        for name, fields in {
            "an Ingress to another Service": {"service": "shop"},
            "an Ingress with a snippet": {"annotations": {f"{NGINX}/server-snippet": "return 200;"}},
            "an Ingress with a setting in a value": {"annotations": {f"{NGINX}/backend-protocol": "HTTPS; x"}},
            "an Ingress for all hosts": {"host": None},
            "an Ingress with a default backend": {"defaultBackend": ingress_path("shop")["backend"]},
            "an Ingress with certificates for other hosts": {"tls": [{"hosts": ["victim.example.com"]}]},
            "an Ingress of the attacker": {"labels": LABELS},
        }.items()
    ),
    of_process("an Ingress at the owner", "POST", f"{NETWORKING}/namespaces/foreign/ingresses", api_ingress()),
    of_process("an object of the victim at the attacker", "POST", f"{OWN}/services",
               labelled({**VICTIMS, "tapestry.io/tenant-setup": "true"}, spec={"ports": [{"port": 80}]})),
    of_process("remove the policies", "DELETE",
               "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/tapestry-host"),
]  # fmt: skip

PLANE_TOKEN = [
    Refused(f"token of the plane at {name}", (401,), "GET", path, target=target)
    for name, path, target in (
        ("the host cluster", f"{OWN}/pods", "host cluster"),
        ("the plane of the victim", "/api/v1/namespaces/default/secrets/shop", "victim"),
        ("the management API", "/apis/tapestry.io/v1alpha1/hostclusters", "management"),
    )
]

STOLEN = [*PLANE_TOKEN, *TENANT_ACCOUNT, *OTHER_KINDS, *PROCESS_ACCOUNT]
