"""References from pods to Secrets, ConfigMaps, claims and accounts, and from volumes to Secrets.

All functions are pure. A reference consists of a resource (as in `Resource.name`), a namespace and a name.
"""

from collections.abc import Callable, Iterator, Mapping

from tapestry.apiserver.core.requests import User
from tapestry.kube.objects import EMPTY_MAPPING, Object, annotations_of, name_of, value_at
from tapestry.kube.pods import MIRROR_POD_ANNOTATION

Reference = tuple[str, str, str]
Names = Iterator[tuple[str, str | None]]
"""Resources and names in one namespace; names may be missing or empty."""

PODS, NODES, SECRETS, CONFIG_MAPS = "pods", "nodes", "secrets", "configmaps"
SERVICE_ACCOUNTS, CLAIMS, VOLUMES = "serviceaccounts", "persistentvolumeclaims", "persistentvolumes"
ATTACHMENTS = "volumeattachments.storage.k8s.io"
RESOURCE_CLAIMS, RESOURCE_SLICES = "resourceclaims.resource.k8s.io", "resourceslices.resource.k8s.io"
NODES_GROUP, NODE_USER_PREFIX = "system:nodes", "system:node:"
LEASES, CSI_NODES = "leases.coordination.k8s.io", "csinodes.storage.k8s.io"
LEASE_NAMESPACE = "kube-node-lease"

CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
WITH_SECRET_REFERENCE = ("cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos")
"""Volume sources with a field `secretRef`."""
NODE_CSI_SECRETS = ("nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef")
"""Secrets of a CSI volume that kubelets need; the others are for controllers."""
OWN_NAMESPACE_ONLY = ("cinder", "storageos")
"""Sources of PersistentVolumes whose `secretRef` does not default to the namespace of the claim."""
WITHOUT_OBJECTS = frozenset(
    {
        *("awsElasticBlockStore", "azureDisk", "cephfs", "cinder", "downwardAPI", "emptyDir", "fc", "flexVolume"),
        *("flocker", "gcePersistentDisk", "gitRepo", "hostPath", "image", "iscsi", "nfs", "photonPersistentDisk"),
        *("portworxVolume", "quobyte", "rbd", "scaleIO", "storageos", "vsphereVolume"),
    }
)
"""Volume sources that refer to no API objects except Secrets."""
WITH_OBJECTS = {
    "configMap": "configmaps (via configmap volumes)",
    "secret": "secrets (via secret volumes)",
    "csi": "csidrivers (via CSI volumes)",
    "glusterfs": "endpoints (via glusterFS volumes)",
    "persistentVolumeClaim": "persistentvolumeclaims",
    "ephemeral": "persistentvolumeclaims (via ephemeral volumes)",
    "azureFile": "secrets (via azureFile volumes)",
}
PROJECTED = {
    "configMap": "configmaps (via projected volumes)",
    "secret": "secrets (via projected volumes)",
    "serviceAccountToken": "serviceaccounts (via projected volumes)",
    "clusterTrustBundle": "clustertrustbundles",
    "podCertificate": "podcertificates",
}


def node_name_of_user(user: User) -> str | None:
    """Return the node name of a user (which may be empty), or None if the user is not a node."""
    return (
        user.name.removeprefix(NODE_USER_PREFIX)
        if user.name.startswith(NODE_USER_PREFIX) and NODES_GROUP in user.groups
        else None
    )


def is_mirror(pod: Object) -> bool:
    """Return whether the pod mirrors a static pod of its node."""
    return MIRROR_POD_ANNOTATION in annotations_of(pod)


def pod_references(pod: Object) -> Iterator[Reference]:
    """Yield the objects that a node needs to run a pod. A mirror pod gives access only to itself."""
    namespace, spec = pod["metadata"].get("namespace", ""), pod.get("spec") or {}
    yield PODS, namespace, name_of(pod)
    if is_mirror(pod):
        return
    for resource, name in references_by_name(pod, spec):
        if name:
            yield resource, namespace, name


def references_by_name(pod: Object, spec: Object) -> Names:
    """Yield the resources and names that a pod spec refers to in its own namespace."""
    yield SERVICE_ACCOUNTS, spec.get("serviceAccountName")
    for secret in spec.get("imagePullSecrets") or ():
        yield SECRETS, secret.get("name")
    for field in CONTAINERS:
        for container in spec.get(field) or ():
            yield from environment_names(container)
    for volume in spec.get("volumes") or ():
        for source, value in volume.items():
            if source in NAMED_SOURCES:
                yield from NAMED_SOURCES[source](value)
        yield CLAIMS, claim_name(pod, volume)
    if spec.get("resourceClaims") or "extendedResourceClaimStatus" in (pod.get("status") or ()):
        yield from ((RESOURCE_CLAIMS, name) for name in resource_claim_names(pod))


