"""A Kubernetes API in this process, for the tests of reconcilers: no sockets, no waiting, and time as you set it.

    api = InProcessApi([PODS, NODES], now=running_clock().now)
    client = Client(api.connect())

It keeps what reconcilers depend on: one growing resourceVersion, generations, the status subresource, conflicts and
preconditions, finalizers and graceful deletion, consistent pages, selectors, and watches with bookmarks, streamed lists
and the error Expired.  It has no validation, defaults, admission, rights or garbage collection.

A test can put it in the states that servers get into: reads that lag behind the writes (`stale`), watches that are not
told (`freeze`), a history that is gone (`compact`), and watches that end (`disconnect`).
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from random import Random
from typing import Any
from urllib.parse import unquote

import msgspec

from tapestry.apiserver import refusals
from tapestry.client.transport import JSON, Request, Response, Stream
from tapestry.controller.testing import writes
from tapestry.controller.testing.connection import Connection
from tapestry.controller.testing.discovery import discovered
from tapestry.controller.testing.storage import Storage
from tapestry.controller.testing.verbs import Target, Verbs, number
from tapestry.controller.testing.watches import Watch
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import Object
from tapestry.kube.resources import (
    ACCESS_REVIEWS,
    PODS,
    SELF_ACCESS_REVIEWS,
    SERVICE_ACCOUNTS,
    TOKEN_REVIEWS,
    Resource,
)
from tapestry.kube.strategic import PatchSchema

REVIEWS = (TOKEN_REVIEWS, ACCESS_REVIEWS, SELF_ACCESS_REVIEWS)
VERSION = {"major": "1", "minor": "34", "gitVersion": "v1.34.0+tapestry"}
APPLY = "application/apply-patch+yaml"
OF_PODS = ("binding", "eviction", "resize", "ephemeralcontainers")
"""Subresources of pods; through the last two a pod's spec is patched, and any part of it."""


def everything_allowed(review: Object) -> Object:
    """The status of a review: every right is granted, and every token is an administrator's."""
    if review["kind"] == TOKEN_REVIEWS.kind:
        return {"authenticated": True, "user": {"username": "kubernetes-admin", "groups": ["system:masters"]}}
    return {"allowed": True}


