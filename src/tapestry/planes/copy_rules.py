"""Rules of a copy: which objects it includes, and how they change in the plane that is created from it.

A copy has the objects of a plane, but nothing that proves an identity: no tokens and no certificates. The new plane is
another cluster, with its own UID of kube-system, which is the identity of a cluster. It has nothing of what the copied
plane has in other clusters: its pods start again, and its claims get other volumes. All functions are pure.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import msgspec

from tapestry.apis import keys
from tapestry.apiserver.core.store import Key
from tapestry.apiserver.storage.log import Entry
from tapestry.controlplane.service_accounts import ROOT_CA_CONFIGMAP
from tapestry.kube.objects import Object, labels_of, value_at, with_value
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import (
    CSI_NODES,
    INGRESSES,
    LEASES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SERVICES,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
)

TOKEN_SECRET_TYPES = ("kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token")
CA_CONFIGMAPS = (("kube-system", "extension-apiserver-authentication"), ("kube-public", "cluster-info"))
"""Namespaces and names of the ConfigMaps with the CA of the cluster, beside the root CA ConfigMap of each namespace."""
SERVER_ENDPOINTS = ("default", "kubernetes")
"""Namespace and name of the objects with the address of the server, which it writes again."""
IDENTITY_NAMESPACE = Key("namespaces", "", "kube-system")
NODE_LEASES = "kube-node-lease"
"""Namespace of the Leases of nodes."""
DRIVER = keys.HOST_VOLUME_DRIVER
MARKED_RESOURCES = (NODES.name, PERSISTENT_VOLUMES.name, STORAGE_CLASSES.name)
"""Resources whose objects tell what a plane has in other clusters."""
OWN_CONDITIONS = (keys.MAPPED_CONDITION, keys.ACCEPTED_CONDITION)
"""Conditions of pods that a syncer is responsible for."""
USER_ANNOTATIONS = (keys.RUNNING_DAEMONSET,)
"""Annotations of pods that users write."""
FINAL_STATUS = ("phase", "reason", "message", "qosClass", "startTime", "initContainerStatuses", "containerStatuses")
"""Fields that the status of a pod that has ended keeps."""


def is_token(_: Key, obj: Object) -> bool:
    return obj.get("type") in TOKEN_SECRET_TYPES


def is_ca_configmap(key: Key, _: Object) -> bool:
    return key.name == ROOT_CA_CONFIGMAP or (key.namespace, key.name) in CA_CONFIGMAPS


def is_server_endpoint(key: Key, _: Object) -> bool:
    return (key.namespace, key.name) == SERVER_ENDPOINTS


def is_held(_: Key, obj: Object) -> bool:
    return bool(value_at(obj, "spec", "holderIdentity"))


def is_any(_: Key, __: Object) -> bool:
    return True


EXCLUDED: dict[str, Callable[[Key, Object], bool]] = {
    "secrets": is_token,
    "configmaps": is_ca_configmap,
    "endpoints": is_server_endpoint,
    "endpointslices.discovery.k8s.io": is_server_endpoint,
    "leases.coordination.k8s.io": is_held,
    "certificatesigningrequests.certificates.k8s.io": is_any,  # an approved one would be signed by the new CA
}
"""By resource, whether a copy excludes an object."""


@dataclass(frozen=True)
class Elsewhere:
    """Objects of the copied plane that stand for objects of other clusters."""

    nodes: frozenset[str] = frozenset()
    """Names of its virtual nodes."""
    volumes: frozenset[str] = frozenset()
    """Names of its volumes that a host cluster has."""
    has_host: bool = False
    """True if the plane is a tenant of a host cluster."""


@dataclass(frozen=True)
class IdentityChange:
    """UIDs of kube-system in the copied plane and in the new one."""

    old_uid: str
    new_uid: str


def with_new_identity(key: Key, obj: Object, change: IdentityChange) -> Object:
    return with_value(obj, ("metadata", "uid"), change.new_uid) if key == IDENTITY_NAMESPACE else obj


CHANGES: dict[str, Callable[[Key, Object, IdentityChange], Object]] = {"namespaces": with_new_identity}
"""By resource, the object in the new plane."""


def is_included(entry: Entry) -> bool:
    """Return whether a copy includes an object."""
    is_excluded = EXCLUDED.get(entry.key.resource)
    return is_excluded is None or not is_excluded(entry.key, decoded(entry))


def decoded(entry: Entry) -> Object:
    obj: Object = msgspec.json.decode(entry.raw or b"{}")
    return obj


# -- the new plane


def elsewhere(entries: Iterable[Entry]) -> Elsewhere:
    """Return what a plane has in other clusters; `entries` are its objects of `MARKED_RESOURCES`."""
    nodes, volumes, has_host = set[str](), set[str](), False
    for each in entries:
        obj = decoded(each)
        if each.key.resource == NODES.name and is_virtual_node(obj):
            nodes.add(each.key.name)
        elif each.key.resource == PERSISTENT_VOLUMES.name and value_at(obj, "spec", "csi", "driver") == DRIVER:
            volumes.add(each.key.name)
        elif each.key.resource == STORAGE_CLASSES.name and obj.get("provisioner") == DRIVER:
            has_host = True
    return Elsewhere(frozenset(nodes), frozenset(volumes), has_host or bool(nodes or volumes))


def is_virtual_node(node: Object) -> bool:
    return labels_of(node).get(keys.NODE_TYPE) == keys.NODE_TYPE_VIRTUAL and keys.CLUSTER_BINDING_UID in labels_of(node)


def is_left_behind(entry: Entry, has: Elsewhere) -> bool:
    """Return whether an object only says what the copied plane has in other clusters."""
    key = entry.key
    match key.resource:
        case NODES.name | CSI_NODES.name:
            return key.name in has.nodes
        case LEASES.name:
            return key.namespace == NODE_LEASES and key.name in has.nodes
        case PERSISTENT_VOLUMES.name:
            return key.name in has.volumes
        case VOLUME_ATTACHMENTS.name:
            return value_at(decoded(entry), "spec", "nodeName") in has.nodes
        case PODS.name:
            return key.namespace == keys.HOST_PORTS_NAMESPACE and keys.HOST_PORTS in labels_of(decoded(entry))
    return False


def restarted_pod(pod: Object, has: Elsewhere) -> Object:
    """Return a pod that runs elsewhere as one that has not started. A pod that has ended stays so, without its node."""
    node, status = value_at(pod, "spec", "nodeName"), pod.get("status") or {}
    is_mapped = any(each.get("type") in OWN_CONDITIONS for each in status.get("conditions") or ())
    if node not in has.nodes and not is_mapped:
        return pod
    metadata = without_annotations(pod["metadata"], keys.PREFIX, USER_ANNOTATIONS)
    spec = {name: value for name, value in pod["spec"].items() if name != "nodeName"}
    fields = FINAL_STATUS if is_pod_terminal(pod) else ("qosClass",)
    new_status = {"phase": "Pending", **{name: status[name] for name in fields if name in status}}
    return {**pod, "metadata": metadata, "spec": spec, "status": new_status}


def unbound_claim(claim: Object, has: Elsewhere) -> Object:
    """Return a claim without its volume, if only the copied plane has that. The new plane gets an empty one."""
    if value_at(claim, "spec", "volumeName") not in has.volumes:
        return claim
    metadata = without_annotations(claim["metadata"], "pv.kubernetes.io/", ())
    metadata = without_annotations(metadata, "volume.kubernetes.io/", ())
    spec = {name: value for name, value in claim["spec"].items() if name != "volumeName"}
    return {**claim, "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def service_without_host(service: Object, has: Elsewhere) -> Object:
    """Return a Service without the addresses and the ports that a host cluster gave it."""
    if not has.has_host:
        return service
    spec = {name: value for name, value in service["spec"].items() if name not in ("healthCheckNodePort",)}
    if spec.get("clusterIP") != "None":
        spec = {name: value for name, value in spec.items() if name not in ("clusterIP", "clusterIPs")}
    if spec.get("ports"):
        spec["ports"] = [{name: port[name] for name in port if name != "nodePort"} for port in spec["ports"]]
    return {**service, "spec": spec, "status": {"loadBalancer": {}}}


def ingress_without_host(ingress: Object, has: Elsewhere) -> Object:
    return {**ingress, "status": {"loadBalancer": {}}} if has.has_host else ingress


RESTARTED: dict[str, Callable[[Object, Elsewhere], Object]] = {
    PODS.name: restarted_pod,
    PERSISTENT_VOLUME_CLAIMS.name: unbound_claim,
    SERVICES.name: service_without_host,
    INGRESSES.name: ingress_without_host,
}
"""By resource, the object in a plane that has nothing in other clusters yet."""


def without_annotations(metadata: Object, prefix: str, exempt: Collection[str]) -> Object:
    """Remove the annotations with a prefix from metadata."""
    annotations = metadata.get("annotations") or {}
    left = {key: value for key, value in annotations.items() if not key.startswith(prefix) or key in exempt}
    return {**metadata, "annotations": left} if left != annotations else metadata


def new_plane_entry(entry: Entry, identity: IdentityChange, has: Elsewhere) -> Entry:
    """Return an object of a copy as it is in the new plane."""
    raw = entry.raw or b"{}"
    change, old_uid = CHANGES.get(entry.key.resource), identity.old_uid.encode()
    restarted = RESTARTED.get(entry.key.resource)
    if change is None and restarted is None and (not old_uid or old_uid not in raw):
        return entry
    obj = msgspec.json.decode(raw)
    changed = with_new_owner(change(entry.key, obj, identity) if change is not None else obj, identity)
    if restarted is not None:
        changed = restarted(changed, has)
    return entry if changed == obj else entry._replace(raw=msgspec.json.encode(changed))


def with_new_owner(obj: Object, identity: IdentityChange) -> Object:
    """Return the object with kube-system of the new plane as the owner, if that of the copied plane is an owner."""
    owners = obj["metadata"].get("ownerReferences") or []
    changed = [{**each, "uid": identity.new_uid} if each.get("uid") == identity.old_uid else each for each in owners]
    return with_value(obj, ("metadata", "ownerReferences"), changed) if changed != owners else obj
