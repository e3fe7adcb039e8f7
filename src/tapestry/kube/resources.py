"""API resources: group, version, kind and URL path, as values that every verb takes."""

from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote


@dataclass(frozen=True)
class Resource:
    """API resource: `Resource("apps", "v1", "Deployment", "deployments")`."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @cached_property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def name(self) -> str:
        """Name with group as in RBAC and metrics: `pods`, `deployments.apps`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def group_version_path(self) -> str:
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of the collection or of one object.

        Without a namespace the collection spans all namespaces. Raise ValueError for a name that would change the path.
        """
        root = self.group_version_path
        if namespace is not None:
            if not self.namespaced:
                raise ValueError(f"{self.name} is cluster-scoped; namespace {namespace!r} is not allowed in its path")
            root += f"/namespaces/{path_segment(namespace)}"
        elif name is not None and self.namespaced:
            raise ValueError(f"{self.name} is namespaced; {name!r} needs a namespace")
        root += f"/{self.plural}"
        if name is not None:
            root += f"/{path_segment(name)}"
        elif subresource:
            raise ValueError(f"{self.name}: {subresource!r} needs a name; without one it would be read as the name")
        return f"{root}/{subresource}" if subresource else root


def path_segment(text: str) -> str:
    """Return `text` as a URL path segment. Raise ValueError for names that Kubernetes forbids for this reason."""
    if text in ("", ".", "..") or "/" in text or "%" in text:
        raise ValueError(f"{text!r} may not be a name: it is not a valid path segment")
    return quote(text, safe=":")


PODS = Resource("", "v1", "Pod", "pods")
NODES = Resource("", "v1", "Node", "nodes", namespaced=False)
NAMESPACES = Resource("", "v1", "Namespace", "namespaces", namespaced=False)
CONFIGMAPS = Resource("", "v1", "ConfigMap", "configmaps")
SECRETS = Resource("", "v1", "Secret", "secrets")
SERVICES = Resource("", "v1", "Service", "services")
ENDPOINTS = Resource("", "v1", "Endpoints", "endpoints")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
PERSISTENT_VOLUMES = Resource("", "v1", "PersistentVolume", "persistentvolumes", namespaced=False)
SERVICE_ACCOUNTS = Resource("", "v1", "ServiceAccount", "serviceaccounts")
RESOURCE_QUOTAS = Resource("", "v1", "ResourceQuota", "resourcequotas")
LIMIT_RANGES = Resource("", "v1", "LimitRange", "limitranges")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
INGRESSES = Resource("networking.k8s.io", "v1", "Ingress", "ingresses")
DISRUPTION_BUDGETS = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
VERTICAL_AUTOSCALERS = Resource("autoscaling.k8s.io", "v1", "VerticalPodAutoscaler", "verticalpodautoscalers")
EVENTS = Resource("", "v1", "Event", "events")
DEPLOYMENTS = Resource("apps", "v1", "Deployment", "deployments")
REPLICA_SETS = Resource("apps", "v1", "ReplicaSet", "replicasets")
STATEFUL_SETS = Resource("apps", "v1", "StatefulSet", "statefulsets")
DAEMON_SETS = Resource("apps", "v1", "DaemonSet", "daemonsets")
CONTROLLER_REVISIONS = Resource("apps", "v1", "ControllerRevision", "controllerrevisions")
REPLICATION_CONTROLLERS = Resource("", "v1", "ReplicationController", "replicationcontrollers")
JOBS = Resource("batch", "v1", "Job", "jobs")
CRON_JOBS = Resource("batch", "v1", "CronJob", "cronjobs")
AUTOSCALERS = Resource("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
NODE_METRICS = Resource("metrics.k8s.io", "v1beta1", "NodeMetrics", "nodes", namespaced=False)
POD_METRICS = Resource("metrics.k8s.io", "v1beta1", "PodMetrics", "pods")
LEASES = Resource("coordination.k8s.io", "v1", "Lease", "leases")
NODE_LEASE_NAMESPACE = "kube-node-lease"
"""Namespace of the Leases that kubelets renew."""
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", namespaced=False)
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "StorageClass", "storageclasses", namespaced=False)
CSI_DRIVERS = Resource("storage.k8s.io", "v1", "CSIDriver", "csidrivers", namespaced=False)
CSI_NODES = Resource("storage.k8s.io", "v1", "CSINode", "csinodes", namespaced=False)
VOLUME_ATTACHMENTS = Resource("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", namespaced=False)
ROLES = Resource("rbac.authorization.k8s.io", "v1", "Role", "roles")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
SIGNING_REQUESTS = Resource(
    "certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests", namespaced=False
)
API_SERVICES = Resource("apiregistration.k8s.io", "v1", "APIService", "apiservices", namespaced=False)
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False
)
ADMISSION_POLICIES = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingAdmissionPolicy",
    "validatingadmissionpolicies",
    namespaced=False,
)
ADMISSION_POLICY_BINDINGS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingAdmissionPolicyBinding",
    "validatingadmissionpolicybindings",
    namespaced=False,
)
CRDS = Resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", namespaced=False)
SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False
)
SELF_SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False
)
