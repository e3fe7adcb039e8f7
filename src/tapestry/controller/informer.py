"""Informers: a store kept equal to what the server has, and a word to whoever asked at each change.

An informer is shared: everyone who needs a resource with the same selectors reads one store, fed by one watch.  After a
gap in the watch the list is compared with the store, so an object that went meanwhile is still reported as gone.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Self

from tapestry.client.client import Client
from tapestry.client.discovery import is_served
from tapestry.client.watch import Changes, ListPage, ListStart, Synced, Watch
from tapestry.controller.metrics import CACHED_OBJECTS
from tapestry.controller.store import Indexer, Store
from tapestry.controller.transforms import Transform, slim
from tapestry.kube.errors import Gone, KubeError, NotFound, TooManyRequests
from tapestry.kube.objects import Object, key_of, uid_of, version_of
from tapestry.kube.resources import Resource
from tapestry.process.logs import logger

log = logger(__name__)

MAX_ERROR_LENGTH = 300
"""Characters of what is logged of an object that cannot be read."""

Handler = Callable[[Object | None, Object | None], None]
"""Told of a change as (before, after); None where the object was not, or is no more."""


class Informer:
    """Keeps `store` equal to the objects of one resource that the selectors match."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        keep: Callable[[Object], bool] | None = None,
        transform: Transform = slim,
        indexers: Mapping[str, Indexer] | None = None,
    ) -> None:
        self.resource = resource
        self.name = " ".join(filter(None, (resource.name, namespace, labels, fields)))
        """Of its series in metrics: what it selects, unless it is called something else."""
        self.store = Store(indexers)
        self.synced = asyncio.Event()
        """Set once the store held the whole list; it stays set."""
        self._client = client
        self._is_optional = False
        self._not_found = asyncio.Event()
        self._watch = Watch(
            client, resource, namespace, labels, fields, without_managed_fields=True, on_restart=self._on_watch_restart
        )
        self._keep = keep
        self._transform = transform
        self._handlers: list[Handler] = []
        self._deletion_handlers: list[Callable[[Object], None]] = []
        self._after_sync: list[Callable[[], None]] = []

    def with_name(self, name: str) -> Self:
        """Give it a name of its own in metrics."""
        self.name = name
        return self

    def with_managed_fields(self) -> Self:
        """Show metadata.managedFields to the transform; they are left out otherwise."""
        self._watch.without_managed_fields = False
        return self

    def with_metadata_only(self) -> Self:
        """Keep nothing of objects but what every kind has; nothing else is decoded."""
        self._watch.only_metadata = True
        return self

    def allow_missing(self) -> Self:
        """Take a server that says it does not know the resource for one that has none of it."""
        self._is_optional = True
        return self

    def on_change(self, handler: Handler) -> None:
        """Tell `handler` of every change from now on, and first of what the store already holds."""
        self._handlers.append(handler)
        for obj in self.store.list():
            handler(None, obj)

    def on_deletion(self, handler: Callable[[Object], None]) -> None:
        """Call `handler` with the last cached state of each object whose deletion the server reports.

        An object that is only missing from a later list is not reported here: that is no proof of its deletion.
        """
        self._deletion_handlers.append(handler)

    def after_sync(self, callback: Callable[[], None]) -> None:
        """Call back once, when the store has been filled for the first time; at once if it has been."""
        if self.synced.is_set():
            callback()
        else:
            self._after_sync.append(callback)

    async def run(self) -> None:
        """Follow the server until cancelled."""
        CACHED_OBJECTS.informers.append(self)
        try:
            async with asyncio.TaskGroup() as group:
                if self._is_optional:
                    group.create_task(self._check_absence())
                await self._follow()
        finally:
            CACHED_OBJECTS.informers.remove(self)

    async def _check_absence(self) -> None:
        """A 404 alone proves nothing: a proxy, or the wrong server, says the same.  Ask what there is."""
        while not self.synced.is_set():
            await self._not_found.wait()
            self._not_found.clear()
            try:
                if not await is_served(self._client, self.resource):
                    self._mark_synced()
            except KubeError as error:
                log.warning("cannot tell whether a resource exists", resource=self.resource.name, error=str(error))

    async def _follow(self) -> None:
        seen: set[str] = set()
        async with aclosing(self._watch.events()) as events:
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
        if old is not None and version_of(old) == version_of(obj):
            return key
        if old is not None and uid_of(old) != uid_of(obj):
            self._forget(key)  # it went and a namesake came, while we were not looking
            old = None
        try:
            new = self._transform(obj)
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # the others must still be read
            what = f"{type(error).__name__}: {error}"[:MAX_ERROR_LENGTH]
            log.warning("object left out", resource=self.resource.name, object=key[:MAX_ERROR_LENGTH], error=what)
            self._forget(key)
            return None
        self.store.put(new)
        for handler in self._handlers:
            handler(old, new)
        return key

    def _delete(self, obj: Object) -> None:
        old = self._forget(key_of(obj))
        if old is not None and uid_of(old) == uid_of(obj):
            for handler in self._deletion_handlers:
                handler(old)

    def _forget(self, key: str) -> Object | None:
        old = self.store.remove(key)
        if old is not None:
            for handler in self._handlers:
                handler(old, None)
        return old

    def _mark_synced(self) -> None:
        if not self.synced.is_set():
            self.synced.set()
            for callback in self._after_sync:
                callback()

    def _on_watch_restart(self, error: KubeError, pause: float) -> None:
        if self._is_optional and isinstance(error, NotFound):
            self._not_found.set()
            return
        # A server that starts, or has forgotten our version, is no trouble of anybody's.
        tell = log.info if isinstance(error, Gone | TooManyRequests) else log.warning
        tell("watch broke", resource=self.resource.name, error=str(error), pause=round(pause, 3))
