"""The verbs: one set for every kind.

A `Client` turns verbs into requests and answers into objects or errors of `tapestry.kube.errors`.  It asks again only
where that is safe: a read that got no answer, a request that never left, and whatever the server itself put off with
Retry-After.  A write that may have happened is never repeated here; a level-triggered reconciler looks again instead.

A client made with a `fence` belongs to a leader.  Before each write it asks the fence, and it refuses a write that
could do harm if it arrived late: every patch and replace must carry a resourceVersion, every delete a UID and a
resourceVersion, every create a name of its own.
"""

import asyncio
import dataclasses
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import StrEnum
from typing import Any

from tapestry.client.answers import ANSWERS, ENCODER, OBJECTS, SLICE, Page, complete, decoded, gc_paused, understood
from tapestry.client.metrics import count_request
from tapestry.client.transport import Request, Response, Stream, Transport
from tapestry.kube.errors import ApiError, TransportError, error_from_body
from tapestry.kube.objects import Object, name_of, named, namespace_of, uid_of, version_of
from tapestry.kube.patches import owned_patch
from tapestry.kube.resources import ACCESS_REVIEWS, PODS, SELF_ACCESS_REVIEWS, SERVICE_ACCOUNTS, Resource
from tapestry.process.audit import Audit, Write

ATTEMPTS = 5
"""How often one request is sent at most."""
LONGEST_WAIT = 30.0
"""Seconds: a server that asks for more than this gets its answer passed on."""
PAGE = 500
LONGEST_COMPLAINT = 1 << 20
"""Bytes of an answer that should have been a log and says why it is none."""
FOLLOWED = 24 * 3600.0
"""Seconds for a log that is followed to begin: some servers say nothing before the container does."""


class PatchType(StrEnum):
    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


class Propagation(StrEnum):
    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


class Unguarded(ValueError):
    """A leader's write that could do harm if it arrived late."""


