"""Metadata informers for every resource that can be listed, watched, patched and deleted.

Discovery runs at the start and whenever a CustomResourceDefinition is created, deleted, or serves other versions.
Events are excluded: they are numerous, have no owners and own nothing. Aggregated APIs are excluded, too: one that is
unavailable would stop every controller that uses these informers.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from tapestry.client.client import Client
from tapestry.client.discovery import served_resources
from tapestry.controller import Informer, Manager
from tapestry.controlplane.crd_finalizer import without_schemas
from tapestry.kube.errors import KubeError, NotFound
from tapestry.kube.objects import Object, namespace_of, uid_of
from tapestry.kube.resources import API_SERVICES, CRDS, Resource
from tapestry.process.logs import logger

log = logger(__name__)

REQUIRED_VERBS = frozenset({"list", "watch", "patch", "delete"})
IGNORED_RESOURCES = frozenset({"events", "events.events.k8s.io"})
METADATA_FIELDS = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "ownerReferences", "finalizers", "deletionTimestamp"}
)
OWNER_INDEX = "owner"
DISCOVERY_RETRY_INTERVAL = 1.0
"""Seconds until discovery is retried after an error."""

Handler = Callable[[Resource, Object | None, Object | None], None]


class MetadataInformers:
    """Informers by resource name. They run while `manager` runs."""

    def __init__(self, manager: Manager) -> None:
        self.informers: dict[str, Informer] = {}
        self.resources: dict[Resource, frozenset[str]] = {}
        """All served resources and their verbs, including those without an informer."""
        self.resources_by_kind: dict[tuple[str, str], Resource] = {}
        """The served resources by group and kind."""
        self.synced = asyncio.Event()
        """Set while the informers of all served resources are synced."""
        self._client = manager.reads
        self._handlers: list[Handler] = []
        self._tasks: dict[Resource, asyncio.Task[None]] = {}
        self._generation = 0
        self._outdated = asyncio.Event()
        self._outdated.set()
        manager.informer(CRDS, transform=without_schemas).on_change(self._on_definition_change)
        manager.run_always("metadata-informers", self.run)

    def on_change(self, handler: Handler) -> None:
        """Call `handler` for every change of any object. Call this before the manager runs."""
        self._handlers.append(handler)

    def dependents(self, owner: Object) -> Iterator[tuple[Resource, Object]]:
        """Yield the objects that `owner` owns. A namespaced owner owns only objects of its own namespace."""
        for informer in self.informers.values():
            for each in informer.store.by(OWNER_INDEX, uid_of(owner)):
                if namespace_of(owner) in (None, namespace_of(each)):
                    yield informer.resource, each

    async def run(self) -> None:
        """Start and stop informers as the served resources change, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._outdated.wait()
                generation = self._generation
                try:
                    self.resources = await served_resources(self._client, await remote_group_versions(self._client))
                except KubeError as error:
                    log.warning("API discovery failed, retrying", error=str(error), pause=DISCOVERY_RETRY_INTERVAL)
                    await asyncio.sleep(DISCOVERY_RETRY_INTERVAL)
                    continue
                self.resources_by_kind = {(each.group, each.kind): each for each in self.resources}
                if generation == self._generation:
                    self._outdated.clear()
                self._update_informers(
                    group, {each for each, verbs in self.resources.items() if is_watchable(each, verbs)}
                )
                self._update_synced()

    def _on_definition_change(self, old: Object | None, new: Object | None) -> None:
        if old is None or new is None or old["spec"] != new["spec"]:
            self._generation += 1
            self._outdated.set()
            self._update_synced()

    def _update_informers(self, group: asyncio.TaskGroup, desired: set[Resource]) -> None:
        for resource in self._tasks.keys() - desired:
            self._stop_informer(resource)
        for resource in desired - self._tasks.keys():
            informer = Informer(self._client, resource, transform=metadata_only, indexers={OWNER_INDEX: owner_uids})
            self.informers[resource.name] = informer.with_metadata_only()
            for handler in self._handlers:
                informer.on_change(partial(handler, resource))
            informer.after_sync(self._update_synced)
            self._tasks[resource] = group.create_task(informer.run(), name=f"metadata-informer-{resource.name}")

    def _stop_informer(self, resource: Resource) -> None:
        """Stop the informer of a resource that is no longer served, and report its objects as deleted."""
        self._tasks.pop(resource).cancel()
        for obj in self.informers.pop(resource.name).store.list():
            for handler in self._handlers:
                handler(resource, obj, None)

    def _update_synced(self) -> None:
        if not self._outdated.is_set() and all(each.synced.is_set() for each in self.informers.values()):
            self.synced.set()
        else:
            self.synced.clear()


async def remote_group_versions(client: Client) -> set[str]:
    """Return the group versions that other servers serve."""
    try:
        services = await client.list(API_SERVICES)
    except NotFound:
        return set()
    specs = [each["spec"] for each in services]
    return {f"{spec['group']}/{spec['version']}" for spec in specs if spec.get("service")}


def is_watchable(resource: Resource, verbs: frozenset[str]) -> bool:
    return verbs >= REQUIRED_VERBS and resource.name not in IGNORED_RESOURCES


def metadata_only(obj: Object) -> Object:
    return {"metadata": {key: value for key, value in obj["metadata"].items() if key in METADATA_FIELDS}}


def owner_uids(obj: Object) -> Iterable[str]:
    return [each["uid"] for each in obj["metadata"].get("ownerReferences") or ()]
