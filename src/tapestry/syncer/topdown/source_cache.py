"""The ConfigMaps and Secrets of the virtual cluster, in the namespaces of pods of ours.

Such a namespace is followed from its first pod on, and for a while after its last: pods of a workload come and go.  Of
each object a digest is kept, of those that nobody refers to as well, for somebody may refer to one before it changes
or goes, and that is seen then, too.  Data is read when it is copied, and does not stay.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from tapestry.controller import Informer, Result
from tapestry.kube.objects import Object, key_of
from tapestry.kube.resources import CONFIGMAPS, SECRETS, Resource
from tapestry.syncer.cache_transforms import digest_only
from tapestry.syncer.context import SyncContext
from tapestry.syncer.topdown.namespace_informers import NamespaceInformers

COPIED_RESOURCES: dict[str, Resource] = {resource.plural: resource for resource in (CONFIGMAPS, SECRETS)}
IDLE_TIMEOUT = timedelta(minutes=1)
"""For how long a namespace is followed without a pod."""


@dataclass
class SourceCache:
    """Knows what there is to copy; keys are as in `secrets/team-a/password`."""

    context: SyncContext
    on_change: Callable[[str, Object | None, Object | None], None]
    """Told of a change as (key, before, after)."""
    after_sync: Callable[[str], None]
    """Told of a namespace once all that it has of a kind is known."""
    idle_since: dict[str, datetime | None] = field(default_factory=dict, init=False)
    """The namespaces that are followed; None where pods are."""
    informers: dict[str, NamespaceInformers] = field(init=False)

    def __post_init__(self) -> None:
        self.informers = {kind: NamespaceInformers(partial(self._informer, kind)) for kind in COPIED_RESOURCES}

    def is_synced(self, key: str) -> bool:
        """Whether everything of that kind and namespace has been seen: before, nothing that is missing is missing."""
        kind, namespace, _ = key.split("/", 2)
        return self.informers[kind].synced_informer(namespace) is not None

    def get(self, key: str) -> Object | None:
        """A source as `seen`, where it is known."""
        kind, namespace, name = key.split("/", 2)
        informer = self.informers[kind].synced_informer(namespace)
        return informer.store.get(f"{namespace}/{name}") if informer is not None else None

    def is_up_to_date(self, namespace: str) -> bool:
        """Whether `reconcile` would change nothing now: the namespace is followed if, and only if, it has pods."""
        is_followed = namespace in self.idle_since and self.idle_since[namespace] is None
        return is_followed == any(self.context.virtual_pods.store.iter_by("namespace", namespace))

    async def reconcile(self, namespace: str) -> Result | None:
        """Follow a namespace for as long as there is reason to."""
        if any(self.context.virtual_pods.store.iter_by("namespace", namespace)):
            self.idle_since[namespace] = None
        elif namespace in self.idle_since:
            now = self.context.now()
            since = self.idle_since[namespace] = self.idle_since[namespace] or now
            if now < since + IDLE_TIMEOUT:
                return Result(requeue_at=since + IDLE_TIMEOUT)
            del self.idle_since[namespace]
        for each in self.informers.values():
            each.set_namespaces(self.idle_since)
        return None

    def _informer(self, kind: str, namespace: str) -> Informer:
        informer = Informer(
            self.context.manager.reads, COPIED_RESOURCES[kind], namespace=namespace, transform=digest_only
        )
        informer.with_name(f"virtual_{kind}")
        informer.on_change(partial(self._changed, kind))
        informer.after_sync(lambda: self.after_sync(namespace))
        return informer

    def _changed(self, kind: str, old: Object | None, new: Object | None) -> None:
        if (obj := new or old) is not None:
            self.on_change(f"{kind}/{key_of(obj)}", old, new)
