"""A Kubernetes API in this process, for the tests of reconcilers: no sockets, no waiting, and time as you set it.

    api = InProcessApi([PODS, NODES], now=running_clock().now)
    client = Client(api.connect())

It is this project's API server over a store in memory; `assembly` says what it has and what it goes without.

A test can put it in the states that servers get into: reads that lag behind the writes (`stale`), watches that are not
told (`freeze`), a history that is gone (`compact`), and watches that end (`disconnect`).
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from random import Random

import msgspec

from tapestry.apiserver import writes
from tapestry.apiserver.requests import Target
from tapestry.apiserver.storage.log import Key
from tapestry.apiserver.verbs import encode_for_storage
from tapestry.client.transport import Request, Response, Stream
from tapestry.controller.testing.assembly import new_server
from tapestry.controller.testing.connection import Connection, WatchStream
from tapestry.controller.testing.storage import InstantStore
from tapestry.kube.objects import Object, name_of, namespace_of
from tapestry.kube.resources import TOKEN_REVIEWS, Resource


def everything_allowed(review: Object) -> Object:
    """The status of a review: every right is granted, and every token is an administrator's."""
    if review["kind"] == TOKEN_REVIEWS.kind:
        return {"authenticated": True, "user": {"username": "kubernetes-admin", "groups": ["system:masters"]}}
    return {"allowed": True}


class InProcessApi:
    """The server; it is also a transport to itself, for tests with a single client.

    It serves `resources`; those that Kubernetes does not have are custom ones with a status, of which any field is
    kept.  `review` gives the status of an access or token review.  With a `seed`, UIDs and generated names are the same
    on every run; give each cluster of a test its own.
    """

    def __init__(
        self,
        resources: Iterable[Resource],
        now: Callable[[], datetime],
        *,
        review: Callable[[Object], Object] = everything_allowed,
        seed: int | None = None,
    ) -> None:
        self._now = now
        self._store = InstantStore()
        self.review = review
        """A test may change it."""
        self._server = new_server(resources, self._store, now, lambda asked: self.review(asked), Random(seed))
        self._watches: set[WatchStream] = set()
        self._own = self.connect()

    # -- a transport

    def connect(self) -> Connection:
        """A transport of its own for one client: to abort or close it touches no other client."""
        return Connection(self._server, self._watches)

    async def send(self, request: Request) -> Response:
        return await self._own.send(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        return self._own.stream(request)

    def abort(self) -> None:
        self._own.abort()

    async def close(self) -> None:
        await self._own.close()

    # -- what a test may do to a server

    async def insert_unvalidated(self, resource: Resource, obj: Object) -> None:
        """Have an object that the server would refuse, as if it were from the time of other rules."""
        row = self._server.registry.info_for(resource)
        target = Target(row, namespace_of(obj) or "")
        made = writes.created_object(
            row, writes.object_from_body(target, obj), uid=self._server.verbs.new_uid(), now=self._now()
        )
        await self._store.put(Key(row.storage, target.namespace, name_of(obj)), None, encode_for_storage(row, made))

    def stale(self, revisions: int | None) -> None:
        """Let get, list and watch lag that many revisions behind the writes from now on; None lets them catch up."""
        self._store.lag(revisions or 0)

    def freeze(self) -> None:
        """Tell watches nothing from now on but bookmarks, while reads go on."""
        self._store.freeze()

    def thaw(self) -> None:
        """Tell watches all that they missed, in order."""
        self._store.thaw()

    def compact(self) -> None:
        """Forget all history: a watch or a page that needs any of it gets 410 Expired."""
        self._store.compact()

    def disconnect(self) -> None:
        """End every watch, as a server does that restarts; clients watch again from where they were."""
        for watch in self._watches:
            watch.end()

    def dump(self) -> list[Object]:
        """Every object as it truly is, by resource, namespace and name."""
        truth = self._store.latest
        return [msgspec.json.decode(truth[key].raw) for key in sorted(truth)]
