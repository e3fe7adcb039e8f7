"""The table of resources: what the server serves, one row each.

Built-in rows come out of data that Kubernetes publishes of itself (tools/api_tables.py); CustomResourceDefinitions add
and remove rows while the server runs.  What the published data does not say of a kind is in the sets at the end.
"""

import gzip
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import Any

import msgspec

from tapestry.apiserver.storage_versions import STORAGE_VERSIONS, StorageVersion
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource
from tapestry.kube.strategic_merge import PatchSchema, PatchSchemas


@dataclass(frozen=True, slots=True)
class Subresource:
    name: str
    kind: str
    verbs: tuple[str, ...]
    group: str
    version: str


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """What `kubectl get` shows of a custom resource."""

    name: str
    path: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


@dataclass(frozen=True)
class ResourceInfo:
    """One resource in one version."""

    resource: Resource
    singular: str
    verbs: tuple[str, ...]
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: Mapping[str, Subresource] = field(default_factory=dict)
    storage: str = ""
    """Where its objects are kept: two versions of a resource share it."""
    storage_api_version: str = ""
    """The apiVersion that objects have in the store, where that is another one."""
    storage_version: StorageVersion | None = None
    """How objects are shown that are not as they are in the store."""
    schema: Object = field(default_factory=dict)
    """Structural, of a custom resource; that of a built-in kind is `types[type]`."""
    schema_name: str = ""
    patch_schema: PatchSchema | None = None
    """How strategic merge patches apply; None for custom resources, which have none."""
    printer_columns: tuple[PrinterColumn, ...] = ()
    selectable_fields: tuple[str, ...] = ()
    """Fields that a custom resource can be selected by, beside its name and namespace."""
    scale: Object = field(default_factory=dict)
    """Where a custom resource has what its scale subresource shows."""
    conversion_webhook: Object = field(default_factory=dict)
    """The webhook that converts a custom resource from version to version; without one, only the name changes."""
    initial_status: Object | None = None
    """The status of a new object, where there is one from the start."""
    list_kind_override: str = ""
    """What a list is called, where that is not the kind and `List`."""
    deprecation_warning: str = ""
    """What is said to whoever still uses it."""
    schema_size: int = 0
    """Bytes of the schema of a custom resource, as JSON."""

    @property
    def list_kind(self) -> str:
        return self.list_kind_override or f"{self.resource.kind}List"

    @cached_property
    def is_custom(self) -> bool:
        return not self.schema_name

    @cached_property
    def is_plain(self) -> bool:
        """Whether objects are stored as they are shown."""
        return not self.is_custom and self.storage_version is None

    @cached_property
    def has_status(self) -> bool:
        return "status" in self.subresources

    @cached_property
    def has_generation(self) -> bool:
        return self.is_custom or self.resource.name in WITH_GENERATION


@dataclass(frozen=True, slots=True)
class PublishedApi:
    """The published data."""

    version: str
    resources: tuple[ResourceInfo, ...]
    schemas: Mapping[str, Any]


def published_api() -> PublishedApi:
    """The table as it ships."""
    data = load_data_file("kubernetes.json.gz")
    patches = PatchSchemas(data["schemas"])
    return PublishedApi(
        data["version"], tuple(resource_info_from(each, patches) for each in data["resources"]), data["schemas"]
    )


def type_descriptions() -> Mapping[str, Mapping[str, str]]:
    """What the types are for, under no name, and their fields under theirs."""
    found: Mapping[str, Mapping[str, str]] = load_data_file("descriptions.json.gz")["types"]
    return found


def load_data_file(name: str) -> Any:
    return msgspec.json.decode(
        gzip.decompress(resources.files("tapestry.apiserver").joinpath("data", name).read_bytes())
    )


def resource_info_from(entry: Object, patch_schemas: PatchSchemas) -> ResourceInfo:
    resource = Resource(entry["group"], entry["version"], entry["kind"], entry["plural"], entry["namespaced"])
    guise = STORAGE_VERSIONS.get(resource.api_version)
    return ResourceInfo(
        resource,
        entry["singular"],
        tuple(entry["verbs"]),
        tuple(entry["shortNames"]),
        tuple(entry["categories"]),
        {sub["name"]: subresource_of(sub, resource) for sub in entry["subresources"]},
        storage=STORAGE_ALIASES.get(resource.name, resource.name),
        storage_api_version=guise.api_version if guise else "",
        storage_version=guise,
        schema_name=entry["schema"],
        initial_status=entry.get("blankStatus"),
        patch_schema=patch_schemas.of(entry["schema"]),
        deprecation_warning=DEPRECATED.get(resource.name, ""),
    )


