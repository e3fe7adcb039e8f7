"""An in-process Kubernetes API for tests of reconcilers, without sockets and on virtual time.

    api = InProcessApi([PODS, NODES], now=running_clock().now)
    client = Client(api.connect())

It is the API server of this project with an in-memory store.  `assembly` lists the features that it includes and omits.

A test can simulate conditions of real servers: reads that lag behind writes (`stale`), watches that receive nothing
(`freeze`), compacted history (`compact`), and watches that end (`disconnect`).
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from random import Random
from typing import Any

import msgspec

from tapestry.apiserver.core.requests import CallOrigin, Target, object_from_body
from tapestry.apiserver.core.storage_codec import encode_for_storage
from tapestry.apiserver.core.store import Key
from tapestry.apiserver.handlers import writes
from tapestry.client.transport import Request, Response, Stream
from tapestry.controller.testing.assembly import new_server
from tapestry.controller.testing.connection import Connection, WatchStream
from tapestry.controller.testing.storage import InstantStore
from tapestry.kube.objects import Object, name_of, namespace_of, object_named
from tapestry.kube.resources import (
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    TOKEN_REVIEWS,
    Resource,
)

POD_SPEC: Object = {"containers": [{"name": "main", "image": "busybox:1"}]}
LABELS = {"app": "something"}
WORKLOAD_SPEC: Object = {
    "selector": {"matchLabels": LABELS},
    "template": {"metadata": {"labels": LABELS}, "spec": POD_SPEC},
}
STORAGE: Object = {"storage": "1Gi"}
MINIMAL_CONTENT: Mapping[Resource, Object] = {
    PODS: {"spec": POD_SPEC},
    DEPLOYMENTS: {"spec": WORKLOAD_SPEC},
    STATEFUL_SETS: {"spec": WORKLOAD_SPEC},
    SERVICES: {"spec": {"ports": [{"port": 80}]}},
    ENDPOINT_SLICES: {"addressType": "IPv4", "endpoints": []},
    PERSISTENT_VOLUME_CLAIMS: {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": STORAGE}}},
    PERSISTENT_VOLUMES: {
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": STORAGE, "hostPath": {"path": "/somewhere"}}
    },
}
"""Required fields by kind.  Other kinds need only a name."""


def specimen(resource: Resource, name: str, namespace: str | None = None, **metadata: Any) -> Object:
    """Return a minimal object.  `metadata` adds fields, for example labels."""
    return {"metadata": {**object_named(name, namespace)["metadata"], **metadata}, **MINIMAL_CONTENT.get(resource, {})}


def everything_allowed(review: Object) -> Object:
    """Return a review status that grants every permission and authenticates every token as an administrator."""
    if review["kind"] == TOKEN_REVIEWS.kind:
        return {"authenticated": True, "user": {"username": "kubernetes-admin", "groups": ["system:masters"]}}
    return {"allowed": True}


class InProcessApi:
    """The server.  It is also a transport to itself, for tests with a single client.

    It serves `resources`.  Resources that Kubernetes does not have become custom resources with a status that accept
    any field.  `review` returns the status of an access or token review.  With a `seed`, UIDs and generated names are
    the same on every run; use different seeds for several clusters.
    """

    def __init__(
        self,
        resources: Iterable[Resource],
        now: Callable[[], datetime],
        *,
        review: Callable[[Object], Object] = everything_allowed,
        seed: int | None = None,
        is_plane: bool = False,
    ) -> None:
        """`is_plane` makes it the plane of a tenant, which allocates no addresses: its syncer writes them."""
        self._now = now
        self._store = InstantStore()
        self.review = review
        """A test may replace it."""
        self._server = new_server(resources, self._store, now, lambda body: self.review(body), Random(seed), is_plane)
        self._watches: set[WatchStream] = set()
        self._own = self.connect()

    # -- a transport

    def connect(self, *, as_syncer: bool = False) -> Connection:
        """Return a new transport for one client.  Aborting or closing it does not affect other clients.

        The syncer of a plane may write what other clients may not.
        """
        origin = CallOrigin.SYNCER if as_syncer else CallOrigin.CLIENT
        return Connection(self._server, self._watches, origin)

    async def send(self, request: Request) -> Response:
        return await self._own.send(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        return self._own.stream(request)

    def abort(self) -> None:
        self._own.abort()

    async def close(self) -> None:
        await self._own.close()

    # -- control by tests

    async def insert_unvalidated(self, resource: Resource, obj: Object) -> None:
        """Store an object that the server would reject, as if it was created under older validation rules."""
        info = self._server.registry.info_for(resource)
        target = Target(info, namespace_of(obj) or "")
        created = writes.created_object(
            info, object_from_body(target, obj), uid=self._server.verbs.new_uid(), now=self._now()
        )
        key = Key(info.storage, target.namespace, name_of(obj))
        await self._store.put(key, None, encode_for_storage(info, created))

    def stale(self, revisions: int | None) -> None:
        """Make reads lag that many revisions behind writes from now on.  None lets them catch up."""
        self._store.lag(revisions or 0)

    def freeze(self) -> None:
        """Stop watch events except bookmarks.  Reads are not affected."""
        self._store.freeze()

    def thaw(self) -> None:
        """Deliver all missed watch events, in order."""
        self._store.thaw()

    def compact(self) -> None:
        """Drop the history: a watch or a page that needs it gets 410 Expired."""
        self._store.compact()

    def disconnect(self) -> None:
        """End every watch, as on a server restart.  Clients resume at their last version."""
        for watch in self._watches:
            watch.end()

    def dump(self) -> list[Object]:
        """Return every object in its latest state, sorted by resource, namespace and name."""
        latest = self._store.latest
        return [msgspec.json.decode(latest[key].raw) for key in sorted(latest)]