class InProcessApi:
    """The server; it is also a transport to itself, for tests with a single client.

    Each of `resources` has a status subresource unless it is among `without_status`.  Strategic merge patches need the
    resource's schema among `schemas`, else lists are replaced whole.  `review` gives the status of an access or token
    review.  Watches reach at least `history // 2` changes back.  With a `seed`, UIDs and generated names are the same
    on every run; give each cluster of a test its own.
    """

    def __init__(
        self,
        resources: Iterable[Resource],
        now: Callable[[], datetime],
        *,
        without_status: Iterable[Resource] = (),
        schemas: Mapping[Resource, PatchSchema] | None = None,
        review: Callable[[Object], Object] = everything_allowed,
        history: int = 10_000,
        seed: int | None = None,
    ) -> None:
        self._resources = {(each.group, each.version, each.plural): each for each in (*resources, *REVIEWS)}
        self._storage = Storage(history)
        random = Random(seed)
        salt = random.getrandbits(64)
        self._verbs = Verbs(self._storage, now, frozenset(without_status), schemas or {}, random, salt)
        self._review = review
        self._watches: set[Watch] = set()
        self._own = self.connect()

    # -- a transport

    def connect(self) -> Connection:
        """A transport of its own for one client: to abort or close it touches no other client."""
        return Connection(self._answer, self._watches.discard)

    async def send(self, request: Request) -> Response:
        return await self._own.send(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        return self._own.stream(request)

    def abort(self) -> None:
        self._own.abort()

    async def close(self) -> None:
        await self._own.close()

    # -- what a test may do to a server

    def stale(self, revisions: int | None) -> None:
        """Let get, list and watch lag that many revisions behind the writes; None lets them catch up."""
        self._storage.lag = revisions or 0
        self._stir()

    def freeze(self) -> None:
        """Tell watches nothing from now on but bookmarks, while reads go on."""
        self._storage.frozen = self._storage.revision

    def thaw(self) -> None:
        """Tell watches all that they missed, in order."""
        self._storage.frozen = None
        self._stir()

    def compact(self) -> None:
        """Forget all history: a watch or a page that needs any of it gets 410 Expired."""
        self._storage.compact(self._storage.revision)
        self._stir()

    def disconnect(self) -> None:
        """End every watch, as a server does that restarts; clients watch again from where they were."""
        for watch in self._watches:
            watch.end()

    def dump(self) -> list[Object]:
        """Every object as it truly is, by resource, namespace and name."""
        objects = self._storage.at(self._storage.revision)
        order = sorted(objects, key=lambda key: (key.resource.name, key.namespace, key.name))
        return [objects[key] for key in order]

    # -- answers

    def _answer(self, request: Request) -> Response | Watch:
        """Do what `request` asks, at once."""
        try:
            code, found = self._served(request)
        except ApiError as error:
            wait = error.details.get("retryAfterSeconds")
            return answered(error.code, error.status(), {} if wait is None else {"retry-after": str(wait)})
        if isinstance(found, Watch):
            self._watches.add(found)
            return found
        if request.method != "GET":
            self._stir()
        return answered(code, found, {})

    def _stir(self) -> None:
        for watch in self._watches:
            watch.stir()

    def _served(self, request: Request) -> tuple[int, Object | Watch]:
        if request.path == "/version":
            return 200, VERSION
        if request.method == "GET" and (found := discovered(request.path, self._resources.values())):
            return 200, found
        target = self._target(request.path)
        return self._served_object(target, request) if target.name else self._served_collection(target, request)

    def _served_collection(self, target: Target, request: Request) -> tuple[int, Object | Watch]:
        body, query = decoded(request.body), request.query
        match request.method:
            case "POST" if target.resource in REVIEWS:
                review = writes.checked(target.resource, None, None, body)
                return 201, {**review, "status": self._review(review)}
            case "GET" if query.get("watch") in ("1", "true"):
                return 200, self._verbs.watch(target, query)
            case "GET":
                return 200, self._verbs.list(target, query)
            case "POST":
                return 201, self._verbs.create(target, body, query)
            case "DELETE":
                return 200, self._verbs.delete_collection(target, *deletion(body, query))
        raise refusals.not_allowed()

    def _served_object(self, target: Target, request: Request) -> tuple[int, Object]:
        body, query, verbs = decoded(request.body), request.query, self._verbs
        match request.method, target.subresource:
            case "GET", None | "status":
                return 200, verbs.get(target, query)
            case "PUT", None | "status":
                return 200, verbs.replace(target, body, query)
            case "PATCH", None | "status" | "resize" | "ephemeralcontainers":
                if request.content_type == APPLY:
                    return verbs.apply(target, body, query)
                return 200, verbs.patch(target, request.content_type, body, query)
            case "DELETE", None:
                return 200, verbs.delete(target, *deletion(body, query))
            case "POST", "binding":
                return 201, verbs.bind(target, body, query)
            case "POST", "eviction":
                return 201, verbs.evict(target, body, query)
            case "POST", "token":
                return 201, verbs.token(target, body)
        raise refusals.not_allowed()

    def _target(self, path: str) -> Target:
        match [unquote(each) for each in path.strip("/").split("/")]:
            case ["api", version, *rest]:
                group = ""
            case ["apis", group, version, *rest]:
                pass
            case _:
                raise refusals.no_such_path()
        namespace = None
        if rest[:1] == ["namespaces"] and len(rest) > 2 and rest[2] != "status":
            namespace, rest = rest[1], rest[2:]
        resource = self._resources.get((group, version, rest[0])) if 1 <= len(rest) <= 3 else None
        if resource is None:
            raise refusals.no_such_path()
        target = Target(resource, namespace, *rest[1:])
        if not self._exists(target):
            raise refusals.no_such_path()
        return target

    def _exists(self, target: Target) -> bool:
        resource = target.resource
        if target.namespace is None and resource.namespaced and target.name is not None:
            return False
        if target.namespace is not None and not resource.namespaced:
            return False
        match target.subresource:
            case None:
                return True
            case "status":
                return resource not in self._verbs.without_status
            case subresource if subresource in OF_PODS:
                return resource == PODS
        return target.subresource == "token" and resource == SERVICE_ACCOUNTS


def answered(code: int, body: Object, headers: Mapping[str, str]) -> Response:
    return Response(code, {"content-type": JSON, **headers}, msgspec.json.encode(body))


def decoded(body: bytes | None) -> Any:
    try:
        return msgspec.json.decode(body) if body else None
    except msgspec.DecodeError as error:
        raise refusals.bad_request(f"the body cannot be decoded: {error}") from error


def deletion(body: Any, query: Mapping[str, str]) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """The options of a deletion and its query: both may come in the body."""
    options = body or {}
    if "gracePeriodSeconds" in query:
        options = {**options, "gracePeriodSeconds": number(query["gracePeriodSeconds"])}
    return options, {**query, "dryRun": "All"} if options.get("dryRun") else query