def subresource_of(entry: Object, resource: Resource) -> Subresource:
    return Subresource(
        entry["name"],
        entry["kind"],
        tuple(entry["verbs"]),
        entry.get("group", resource.group),
        entry.get("version", resource.version),
    )


class ResourceRegistry:
    """The rows that are served now, by where they are served."""

    def __init__(self, resources: Iterable[ResourceInfo]) -> None:
        self._resources: dict[tuple[str, str, str], ResourceInfo] = {}
        self.generation = 0
        """Grows with every change, for whoever keeps something that was made of the rows."""
        for row in resources:
            self.add(row)

    def get(self, group: str, version: str, plural: str) -> ResourceInfo | None:
        return self._resources.get((group, version, plural))

    def info_for(self, resource: Resource) -> ResourceInfo:
        """The row of a resource that is always served."""
        return self._resources[resource.group, resource.version, resource.plural]

    def add(self, info: ResourceInfo) -> None:
        self._resources[info.resource.group, info.resource.version, info.resource.plural] = info
        self.generation += 1

    def remove(self, group: str, plural: str) -> None:
        """Serve no version of the custom resource any more."""
        self._resources = {
            key: row for key, row in self._resources.items() if (key[0], key[2]) != (group, plural) or not row.is_custom
        }
        self.generation += 1

    def has_built_in(self, group: str, plural: str) -> bool:
        return any(
            (key[0], key[2]) == (group, plural) and not row.is_custom for key, row in list(self._resources.items())
        )

    def __iter__(self) -> Iterator[ResourceInfo]:
        return iter(list(self._resources.values()))

    def groups(self) -> dict[str, dict[str, list[ResourceInfo]]]:
        """The rows by group and version, each in the order that clients should prefer."""
        found: dict[str, dict[str, list[ResourceInfo]]] = {}
        for row in list(self._resources.values()):
            found.setdefault(row.resource.group, {}).setdefault(row.resource.version, []).append(row)
        return {
            group: dict(sorted(versions.items(), key=lambda each: version_priority(each[0])))
            for group, versions in found.items()
        }

    def of_kind(self, group: str, kind: str) -> ResourceInfo | None:
        """The preferred version of a kind."""
        found = [row for row in self._resources.values() if (row.resource.group, row.resource.kind) == (group, kind)]
        return min(found, key=lambda row: version_priority(row.resource.version), default=None)


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Versions as Kubernetes ranks them: v2, v1, v2beta1, v1beta2, v1alpha1, then everything else by name."""
    head, _, rest = version.partition("alpha") if "alpha" in version else version.partition("beta")
    if not (head.startswith("v") and head[1:].isdecimal() and (not rest or rest.isdecimal())):
        return 3, 0, 0, version
    rank = 2 if "alpha" in version else 1 if "beta" in version else 0
    return rank, -int(head[1:]), -int(rest or 0), version


STORAGE_ALIASES = {"events.events.k8s.io": "events"}
"""Resources that are another one under a second name."""

WITH_GENERATION = frozenset(
    {
        *("pods", "replicationcontrollers", "poddisruptionbudgets.policy", "podtemplates"),
        *(f"{plural}.apps" for plural in ("deployments", "replicasets", "statefulsets", "daemonsets")),
        *("jobs.batch", "cronjobs.batch", "customresourcedefinitions.apiextensions.k8s.io"),
        *(f"{plural}.networking.k8s.io" for plural in ("ingresses", "networkpolicies", "ingressclasses")),
        "priorityclasses.scheduling.k8s.io",
        *(
            f"{plural}.admissionregistration.k8s.io"
            for plural in (
                *("validatingwebhookconfigurations", "mutatingwebhookconfigurations"),
                *("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
            )
        ),
        *(f"{plural}.flowcontrol.apiserver.k8s.io" for plural in ("flowschemas", "prioritylevelconfigurations")),
        *("resourceslices.resource.k8s.io", "deviceclasses.resource.k8s.io", "endpointslices.discovery.k8s.io"),
    }
)
"""Built-in kinds whose objects count the changes of what is wanted of them."""

DEPRECATED = {
    "endpoints": "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    "componentstatuses": "v1 ComponentStatus is deprecated in v1.19+",
}
"""Built-in kinds that clients are told to do without."""

RETURNS_DELETED_OBJECT = frozenset(
    {
        *("pods", "services", "namespaces", "persistentvolumes", "persistentvolumeclaims", "serviceaccounts"),
        *("resourcequotas", "podtemplates", "replicationcontrollers"),
        *(f"{plural}.storage.k8s.io" for plural in ("storageclasses", "volumeattachments", "csinodes", "csidrivers")),
        *(f"{plural}.resource.k8s.io" for plural in ("resourceclaims", "resourceclaimtemplates", "resourceslices")),
        "deviceclasses.resource.k8s.io",
    }
)
"""Resources whose deletion answers with the object that went."""

REQUIRES_RESOURCE_VERSION = frozenset(
    {
        *("leases.coordination.k8s.io", "poddisruptionbudgets.policy", "runtimeclasses.node.k8s.io"),
        *(
            f"{plural}.storage.k8s.io"
            for plural in ("csidrivers", "csinodes", "csistoragecapacities", "volumeattachments")
        ),
        *(
            f"{plural}.admissionregistration.k8s.io"
            for plural in (
                *("validatingwebhookconfigurations", "mutatingwebhookconfigurations"),
                *("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
            )
        ),
        *("customresourcedefinitions.apiextensions.k8s.io", "apiservices.apiregistration.k8s.io"),
    }
)
"""Built-in resources that a PUT must name the version of; every custom resource is one, too."""

STATUS_WRITE_KEEPS_METADATA = frozenset(
    {
        *("servicecidrs.networking.k8s.io", "volumeattachments.storage.k8s.io", "resourceclaims.resource.k8s.io"),
        *(f"{plural}.flowcontrol.apiserver.k8s.io" for plural in ("flowschemas", "prioritylevelconfigurations")),
        *("validatingadmissionpolicies.admissionregistration.k8s.io", "apiservices.apiregistration.k8s.io"),
    }
)
"""Built-in resources of which a write to the status changes nothing else, not even labels; as of all custom ones."""

ALLOWS_CREATE_ON_UPDATE = frozenset(
    {
        *("events", "endpoints", "services", "limitranges", "leases.coordination.k8s.io"),
        *(
            f"{plural}.rbac.authorization.k8s.io"
            for plural in ("roles", "rolebindings", "clusterroles", "clusterrolebindings")
        ),
        *("runtimeclasses.node.k8s.io", "events.events.k8s.io"),
    }
)
"""Resources that a PUT creates where there is none."""

ORPHANS_BY_DEFAULT = frozenset({"jobs.batch", "replicationcontrollers"})
"""Resources whose deletion leaves what they own behind, unless it says otherwise."""

DELETION_FINALIZERS = {"customresourcedefinitions.apiextensions.k8s.io": "customresourcecleanup.apiextensions.k8s.io"}
"""The finalizer that objects get when they are deleted, so that a controller can clean up after them."""

SELECTABLE_FIELDS = {
    "pods": (
        *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork"),
        *("status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName"),
    ),
    "nodes": ("spec.unschedulable",),
    "secrets": ("type",),
    "namespaces": ("status.phase",),
    "services": ("spec.clusterIP", "spec.type"),
    "replicationcontrollers": ("status.replicas",),
    "replicasets.apps": ("status.replicas",),
    "jobs.batch": ("status.successful",),
    "certificatesigningrequests.certificates.k8s.io": ("spec.signerName",),
    "resourceslices.resource.k8s.io": ("spec.nodeName", "spec.driver"),
    "events": (
        *(
            f"involvedObject.{name}"
            for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
        ),
        *("reason", "reportingComponent", "source", "type"),
    ),
}
"""Fields that built-in kinds can be selected by, beside their name and namespace."""
