"""Cache of the ConfigMaps and Secrets in the virtual namespaces of our pods.

A namespace is watched from its first pod on, and for a while after its last, because pods of a workload are replaced
often. The cache keeps a digest of every object, also of unreferenced ones, because a pod may refer to one later. Data
is read when it is copied, and not kept.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from tapestry.client.client import Client
from tapestry.controller import Informer, Result
from tapestry.kube.objects import Object, key_of
from tapestry.kube.resources import CONFIGMAPS, SECRETS, Resource
from tapestry.syncer.cache_transforms import digest_only
from tapestry.syncer.topdown.namespace_informers import NamespaceInformers
from tapestry.syncer.views import VirtualPod

COPIED_RESOURCES: dict[str, Resource] = {resource.plural: resource for resource in (CONFIGMAPS, SECRETS)}
IDLE_TIMEOUT = timedelta(minutes=1)
"""Time for which a namespace without pods stays watched."""


@dataclass
class SourceCache:
    """Watches the sources of copies; keys are as in `secrets/team-a/password`."""

    virtual_pods: Informer[VirtualPod]
    client: Client
    now: Callable[[], datetime]
    on_change: Callable[[str, Object | None, Object | None], None]
    """Called for each change with (key, before, after)."""
    after_sync: Callable[[str], None]
    """Called with a namespace once all its objects of a kind are known."""
    idle_since: dict[str, datetime | None] = field(default_factory=dict, init=False)
    """Watched namespaces, with the time since which they have no pods; None if they have some."""
    informers: dict[str, NamespaceInformers] = field(init=False)

    def __post_init__(self) -> None:
        self.informers = {kind: NamespaceInformers(partial(self._informer, kind)) for kind in COPIED_RESOURCES}

    def is_synced(self, key: str) -> bool:
        """Return whether the cache of that kind and namespace is filled. Before that, a missing object may exist."""
        kind, namespace, _ = key.split("/", 2)
        return self.informers[kind].synced_informer(namespace) is not None

    def get(self, key: str) -> Object | None:
        """Return the digest view of a source if it is known."""
        kind, namespace, name = key.split("/", 2)
        informer = self.informers[kind].synced_informer(namespace)
        return informer.store.get(f"{namespace}/{name}") if informer is not None else None

    def is_up_to_date(self, namespace: str) -> bool:
        """Return whether `reconcile` would change nothing: the namespace is watched if and only if it has pods."""
        is_followed = namespace in self.idle_since and self.idle_since[namespace] is None
        return is_followed == any(self.virtual_pods.store.iter_by("namespace", namespace))

    async def reconcile(self, namespace: str) -> Result | None:
        """Watch a namespace while it has pods, and some time longer."""
        if any(self.virtual_pods.store.iter_by("namespace", namespace)):
            self.idle_since[namespace] = None
        elif namespace in self.idle_since:
            now = self.now()
            since = self.idle_since[namespace] = self.idle_since[namespace] or now
            if now < since + IDLE_TIMEOUT:
                return Result(requeue_at=since + IDLE_TIMEOUT)
            del self.idle_since[namespace]
        for informers in self.informers.values():
            informers.set_namespaces(self.idle_since)
        return None

    def _informer(self, kind: str, namespace: str) -> Informer:
        informer = Informer(self.client, COPIED_RESOURCES[kind], namespace=namespace, transform=digest_only)
        informer.with_name(f"virtual_{kind}")
        informer.on_change(partial(self._changed, kind))
        informer.after_sync(lambda: self.after_sync(namespace))
        return informer

    def _changed(self, kind: str, old: Object | None, new: Object | None) -> None:
        if (obj := new or old) is not None:
            self.on_change(f"{kind}/{key_of(obj)}", old, new)
