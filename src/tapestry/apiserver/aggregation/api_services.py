"""APIServices in the store, and the paths that they forward.

An APIService with a `service` forwards one group and version to that Service. A group and version that this server
serves itself is never forwarded. The syncer of a host cluster serves the metrics API in this process, without an
APIService, unless there is one for it.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from tapestry.apiserver.core.host_access import HostAccess
from tapestry.apiserver.core.requests import Target, unserved_target
from tapestry.apiserver.core.resource_registry import ResourceRegistry, version_priority
from tapestry.apiserver.core.store import Store, WatchEvent
from tapestry.kube.conditions import is_condition_false
from tapestry.kube.names import dns_label_error
from tapestry.kube.objects import Object, name_of
from tapestry.kube.resources import NODE_METRICS

API_SERVICES = "apiservices.apiregistration.k8s.io"
DEFAULT_PORT = 443


class ApiService(NamedTuple):
    """A group and version that a Service serves."""

    name: str
    group: str
    version: str
    service_namespace: str
    service_name: str
    port: int
    ca_bundle: str
    """PEM certificates in base64; empty for those of the system."""
    skips_verification: bool
    group_priority: int
    version_priority: int
    is_unavailable: bool
    """True if the last check failed."""

    @property
    def is_in_process(self) -> bool:
        return not self.service_name

    @property
    def path(self) -> str:
        return f"/apis/{self.group}/{self.version}"

    @property
    def url(self) -> str:
        return f"https://{self.service_name}.{self.service_namespace}.svc:{self.port}"


METRICS_KEY = METRICS_GROUP, METRICS_VERSION = NODE_METRICS.group, NODE_METRICS.version
METRICS_API = ApiService(
    *(f"{METRICS_VERSION}.{METRICS_GROUP}", METRICS_GROUP, METRICS_VERSION, "", "", DEFAULT_PORT, ""),
    skips_verification=False,
    group_priority=100,
    version_priority=100,
    is_unavailable=False,
)
"""The metrics API of a host cluster."""


def api_service_of(obj: Object) -> ApiService | None:
    """Return the APIService of an object, or None if it names no Service.

    The names become a host name, so they must be labels: anything else could name another host.
    """
    spec = obj.get("spec") or {}
    service = spec.get("service") or {}
    namespace, name = service.get("namespace", ""), service.get("name", "")
    if dns_label_error(namespace) is not None or dns_label_error(name) is not None:
        return None
    return ApiService(
        *(name_of(obj), spec.get("group", ""), spec.get("version", "")),
        *(namespace, name, service.get("port") or DEFAULT_PORT),
        *(spec.get("caBundle") or "", bool(spec.get("insecureSkipTLSVerify"))),
        *(spec.get("groupPriorityMinimum", 0), spec.get("versionPriority", 0)),
        is_unavailable=is_condition_false(obj, "Available"),
    )


class ApiServices:
    """The APIServices that forward requests, by group and version."""

    def __init__(self, store: Store, registry: ResourceRegistry, host: HostAccess) -> None:
        self._registry, self._host = registry, host
        self._by_group_version: dict[tuple[str, str], ApiService] = {}
        """An APIService has the name `version.group`, so each group version has at most one."""
        self._served: tuple[int, frozenset[tuple[str, str]]] = -1, frozenset()
        """Generation of the registry, and the group versions that this server serves itself."""
        store.on_change(API_SERVICES, self._on_change)

    def _on_change(self, event: WatchEvent) -> None:
        before = api_service_of(msgspec.json.decode(event.old.raw)) if event.old is not None else None
        if before is not None:
            self._by_group_version.pop((before.group, before.version), None)
        after = api_service_of(msgspec.json.decode(event.new.raw)) if event.new is not None else None
        if after is not None:
            self._by_group_version[after.group, after.version] = after

    def __iter__(self) -> Iterator[ApiService]:
        """Yield the forwarded group versions in the order of discovery: highest priority first."""
        metrics = self._metrics_api()
        if not self._by_group_version and metrics is None:
            return iter(())
        served = self._served_group_versions()
        forwarded = [each for key, each in self._by_group_version.items() if key not in served]
        if metrics is not None:
            forwarded.append(metrics)
        return iter(sorted(forwarded, key=discovery_order))

    def for_path(self, path: str) -> ApiService | None:
        """Return the APIService that serves a path, or None if it is not forwarded."""
        metrics = self._metrics_api()
        if not self._by_group_version and metrics is None:
            return None
        segments = path.split("/", 4)
        if len(segments) < 4 or segments[0] or segments[1] != "apis":
            return None
        key = segments[2], segments[3]
        if metrics is not None and key == METRICS_KEY:
            return metrics
        found = self._by_group_version.get(key)
        return found if found is not None and key not in self._served_group_versions() else None

    def _metrics_api(self) -> ApiService | None:
        """Return the metrics API of the host cluster, if its syncer runs and no APIService names another server."""
        return METRICS_API if self._host.syncer is not None and METRICS_KEY not in self._by_group_version else None

    def _served_group_versions(self) -> frozenset[tuple[str, str]]:
        generation = self._registry.generation
        if self._served[0] != generation:
            resources = (info.resource for info in self._registry)
            self._served = generation, frozenset((each.group, each.version) for each in resources)
        return self._served[1]

    def target_of(self, path: str) -> Target | None:
        """Return the target of a forwarded resource path, or None.

        A path with encoded or relative segments is no resource path: the server behind it could read it differently
        than the authorizer.
        """
        return unserved_target(path) if "%" not in path and self.for_path(path) is not None else None


def discovery_order(service: ApiService) -> tuple[int, str, int, tuple[int, int, int, str]]:
    return -service.group_priority, service.group, -service.version_priority, version_priority(service.version)
