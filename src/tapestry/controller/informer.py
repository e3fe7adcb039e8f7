"""Informers: stores that follow the objects of a server, and handlers of their changes.

An informer is shared: all users of a resource with the same selectors read one store, fed by one watch.  After a gap in
the watch, the list is compared with the store, so objects deleted meanwhile are still reported.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Generic, Self

from tapestry.client.client import Client
from tapestry.client.discovery import is_served
from tapestry.client.metrics import RESOURCE_LABEL
from tapestry.client.watch import Changes, ListPage, ListStart, Synced, Watch
from tapestry.controller.metrics import CACHED_OBJECTS
from tapestry.controller.store import Indexer, Store, T
from tapestry.controller.transforms import Transform, slim
from tapestry.kube.errors import Gone, KubeError, NotFound, TooManyRequests
from tapestry.kube.objects import Object, identity_of, key_of, uid_of, version_of
from tapestry.kube.resources import Resource
from tapestry.process.logs import logger

log = logger(__name__)

MAX_ERROR_LENGTH = 300
"""Maximum characters of a key or an error in the log."""

Handler = Callable[[T | None, T | None], None]
"""Called with the old and new state of an object.  None means that it did not exist or does not exist any more."""


class ObjectCache(Generic[T]):
    """Objects of one resource in a store, and the handlers of their changes."""

    def __init__(self, resource: Resource, store: Store[T], synced: asyncio.Event, name: str = "") -> None:
        self.resource = resource
        self.name = name or resource.name
        """Label value in metrics.  Default: the resource and its selectors."""
        self.store = store
        self.synced = synced
        """Set once the store has held the complete list.  Never cleared."""
        self._handlers: list[Handler[T]] = []
        self._deletion_handlers: list[Callable[[T], None]] = []
        self._after_sync: list[Callable[[], None]] = []

    def with_name(self, name: str) -> Self:
        """Set the name in metrics."""
        self.name = name
        return self

    def on_change(self, handler: Handler[T]) -> None:
        """Call `handler` for every object in the store now, and for every later change."""
        self._handlers.append(handler)
        for obj in self.store.list():
            handler(None, obj)

    def on_deletion(self, handler: Callable[[T], None]) -> None:
        """Call `handler` with the last cached state of each object whose deletion the server reports.

        Objects that are only missing from a later list are not reported here: that does not prove their deletion.
        """
        self._deletion_handlers.append(handler)

    def forget_handlers(self) -> None:
        """Call no handler any more.  Handlers usually refer to this informer."""
        self._handlers.clear()
        self._deletion_handlers.clear()
        self._after_sync.clear()

    def after_sync(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, after the first sync.  If the store is synced already, call it now."""
        if self.synced.is_set():
            callback()
        else:
            self._after_sync.append(callback)

    def _report_change(self, old: T | None, new: T | None) -> None:
        for handler in self._handlers:
            handler(old, new)

    def _report_deletion(self, old: T) -> None:
        for handler in self._deletion_handlers:
            handler(old)

    def _report_sync(self) -> None:
        for callback in self._after_sync:
            callback()


class Informer(ObjectCache[T]):
    """Keep `store` equal to the objects of one resource that match the selectors, as `transform` returns them."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        keep: Callable[[Object], bool] | None = None,
        transform: Transform[T] = slim,  # type: ignore[assignment]  # T is a dict by default
        indexers: Mapping[str, Indexer[T]] | None = None,
    ) -> None:
        name = " ".join(filter(None, (resource.name, namespace, labels, fields)))
        super().__init__(resource, Store(indexers), asyncio.Event(), name)
        self._client = client
        self._is_optional = False
        self._not_found = asyncio.Event()
        self._watch = Watch(client, resource, namespace, labels, fields, without_managed_fields=True)
        self._keep = keep
        self._transform = transform

    def with_managed_fields(self) -> Self:
        """Pass metadata.managedFields to the transform.  They are omitted by default."""
        self._watch.without_managed_fields = False
        return self

    def with_metadata_only(self) -> Self:
        """Store only metadata.  Other fields are not decoded."""
        self._watch.only_metadata = True
        return self

    def allow_missing(self) -> Self:
        """Treat the resource as empty if the server does not serve it."""
        self._is_optional = True
        return self

    async def run(self) -> None:
        """Follow the server until cancelled."""
        label = RESOURCE_LABEL.get()(self.resource.name)
        CACHED_OBJECTS.labels[self] = label, self.name if label == self.resource.name else label
        try:
            if not self._is_optional:
                await self._follow()
                return
            async with asyncio.TaskGroup() as group:
                group.create_task(self._check_absence())
                await self._follow()
        finally:
            del CACHED_OBJECTS.labels[self]

    async def _check_absence(self) -> None:
        """Check with API discovery after a 404: a proxy or the wrong server responds with 404, too."""
        while not self.synced.is_set():
            await self._not_found.wait()
            self._not_found.clear()
            try:
                if not await is_served(self._client, self.resource):
                    self._mark_synced()
            except KubeError as error:
                log.warning("resource discovery failed", resource=self.resource.name, error=str(error))

    async def _follow(self) -> None:
        seen: set[str] = set()
        watch = replace(self._watch, on_restart=self._on_watch_restart)
        async with aclosing(watch.events()) as events:
            async for event in events:
                match event:
                    case Changes(changes):
                        for type, obj in changes:
                            if type == "DELETED":
                                self._delete(obj)
                            else:
                                self._put(obj)
                    case ListPage(items):
                        seen.update(key for obj in items if (key := self._put(obj)) is not None)
                    case ListStart():
                        seen = set()
                    case Synced():
                        for key in self.store:
                            if key not in seen:
                                self._forget(key)
                        seen = set()
                        self._mark_synced()

    def _put(self, obj: Object) -> str | None:
        if self._keep is not None and not self._keep(obj):
            self._forget(key_of(obj))
            return None
        key = key_of(obj)
        old = self.store.get(key)
        if old is not None:
            uid, version = identity_of(old)
            if version == version_of(obj):
                return key
            if uid != uid_of(obj):
                self._forget(key)  # deleted and recreated during a gap of the watch
                old = None
        try:
            new = self._transform(obj)
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # other objects must still be cached
            name, text = key[:MAX_ERROR_LENGTH], f"{type(error).__name__}: {error}"[:MAX_ERROR_LENGTH]
            log.warning("object not cached: transform failed", resource=self.resource.name, object=name, error=text)
            self._forget(key)
            return None
        self.store.put(key, new)
        self._report_change(old, new)
        return key

    def _delete(self, obj: Object) -> None:
        old = self._forget(key_of(obj))
        if old is not None and identity_of(old)[0] == uid_of(obj):
            self._report_deletion(old)

    def _forget(self, key: str) -> T | None:
        old = self.store.remove(key)
        if old is not None:
            self._report_change(old, None)
        return old

    def _mark_synced(self) -> None:
        if not self.synced.is_set():
            self.synced.set()
            self._report_sync()

    def _on_watch_restart(self, error: KubeError, pause: float) -> None:
        if self._is_optional and isinstance(error, NotFound):
            self._not_found.set()
            return
        # A server that is starting, or has compacted our version, is expected.
        write = log.info if isinstance(error, Gone | TooManyRequests) else log.warning
        write("watch restarted", resource=self.resource.name, error=str(error), pause=round(pause, 3))