class Client:
    """Talks to one API server through a transport that it owns.  Objects it returns belong to the caller."""

    def __init__(
        self,
        transport: Transport,
        *,
        fence: Callable[[], None] | None = None,
        audit: Audit | None = None,
        identity: str = "tapestry",
    ) -> None:
        self.transport = transport
        self.identity = identity
        self._fence = fence
        self._audit = audit

    # -- reading

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, subresource: str | None = None
    ) -> Object:
        request = Request("GET", resource.path(namespace, name, subresource))
        return await self._object("get", words(resource, subresource), request)

    async def list(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = "", page: int = PAGE
    ) -> list[Object]:
        """Every object, of one moment.  Raises Gone when the list took longer than the server keeps its pages."""
        return [
            item
            async for part in self.pages(resource, namespace, labels=labels, fields=fields, page=page)
            for item in part.items
        ]

    async def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        page: int = PAGE,
        lean: bool = False,
        only_metadata: bool = False,
    ) -> AsyncIterator[Page]:
        """The parts of one consistent list, each decoded only when it is asked for; the server is asked for `page`.

        `lean` leaves out metadata.managedFields: a third of a list, and caches do not read them; `only_metadata` all
        that differs from kind to kind.
        """
        query, doing = selection(labels, fields) | {"limit": str(page)}, f"list {resource.name}"
        identity = {"apiVersion": resource.api_version, "kind": resource.kind}
        while True:
            answer = await self._send("list", resource.name, Request("GET", resource.path(namespace), query))
            found = decoded(ANSWERS, answer.body, doing)
            raws = found.items or []
            for begin in range(0, len(raws) or 1, SLICE):
                with gc_paused(), understood(doing):
                    some = raws[begin : begin + SLICE]
                    items = [complete(raw, lean=lean, only_metadata=only_metadata) | identity for raw in some]
                yield Page(found.metadata, items)
            if not found.metadata.continue_:
                return
            query = {**query, "continue": found.metadata.continue_}

    def stream(
        self, resource: Resource, namespace: str | None, query: Mapping[str, str]
    ) -> AbstractAsyncContextManager[Stream]:
        """A raw watch; `tapestry.client.watch` makes events of it."""
        return self.transport.stream(Request("GET", resource.path(namespace), {"watch": "1", **query}))

    @asynccontextmanager
    async def log(
        self, name: str, namespace: str | None, query: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """What a container of a pod wrote, in pieces as they come; `query` are PodLogOptions.

        An error is raised when the context is entered, or by the connection later on.
        """
        request = Request("GET", PODS.path(namespace, name, "log"), query, accept="*/*")
        if query.get("follow") == "true":
            request = dataclasses.replace(request, timeout=FOLLOWED)
        async with self.transport.stream(request) as stream:
            count_request("get", words(PODS, "log"), str(stream.status))
            if stream.status >= 300:
                raise error_from_body(stream.status, await beginning(stream.chunks()), doing=str(request))
            yield stream.chunks()

    async def version(self) -> Object:
        """What the server says of itself under /version."""
        return await self._object("get", "version", Request("GET", "/version"))

    async def serves(self, resource: Resource) -> bool:
        """Whether the server has the resource, as its own account of groups and resources says.

        Raises where there is no such account: what answers is no API server, and its 404 says nothing.
        """
        if resource.group:
            groups = await self._discovered("/apis", "APIGroupList")
            versions = {each["groupVersion"] for group in groups["groups"] for each in group["versions"]}
            if resource.api_version not in versions:
                return False
        found = await self._discovered(resource.root, "APIResourceList")
        return any(each["name"] == resource.plural for each in found["resources"])

    async def resources(self) -> dict[Resource, frozenset[str]]:
        """What the server has, each resource in the version that it prefers, and the verbs that it can be used with."""
        groups = (await self._discovered("/apis", "APIGroupList"))["groups"]
        versions = [each["groupVersion"] for group in groups for each in group["versions"]]
        found: dict[tuple[str, str], tuple[Resource, frozenset[str]]] = {}
        for path, prefix in [("/api/v1", "v1"), *((f"/apis/{each}", each) for each in versions)]:
            group, _, version = prefix.rpartition("/")
            for each in (await self._discovered(path, "APIResourceList"))["resources"]:
                resource = Resource(group, version, each["kind"], each["name"], each["namespaced"])
                if "/" not in resource.plural:
                    found.setdefault((group, resource.plural), (resource, frozenset(each["verbs"])))
        return dict(found.values())

    # -- writing

    async def create(
        self, resource: Resource, obj: Object, *, subresource: str | None = None, dry_run: bool = False
    ) -> Object:
        """Create `obj`; with a subresource, post `obj` to that of the object it names."""
        if not obj["metadata"].get("name"):
            self._guard("create", resource, "a name of its own, not generateName")
        name = name_of(obj) if subresource else None
        path = resource.path(namespace_of(obj), name, subresource)
        return await self._write(
            "create", resource, obj, Request("POST", path, dry(dry_run), ENCODER.encode(obj)), subresource=subresource
        )

    async def replace(
        self, resource: Resource, obj: Object, *, subresource: str | None = None, dry_run: bool = False
    ) -> Object:
        """Replace the object by `obj`, if it is still at `obj`'s resourceVersion where it has one."""
        if not version_of(obj):
            self._guard("replace", resource, "metadata.resourceVersion")
        path = resource.path(namespace_of(obj), name_of(obj), subresource)
        return await self._write(
            "replace", resource, obj, Request("PUT", path, dry(dry_run), ENCODER.encode(obj)), subresource=subresource
        )

    async def patch(
        self,
        resource: Resource,
        target: Object,
        patch: Any,
        *,
        type: PatchType = PatchType.MERGE,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Patch `target`, if it is still at its resourceVersion; a `target` without one is patched as it stands."""
        version = version_of(target)
        if not version:
            self._guard("patch", resource, "metadata.resourceVersion")
        body = at_version(patch, version, type) if version else patch
        path = resource.path(namespace_of(target), name_of(target), subresource)
        request = Request("PATCH", path, dry(dry_run), ENCODER.encode(body), content_type=type)
        return await self._write("patch", resource, target, request, subresource=subresource)

    async def apply(
        self,
        resource: Resource,
        obj: Object,
        *,
        manager: str = "tapestry",
        force: bool = False,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Server-side apply: `obj` is what `manager` wants of the object; Conflict names other managers' fields."""
        if not version_of(obj):
            self._guard("apply", resource, "metadata.resourceVersion")
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        query = {"fieldManager": manager, "force": "true" if force else "false", **dry(dry_run)}
        path = resource.path(namespace_of(obj), name_of(obj), subresource)
        request = Request("PATCH", path, query, ENCODER.encode(body), content_type=PatchType.APPLY)
        return await self._write("apply", resource, obj, request, subresource=subresource)

    async def delete(
        self,
        resource: Resource,
        target: Object,
        *,
        grace_seconds: int | None = None,
        propagation: Propagation | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Delete `target` and no other: its UID and resourceVersion, where it has them, are preconditions.

        Returns the object as it goes, or the Status that says it is gone.
        """
        if not (uid_of(target) and version_of(target)):
            self._guard("delete", resource, "metadata.uid and metadata.resourceVersion")
        body = deletion(target, grace_seconds, propagation)
        if dry_run:
            body["dryRun"] = ["All"]  # a server that finds options in the body does not look at the query
        path = resource.path(namespace_of(target), name_of(target))
        return await self._write("delete", resource, target, Request("DELETE", path, {}, ENCODER.encode(body)))

    async def delete_collection(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> None:
        """Delete all that the selectors match.  A leader may not: there is nothing to hold a late one back."""
        self._guard("delete collection of", resource, "one precondition for each object: delete them one by one")
        path = resource.path(namespace)
        target = named("*", namespace)
        await self._write("deletecollection", resource, target, Request("DELETE", path, selection(labels, fields)))

    async def evict(self, pod: Object, *, grace_seconds: int | None = None) -> None:
        """Ask for the pod's eviction; TooManyRequests when a disruption budget does not allow it now."""
        if not (uid_of(pod) and version_of(pod)):
            self._guard("evict", PODS, "metadata.uid and metadata.resourceVersion")
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name_of(pod), "namespace": namespace_of(pod)},
            "deleteOptions": deletion(pod, grace_seconds, None),
        }
        path = PODS.path(namespace_of(pod), name_of(pod), "eviction")
        request = Request("POST", path, {}, ENCODER.encode(eviction))
        await self._write("create", PODS, pod, request, subresource="eviction", attempts=1)

    async def converge(self, resource: Resource, cached: Object | None, wanted: Object) -> Object:
        """Make the object what `wanted` says, with the fewest writes: none where it is so already.

        `wanted` names only the fields that are ours; a None in it means absent.  `cached` is the object as last seen.
        Status is written through its subresource, after the rest.
        """
        if cached is None:
            current = await self.create(resource, without_nones(wanted))
        else:
            current = cached
            if patch := owned_patch(current, {key: value for key, value in wanted.items() if key != "status"}):
                current = await self.patch(resource, current, patch)
        if "status" in wanted and (patch := owned_patch(current, {"status": wanted["status"]})):
            current = await self.patch(resource, current, patch, subresource="status")
        return current

    # -- asking

    async def token(
        self,
        name: str,
        namespace: str,
        *,
        audiences: Sequence[str] = (),
        seconds: int = 3600,
        bound_to: Object | None = None,
    ) -> Object:
        """A service account token: the TokenRequest's status, with `token` and `expirationTimestamp`."""
        spec: Object = {"expirationSeconds": seconds, "audiences": list(audiences)}
        if bound_to is not None:
            spec["boundObjectRef"] = {
                "apiVersion": bound_to["apiVersion"],
                "kind": bound_to["kind"],
                "name": name_of(bound_to),
                "uid": uid_of(bound_to),
            }
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = SERVICE_ACCOUNTS.path(namespace, name, "token")
        answer = await self._object(
            "create", words(SERVICE_ACCOUNTS, "token"), Request("POST", path, {}, ENCODER.encode(body))
        )
        status: Object = answer["status"]
        return status

    async def may(
        self,
        verb: str,
        resource: Resource,
        namespace: str | None = None,
        *,
        subresource: str = "",
        user: str | None = None,
        groups: Sequence[str] = (),
    ) -> bool:
        """Whether we, or `user`, have a right."""
        attributes = {
            "verb": verb,
            "group": resource.group,
            "version": resource.version,
            "resource": resource.plural,
            "subresource": subresource,
            "namespace": namespace or "",
        }
        spec: Object = {"resourceAttributes": attributes}
        if user is not None:
            spec |= {"user": user, "groups": list(groups)}
        review = await self.review(SELF_ACCESS_REVIEWS if user is None else ACCESS_REVIEWS, spec)
        return bool(review["status"].get("allowed"))

    async def review(self, resource: Resource, spec: Object) -> Object:
        """Post a review (access, token); it is answered and not stored, so it needs no leadership."""
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        return await self._object("create", resource.name, Request("POST", resource.path(), {}, ENCODER.encode(body)))

    # -- carrying

    def abort(self) -> None:
        """Cut all connections now; what is under way fails."""
        self.transport.abort()

    async def close(self) -> None:
        await self.transport.close()

    def _guard(self, verb: str, resource: Resource, missing: str) -> None:
        if self._fence is not None:
            raise Unguarded(
                f"{verb} {resource.name}: a leader's write must have {missing}, so that a late one is refused"
            )

    async def _write(
        self,
        verb: str,
        resource: Resource,
        target: Object,
        request: Request,
        *,
        subresource: str | None = None,
        attempts: int = ATTEMPTS,
    ) -> Object:
        started = time.monotonic()
        outcome: dict[str, Any] = {"error": "Cancelled"}
        try:
            answer = await self._send(verb, words(resource, subresource), request, fence=self._fence, attempts=attempts)
            outcome = {"code": answer.status, "request_id": answer.headers.get("audit-id")}
        except ApiError as error:
            outcome = {"code": error.code}
            raise
        except Exception as error:
            outcome = {"error": type(error).__name__}
            raise
        finally:
            if self._audit is not None:
                name, namespace = target["metadata"].get("name", ""), namespace_of(target)
                seconds = round(time.monotonic() - started, 6)
                who = (self.identity, verb, resource.name, name, namespace, subresource)
                self._audit.record(Write(*who, seconds=seconds, **outcome))
        return decoded(OBJECTS, answer.body, str(request))

    async def _discovered(self, path: str, kind: str) -> Object:
        answer = await self._object("get", "discovery", Request("GET", path))
        if answer.get("kind") != kind:
            raise TransportError(f"GET {path}: the answer is not Kubernetes' own: no {kind}", maybe_sent=True)
        return answer

    async def _object(self, verb: str, what: str, request: Request) -> Object:
        return decoded(OBJECTS, (await self._send(verb, what, request)).body, str(request))

    async def _send(
        self,
        verb: str,
        what: str,
        request: Request,
        *,
        fence: Callable[[], None] | None = None,
        attempts: int = ATTEMPTS,
    ) -> Response:
        for attempt in range(1, attempts + 1):
            if fence is not None:
                fence()
            wait = 0.0
            try:
                answer = await self.transport.send(request)
            except TransportError as error:
                count_request(verb, what, "TransportError")
                if attempt == attempts or (error.maybe_sent and request.method != "GET"):
                    raise
                wait = backoff(attempt)
            else:
                count_request(verb, what, str(answer.status))
                if answer.status < 300:
                    return answer
                wait = put_off(answer, request, attempt)
                if attempt == attempts or not wait:
                    raise error_from_body(answer.status, answer.body, doing=str(request))
            await asyncio.sleep(wait)
        raise AssertionError("unreachable")


async def beginning(chunks: AsyncIterator[bytes], limit: int = LONGEST_COMPLAINT) -> bytes:
    """What comes first, up to about so many bytes."""
    found = b""
    async for chunk in chunks:
        found += chunk
        if len(found) >= limit:
            break
    return found


def words(resource: Resource, subresource: str | None) -> str:
    """`pods`, `pods/status`: the words for metrics and the audit log."""
    return f"{resource.name}/{subresource}" if subresource else resource.name


def backoff(attempt: int) -> float:
    """Seconds before the next attempt: 0.1, 0.2, 0.4 ..., spread so that many clients do not return as one."""
    return 0.1 * 2.0 ** (attempt - 1) * random.uniform(0.75, 1.25)


def put_off(answer: Response, request: Request, attempt: int) -> float:
    """Seconds after which the server, or a read's safety, lets us ask again; 0 where its answer is final."""
    reading = request.method == "GET"
    after = answer.headers.get("retry-after")
    if after is None and not reading:
        return 0.0
    # Of the others, also with Retry-After, a server that gave up waiting for its storage may have written all the same.
    if answer.status not in ((429, 500, 502, 503, 504) if reading else (429, 503)):
        return 0.0
    try:
        seconds = float(after or "")
    except ValueError:  # nothing, or a date: nobody who matters sends one
        return backoff(attempt)
    return max(seconds, 0.001) if seconds <= LONGEST_WAIT else 0.0


def selection(labels: str, fields: str) -> dict[str, str]:
    query = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in query.items() if value}


def dry(run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if run else {}


def deletion(target: Object, grace_seconds: int | None, propagation: Propagation | None) -> Object:
    """DeleteOptions that spare whatever took the place of `target`."""
    preconditions = {"uid": uid_of(target), "resourceVersion": version_of(target)}
    options: Object = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {key: value for key, value in preconditions.items() if value},
        "gracePeriodSeconds": grace_seconds,
        "propagationPolicy": propagation,
    }
    return {key: value for key, value in options.items() if value not in (None, {})}


def at_version(patch: Any, version: str, type: PatchType) -> Any:
    """`patch`, good only for an object at `version`."""
    if type is PatchType.JSON:
        # replaced by itself, not tested: a failed test is Invalid, a wrong version is the Conflict that it should be
        return [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}, *patch]
    return {**patch, "metadata": {**(patch.get("metadata") or {}), "resourceVersion": version}}


def without_nones(value: Any) -> Any:
    """`value` without the fields that are to be absent."""
    if isinstance(value, dict):
        return {key: without_nones(child) for key, child in value.items() if child is not None}
    return value
