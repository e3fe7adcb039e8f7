"""Registry of served resources, with one ResourceInfo per resource and version.

Built-in resources come from published Kubernetes data (tools/api_tables.py). CustomResourceDefinitions add and
remove entries at run time. The sets at the end of this file hold properties of kinds that the published data lacks.
"""

import gzip
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from typing import Any

import msgspec

from tapestry.apiserver.core.storage_versions import STORAGE_VERSIONS, StorageVersion
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
    """A column of `kubectl get` for a custom resource."""

    name: str
    path: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


@dataclass(frozen=True)
class ResourceInfo:
    resource: Resource
    singular: str
    verbs: tuple[str, ...]
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: Mapping[str, Subresource] = field(default_factory=dict)
    storage: str = ""
    """Key of its objects in the store, shared by all versions of the resource."""
    storage_api_version: str = ""
    """apiVersion of the stored objects, if it differs from the served one."""
    storage_version: StorageVersion | None = None
    """Conversion between the served and the stored form, if they differ."""
    schema: Object = field(default_factory=dict)
    """Structural schema of a custom resource; that of a built-in kind is found by `schema_name`."""
    schema_name: str = ""
    patch_schema: PatchSchema | None = None
    """Rules for strategic merge patches; None for custom resources, which do not support them."""
    printer_columns: tuple[PrinterColumn, ...] = ()
    selectable_fields: tuple[str, ...] = ()
    """Selectable fields of a custom resource, in addition to name and namespace."""
    scale: Object = field(default_factory=dict)
    """Paths of the fields of a custom resource that its scale subresource maps."""
    conversion_webhook: Object = field(default_factory=dict)
    """Webhook that converts a custom resource between versions; without one, only apiVersion changes."""
    initial_status: Object | None = None
    """Status of a new object, if it has one from the start."""
    list_kind_override: str = ""
    """Kind of lists, if it is not the kind plus `List`."""
    deprecation_warning: str = ""
    """Warning for clients that use a deprecated resource."""
    schema_size: int = 0
    """Size of the schema of a custom resource in bytes of JSON."""

    @property
    def list_kind(self) -> str:
        return self.list_kind_override or f"{self.resource.kind}List"

    @cached_property
    def is_custom(self) -> bool:
        return not self.schema_name

    @cached_property
    def is_remote(self) -> bool:
        """True if another server serves the resource, so that this one knows nothing about it."""
        return not self.verbs

    @cached_property
    def is_plain(self) -> bool:
        """True if objects are stored in the form in which they are served."""
        return not self.is_custom and self.storage_version is None

    @cached_property
    def has_status(self) -> bool:
        return "status" in self.subresources

    @cached_property
    def has_generation(self) -> bool:
        return self.is_custom or self.resource.name in WITH_GENERATION


@dataclass(frozen=True, slots=True)
class PublishedApi:
    """Published API data of one Kubernetes release."""

    version: str
    resources: tuple[ResourceInfo, ...]
    schemas: Mapping[str, Any]


@cache
def published_api() -> PublishedApi:
    """Return the API data that ships with this package, which all servers of a process share."""
    data = load_data_file("kubernetes.json.gz")
    patches = PatchSchemas(data["schemas"])
    return PublishedApi(
        data["version"], tuple(resource_info_from(each, patches) for each in data["resources"]), data["schemas"]
    )


def load_data_file(name: str) -> Any:
    return msgspec.json.decode(
        gzip.decompress(resources.files("tapestry.apiserver").joinpath("data", name).read_bytes())
    )