def environment_names(container: Object) -> Names:
    for source in container.get("envFrom") or ():
        yield SECRETS, value_at(source, "secretRef", "name")
        yield CONFIG_MAPS, value_at(source, "configMapRef", "name")
    for variable in container.get("env") or ():
        if source := variable.get("valueFrom"):
            yield SECRETS, value_at(source, "secretKeyRef", "name")
            yield CONFIG_MAPS, value_at(source, "configMapKeyRef", "name")


def secret_reference(source: Object) -> Names:
    yield SECRETS, value_at(source, "secretRef", "name")


def named_secret(source: Object) -> Names:
    yield SECRETS, source.get("secretName")


def csi_secret(source: Object) -> Names:
    yield SECRETS, value_at(source, "nodePublishSecretRef", "name")


def named_config_map(source: Object) -> Names:
    yield CONFIG_MAPS, source.get("name")


def projected_names(source: Object) -> Names:
    for each in source.get("sources") or ():
        yield SECRETS, value_at(each, "secret", "name")
        yield CONFIG_MAPS, value_at(each, "configMap", "name")


NAMED_SOURCES: Mapping[str, Callable[[Object], Names]] = {
    **dict.fromkeys(WITH_SECRET_REFERENCE, secret_reference),
    "azureFile": named_secret,
    "secret": named_secret,
    "csi": csi_secret,
    "configMap": named_config_map,
    "projected": projected_names,
}
"""Volume sources that refer to Secrets and ConfigMaps."""


def projected_sources(volume: Object) -> list[Object]:
    return value_at(volume, "projected", "sources") or []


def claim_name(pod: Object, volume: Object) -> str | None:
    """Return the claim of a volume: a named one, or the one created for this pod."""
    if "ephemeral" in volume:
        return f"{name_of(pod)}-{volume.get('name', '')}"
    result: str | None = value_at(volume, "persistentVolumeClaim", "claimName")
    return result


def resource_claim_names(pod: Object) -> Iterator[str | None]:
    """Yield resource claims that the spec names, or that the status lists as created from a template."""
    generated = {each.get("name"): each for each in value_at(pod, "status", "resourceClaimStatuses") or ()}
    for claim in value_at(pod, "spec", "resourceClaims") or ():
        yield claim.get("resourceClaimName") or generated.get(claim.get("name"), EMPTY_MAPPING).get("resourceClaimName")
    yield value_at(pod, "status", "extendedResourceClaimStatus", "resourceClaimName")


def referenced_api_objects(pod: Object) -> str:
    """Describe the API objects that a pod refers to, as Kubernetes does; empty if there are none."""
    spec = pod.get("spec") or {}
    kinds = {resource for resource, name in references_by_name(pod, spec) if name}
    kinds |= {RESOURCE_CLAIMS} if spec.get("resourceClaims") else set()
    direct = next((each for each in (SERVICE_ACCOUNTS, SECRETS, CONFIG_MAPS, RESOURCE_CLAIMS) if each in kinds), "")
    return direct.partition(".")[0] or next(
        (why for volume in spec.get("volumes") or () if (why := volume_api_objects(volume))), ""
    )


def volume_api_objects(volume: Object) -> str:
    sources = [field for field, value in volume.items() if field != "name" and value is not None]
    if "projected" in sources:
        kinds = [field for each in projected_sources(volume) for field, value in each.items() if value is not None]
        return next((PROJECTED.get(kind, "unknown volumes") for kind in kinds if kind != "downwardAPI"), "")
    if not sources:
        return "unknown volumes"
    return next((WITH_OBJECTS.get(each, "unknown volumes") for each in sources if each not in WITHOUT_OBJECTS), "")


def volume_claim(volume: Object) -> tuple[str, str] | None:
    """Return the namespace and name of the claim of a PersistentVolume."""
    claim = value_at(volume, "spec", "claimRef")
    return (claim.get("namespace", ""), claim.get("name", "")) if claim else None


def volume_secrets(volume: Object) -> Iterator[Reference]:
    """Yield the Secrets that kubelets need to mount a PersistentVolume."""
    spec = volume.get("spec") or EMPTY_MAPPING
    claim_namespace = value_at(spec, "claimRef", "namespace", default="")
    if name := value_at(spec, "azureFile", "secretName"):
        yield SECRETS, value_at(spec, "azureFile", "secretNamespace") or claim_namespace, name
    for source in WITH_SECRET_REFERENCE:
        reference = value_at(spec, source, "secretRef") or EMPTY_MAPPING
        namespace = reference.get("namespace") or ("" if source in OWN_NAMESPACE_ONLY else claim_namespace)
        if reference.get("name") and namespace:
            yield SECRETS, namespace, reference["name"]
    for field in NODE_CSI_SECRETS:
        reference = value_at(spec, "csi", field) or EMPTY_MAPPING
        if reference.get("name") and reference.get("namespace"):
            yield SECRETS, reference["namespace"], reference["name"]
