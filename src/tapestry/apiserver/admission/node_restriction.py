"""NodeRestriction admission: limits the writes of a kubelet to its own node and pods.

The Node authorizer (`access/node_authorizer`) decides which resources a node may write. This plugin limits a node to
its own Node, Lease and CSINode, to the status, the eviction and the deletion of its own pods, to mirror pods, and to
tokens for its pods. Other users are not affected.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.certificate_requests import SIGNING_REQUESTS, common_name, parse_request
from tapestry.apiserver.core.references import (
    CLAIMS,
    CSI_NODES,
    LEASE_NAMESPACE,
    LEASES,
    NODE_USER_PREFIX,
    NODES,
    PODS,
    RESOURCE_SLICES,
    VOLUMES,
    claim_name,
    is_mirror,
    node_name_of_user,
    projected_sources,
    referenced_api_objects,
)
from tapestry.apiserver.core.request_bodies import decoded_body
from tapestry.apiserver.core.requests import (
    Attributes,
    Authorize,
    Call,
    Target,
    WriteRequest,
    admission_forbidden,
    unserved_resource_info,
)
from tapestry.apiserver.core.responses import ApiResponse, ResourceHandler
from tapestry.apiserver.core.store import Store
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import Object, labels_of, uid_of, value_at
from tapestry.kube.pods import MIRROR_POD_ANNOTATION
from tapestry.kube.resources import Resource

RESTRICTED_RESOURCES = (PODS, NODES, CLAIMS, LEASES, CSI_NODES, RESOURCE_SLICES, SIGNING_REQUESTS)
CSI_DRIVERS = "csidrivers.storage.k8s.io"
RESTRICTION_NAMESPACE = "node-restriction.kubernetes.io"
"""Label namespace that nodes may never set on themselves."""
KUBELET_LABELS = frozenset(
    {
        *("kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch"),
        *("beta.kubernetes.io/os", "beta.kubernetes.io/arch", "beta.kubernetes.io/instance-type"),
        *("topology.kubernetes.io/zone", "topology.kubernetes.io/region", "node.kubernetes.io/instance-type"),
        *("failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"),
    }
)
KUBELET_NAMESPACES = ("kubelet.kubernetes.io", "node.kubernetes.io")
KUBERNETES_NAMESPACES = ("kubernetes.io", "k8s.io")
CLAIM_STATUS_FIELDS = ("capacity", "conditions", "allocatedResources", "allocatedResourceStatuses")
"""Status fields of a claim that a node may change."""
MIGRATED_DRIVERS = {
    "awsElasticBlockStore": "ebs.csi.aws.com",
    "azureDisk": "disk.csi.azure.com",
    "azureFile": "file.csi.azure.com",
    "cinder": "cinder.csi.openstack.org",
    "gcePersistentDisk": "pd.csi.storage.gke.io",
    "portworxVolume": "pxd.portworx.com",
    "vsphereVolume": "csi.vsphere.vmware.com",
}
"""CSI drivers that replace in-tree volume plugins."""
NODE_SIGNERS = ("kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet")
SINGULAR_POD, SINGULAR_NODE = Resource("", "v1", "Pod", "pod"), Resource("", "v1", "Node", "node")
"""Resources with the names that this plugin's errors use."""
OPERATIONS = {"create": "CREATE", "update": "UPDATE", "patch": "UPDATE", "delete": "DELETE"}