def resource_info_from(entry: Object, patch_schemas: PatchSchemas) -> ResourceInfo:
    resource = Resource(entry["group"], entry["version"], entry["kind"], entry["plural"], entry["namespaced"])
    storage_version = STORAGE_VERSIONS.get(resource.api_version)
    return ResourceInfo(
        resource,
        entry["singular"],
        tuple(entry["verbs"]),
        tuple(entry["shortNames"]),
        tuple(entry["categories"]),
        {sub["name"]: subresource_of(sub, resource) for sub in entry["subresources"]},
        storage=STORAGE_ALIASES.get(resource.name, resource.name),
        storage_api_version=storage_version.api_version if storage_version else "",
        storage_version=storage_version,
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
    """The resources that are served now, by group, version and plural."""

    def __init__(self, resources: Iterable[ResourceInfo]) -> None:
        self._resources: dict[tuple[str, str, str], ResourceInfo] = {}
        self.generation = 0
        """Incremented with each change; consumers use it to invalidate derived data."""
        self.collections: dict[str, Any] = {}
        """Targets of some collections by path, for `target_of`. Cleared with each change."""
        for info in resources:
            self.add(info)

    def get(self, group: str, version: str, plural: str) -> ResourceInfo | None:
        return self._resources.get((group, version, plural))

    def info_for(self, resource: Resource) -> ResourceInfo:
        """Return the info of a resource that is always served."""
        return self._resources[resource.group, resource.version, resource.plural]

    def add(self, info: ResourceInfo) -> None:
        self._resources[info.resource.group, info.resource.version, info.resource.plural] = info
        self._changed()

    def remove(self, group: str, plural: str) -> None:
        """Stop serving all versions of a custom resource."""
        self._resources = {
            key: info
            for key, info in self._resources.items()
            if (key[0], key[2]) != (group, plural) or not info.is_custom
        }
        self._changed()

    def _changed(self) -> None:
        self.generation += 1
        self.collections.clear()

    def has_built_in(self, group: str, plural: str) -> bool:
        return any(
            (key[0], key[2]) == (group, plural) and not info.is_custom for key, info in list(self._resources.items())
        )

    def __iter__(self) -> Iterator[ResourceInfo]:
        return iter(list(self._resources.values()))

    def groups(self) -> dict[str, dict[str, list[ResourceInfo]]]:
        """Return the resources by group and version, in order of preference."""
        result: dict[str, dict[str, list[ResourceInfo]]] = {}
        for info in list(self._resources.values()):
            result.setdefault(info.resource.group, {}).setdefault(info.resource.version, []).append(info)
        return {
            group: dict(sorted(versions.items(), key=lambda each: version_priority(each[0])))
            for group, versions in result.items()
        }


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Rank versions as Kubernetes does: v2, v1, v2beta1, v1beta2, v1alpha1, then all others by name."""
    major, _, minor = version.partition("alpha") if "alpha" in version else version.partition("beta")
    if not (major.startswith("v") and major[1:].isdecimal() and (not minor or minor.isdecimal())):
        return 3, 0, 0, version
    stability = 2 if "alpha" in version else 1 if "beta" in version else 0
    return stability, -int(major[1:]), -int(minor or 0), version


STORAGE_ALIASES = {"events.events.k8s.io": "events"}
"""Resources that share the storage of another resource."""

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
"""Built-in kinds whose objects have metadata.generation."""

DEPRECATED = {
    "endpoints": "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    "componentstatuses": "v1 ComponentStatus is deprecated in v1.19+",
}
"""Warnings for clients that use deprecated built-in kinds."""

RETURNS_DELETED_OBJECT = frozenset(
    {
        *("pods", "services", "namespaces", "persistentvolumes", "persistentvolumeclaims", "serviceaccounts"),
        *("resourcequotas", "podtemplates", "replicationcontrollers"),
        *(f"{plural}.storage.k8s.io" for plural in ("storageclasses", "volumeattachments", "csinodes", "csidrivers")),
        *(f"{plural}.resource.k8s.io" for plural in ("resourceclaims", "resourceclaimtemplates", "resourceslices")),
        "deviceclasses.resource.k8s.io",
    }
)
"""Resources whose deletion returns the deleted object."""

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
"""Built-in resources for which a PUT must set resourceVersion; custom resources always require it."""

STATUS_WRITE_KEEPS_METADATA = frozenset(
    {
        *("servicecidrs.networking.k8s.io", "volumeattachments.storage.k8s.io", "resourceclaims.resource.k8s.io"),
        *(f"{plural}.flowcontrol.apiserver.k8s.io" for plural in ("flowschemas", "prioritylevelconfigurations")),
        *("validatingadmissionpolicies.admissionregistration.k8s.io", "apiservices.apiregistration.k8s.io"),
    }
)
"""Built-in resources whose status writes change only the status, as with all custom resources."""

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
"""Resources for which a PUT creates a missing object."""

ORPHANS_BY_DEFAULT = frozenset({"jobs.batch", "replicationcontrollers"})
"""Resources whose dependents are orphaned on deletion by default."""

DELETION_FINALIZERS = {"customresourcedefinitions.apiextensions.k8s.io": "customresourcecleanup.apiextensions.k8s.io"}
"""Finalizers that are added on deletion, so that a controller can clean up."""

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
"""Selectable fields of built-in kinds, in addition to name and namespace."""