@dataclass(frozen=True)
class NodeRestriction:
    """Reject writes of nodes to objects of others: an admission step, and a wrapper for posts to subresources."""

    store: Store
    authorize: Authorize

    async def __call__(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        self.check(request, old, new)
        return new

    async def validate_delete(self, request: WriteRequest, old: Object) -> None:
        if request.target.info.storage in RESTRICTED_RESOURCES:
            self.check(request, old, None)

    def check(self, request: WriteRequest, old: Object | None, new: Object | None) -> None:
        node = node_name_of_user(request.user)
        if node is not None and (denial := self.write_denial(node, request, old, new)):
            raise admission_forbidden(request, denial)

    def restricted_handler(self, handler: ResourceHandler) -> ResourceHandler:
        """Wrap a handler of posts to a subresource with the restrictions for nodes."""

        async def check_and_handle(call: Call, target: Target) -> ApiResponse:
            node = node_name_of_user(call.user)
            if node is not None:
                body = decoded_body(call) or {}
                if denial := self.subresource_denial(node, call, target, body):
                    raise forbidden_target(target, denial)
            return await handler(call, target)

        return check_and_handle

    # -- objects

    def write_denial(self, node: str, request: WriteRequest, old: Object | None, new: Object | None) -> str:
        """The reason why a node may not do this write; empty if it may."""
        if not node:
            return f'could not determine node from user "{request.user.name}"'
        name, operation = request.target.name or request.name, OPERATIONS[request.verb]
        match request.target.info.storage:
            case "pods":
                return self.pod_denial(node, request, old, new)
            case "nodes":
                return node_denial(node, name, old, new)
            case "persistentvolumeclaims" if request.target.subresource != "status":
                return "may only update PVC status"
            case "persistentvolumeclaims":
                return claim_denial(node, old, new)
            case "leases.coordination.k8s.io" if request.target.namespace != LEASE_NAMESPACE:
                return f'can only access leases in the "{LEASE_NAMESPACE}" system namespace'
            case "leases.coordination.k8s.io" if name != node:
                return "can only access node lease with the same name as the requesting node"
            case "csinodes.storage.k8s.io" if name != node:
                return "can only access CSINode with the same name as the requesting node"
            case "resourceslices.resource.k8s.io" if operation != "UPDATE":
                if value_at(new if new is not None else old, "spec", "nodeName") != node:
                    return f"can only {request.verb} ResourceSlice with the same NodeName as the requesting node"
            case "certificatesigningrequests.certificates.k8s.io" if operation == "CREATE":
                return certificate_denial(node, new or {})
        return ""

    def pod_denial(self, node: str, request: WriteRequest, old: Object | None, new: Object | None) -> str:
        subresource, operation = request.target.subresource, OPERATIONS[request.verb]
        match subresource, operation:
            case "", "CREATE":
                return self.mirror_pod_denial(node, new or {})
            case "" | "eviction", "DELETE":
                if value_at(old, "spec", "nodeName") != node:
                    return f'node "{node}" can only delete pods with spec.nodeName set to itself'
                return ""
            case "", _:
                return f'unexpected operation "{operation}", node "{node}" can only create and delete mirror pods'
            case "status", "UPDATE":
                return pod_status_denial(node, old or {}, new or {})
        return f"unexpected pod subresource \"{subresource}\", only 'status' and 'eviction' are allowed"

    def mirror_pod_denial(self, node: str, pod: Object) -> str:
        """Denial unless the pod is a mirror pod of the node that references no API objects."""
        if not is_mirror(pod):
            return f'pod does not have "{MIRROR_POD_ANNOTATION}" annotation, node "{node}" can only create mirror pods'
        if value_at(pod, "spec", "nodeName") != node:
            return f'node "{node}" can only create pods with spec.nodeName set to itself'
        owners = pod["metadata"].get("ownerReferences") or []
        if len(owners) > 1:
            return f'node "{node}" can only create pods with a single owner reference set to itself'
        owner = owners[0] if owners else {}
        if (owner.get("apiVersion"), owner.get("kind"), owner.get("name")) != ("v1", "Node", node):
            return f'node "{node}" can only create pods with an owner reference set to itself'
        if not owner.get("controller"):
            return f'node "{node}" can only create pods with a controller owner reference set to itself'
        if owner.get("blockOwnerDeletion"):
            return f'node "{node}" must not set blockOwnerDeletion on an owner reference'
        stored_node = self.stored_object(NODES, "", node)
        if stored_node is None:
            raise api_errors.not_found(SINGULAR_NODE, node)
        if owner.get("uid") != uid_of(stored_node):
            return f"node {node} UID mismatch: expected {owner.get('uid')} got {uid_of(stored_node)}"
        if objects := referenced_api_objects(pod):
            return f'node "{node}" can not create pods that reference {objects}'
        return ""

    # -- posts to subresources

    def subresource_denial(self, node: str, call: Call, target: Target, body: Object) -> str:
        if not node:
            return f'could not determine node from user "{call.user.name}"'
        match target.info.storage, target.subresource:
            case "pods", "eviction":
                pod = self.stored_pod(target.namespace, target.name)
                if value_at(pod, "spec", "nodeName") != node:
                    return f"node {node} can only evict pods with spec.nodeName set to itself"
                return ""
            case "serviceaccounts", "token":
                return self.token_denial(node, call, target, body.get("spec") or {})
        return ""  # binding and scale requests are checked when they write their objects

    def token_denial(self, node: str, call: Call, target: Target, spec: Object) -> str:
        """Denial unless the token is for a pod of the node and for an audience that the pod uses."""
        reference = spec.get("boundObjectRef") or {}
        if (reference.get("apiVersion"), reference.get("kind")) != ("v1", "Pod") or not reference.get("name"):
            return "node requested token not bound to a pod"
        if not reference.get("uid"):
            return "node requested token with a pod binding without a uid"
        pod = self.stored_pod(target.namespace, reference["name"])
        if reference["uid"] != uid_of(pod):
            return (
                f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record. "
                "The object might have been deleted and then recreated"
            )
        if value_at(pod, "spec", "nodeName") != node:
            return "node requested token bound to a pod scheduled on a different node"
        if len(spec.get("audiences") or ()) > 1:
            return "node may only request 0 or 1 audiences"
        [audience] = spec.get("audiences") or [""]
        missing: list[str] = []
        if self.has_audience(pod, audience, missing):
            return ""
        if missing:
            errors = ", ".join(dict.fromkeys(missing))
            return f'error validating audience "{audience}": {f"[{errors}]" if "," in errors else errors}'
        audience_target = Target(unserved_resource_info("", audience), target.namespace, target.name)
        if self.authorize(Attributes(call.user, "request-serviceaccounts-token-audience", audience_target)):
            return ""
        reason = f"{call.user.name} is not authorized to request tokens for this audience"
        return f'audience "{audience}" not found in pod spec volume, {reason}'

    def has_audience(self, pod: Object, audience: str, missing: list[str]) -> bool:
        """Return whether a volume of the pod uses tokens for the audience. Adds lookup errors to `missing`."""
        for volume in value_at(pod, "spec", "volumes") or ():
            tokens = (
                each["serviceAccountToken"] for each in projected_sources(volume) if each.get("serviceAccountToken")
            )
            if any(token.get("audience", "") == audience for token in tokens):
                return True
            try:
                requests = self.token_requests(pod, volume)
            except LookupError as error:
                missing.append(str(error.args[0]))
                continue
            if any(each.get("audience", "") == audience for each in requests):
                return True
        return False

    def token_requests(self, pod: Object, volume: Object) -> list[Object]:
        """The token requests of the CSI driver of a volume. Raises LookupError."""
        source = volume
        if claim := claim_name(pod, volume):
            claim_object = self.required_object(CLAIMS, pod["metadata"]["namespace"], claim, "persistentvolumeclaim")
            name = value_at(claim_object, "spec", "volumeName", default="")
            source = self.required_object(VOLUMES, "", name, "persistentvolume").get("spec") or {}
        csi_driver: str = value_at(source, "csi", "driver", default="")
        driver = csi_driver or next((driver for field, driver in MIGRATED_DRIVERS.items() if source.get(field)), "")
        if not driver:
            return []
        return (
            value_at(self.required_object(CSI_DRIVERS, "", driver, "csidriver.storage.k8s.io"), "spec", "tokenRequests")
            or []
        )

    def required_object(self, resource: str, namespace: str, name: str, kind: str) -> Object:
        obj = self.stored_object(resource, namespace, name)
        if obj is None:
            raise LookupError(f'{kind} "{name}" not found')
        return obj

    def stored_pod(self, namespace: str, name: str) -> Object:
        pod = self.stored_object(PODS, namespace, name)
        if pod is None:
            raise api_errors.not_found(SINGULAR_POD, name)
        return pod

    def stored_object(self, resource: str, namespace: str, name: str) -> Object | None:
        version = self.store.get(resource, namespace, name)
        return msgspec.json.decode(version.raw) if version is not None else None


def forbidden_target(target: Target, reason: str) -> Forbidden:
    resource = target.info.resource
    message = f'{resource.name} "{target.name}" is forbidden: {reason}'
    return Forbidden(403, "Forbidden", message, details=api_errors.status_details(resource, target.name))


def node_denial(node: str, name: str, old: Object | None, new: Object | None) -> str:
    """Denial unless the node writes its own Node and keeps taints, owner references and restricted labels."""
    if name != node:
        return f'node "{node}" is not allowed to modify node "{name}"'
    if new is None:
        return ""
    source = value_at(new, "spec", "configSource")
    if old is None:
        if source is not None:
            return f'node "{node}" is not allowed to create pods with a non-nil configSource'
        labels = forbidden_labels({}, labels_of(new))
        return f'node "{node}" is not allowed to set the following labels: {", ".join(labels)}' if labels else ""
    if source is not None and source != value_at(old, "spec", "configSource"):
        return f'node "{node}" is not allowed to update configSource to a new non-nil configSource'
    if (value_at(new, "spec", "taints") or []) != (value_at(old, "spec", "taints") or []):
        return f'node "{node}" is not allowed to modify taints'
    if (value_at(new, "metadata", "ownerReferences") or []) != (value_at(old, "metadata", "ownerReferences") or []):
        return f'node "{node}" is not allowed to modify ownerReferences'
    labels = forbidden_labels(labels_of(old), labels_of(new))
    return f"is not allowed to modify labels: {', '.join(labels)}" if labels else ""


def forbidden_labels(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """The changed labels that a node may not change."""
    changed = {key for key in {*old, *new} if old.get(key) != new.get(key)}
    return sorted(key for key in changed if not is_kubelet_label(key))


def is_kubelet_label(key: str) -> bool:
    namespace, slash, _ = key.partition("/")
    if not slash or not is_in_domains(namespace, KUBERNETES_NAMESPACES):
        return True
    if is_in_domains(namespace, (RESTRICTION_NAMESPACE,)):
        return False
    return key in KUBELET_LABELS or is_in_domains(namespace, KUBELET_NAMESPACES)


def is_in_domains(namespace: str, domains: tuple[str, ...]) -> bool:
    return any(namespace == domain or namespace.endswith(f".{domain}") for domain in domains)


def pod_status_denial(node: str, old: Object, new: Object) -> str:
    if value_at(old, "spec", "nodeName") != node:
        return f'node "{node}" can only update pod status for pods with spec.nodeName set to itself'
    if labels_of(old) != labels_of(new):
        return f'node "{node}" cannot update labels through pod status'
    for field, status_word in (("resourceClaimStatuses", "statues"), ("extendedResourceClaimStatus", "status")):
        if (value_at(old, "status", field) or None) != (value_at(new, "status", field) or None):
            kind = "extended resource claim" if field.startswith("extended") else "resource claim"
            return f'node "{node}" cannot update {kind} {status_word}'
    return ""


def claim_denial(node: str, old: Object | None, new: Object | None) -> str:
    if old is None or new is None:
        return "may only update PVC status"
    if without_claim_status(old) != without_claim_status(new):
        return f'node "{node}" is not allowed to update fields other than status.quantity and status.conditions'
    return ""


def without_claim_status(claim: Object) -> dict[str, Any]:
    metadata = {key: each for key, each in claim["metadata"].items() if key not in ("resourceVersion", "managedFields")}
    status = {key: each for key, each in (claim.get("status") or {}).items() if key not in CLAIM_STATUS_FIELDS}
    return {**claim, "metadata": metadata, "status": status}


def certificate_denial(node: str, request: Object) -> str:
    spec = request.get("spec") or {}
    if spec.get("signerName") not in NODE_SIGNERS:
        return ""
    try:
        parsed = parse_request(spec.get("request", ""))
    except ValueError as error:
        return f"unable to parse csr: {error}"
    return (
        ""
        if common_name(parsed) == f"{NODE_USER_PREFIX}{node}"
        else f"can only create a node CSR with CN={NODE_USER_PREFIX}{node}"
    )
