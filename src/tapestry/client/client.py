"""The API client: one set of verbs for every kind.

A `Client` turns verbs into requests, and responses into objects or errors of `tapestry.kube.errors`.  `retries` decides
which requests are sent again.  For streams, see `watch` and `logs`.

A client with a `fence` belongs to a leader.  It calls the fence before each write.  It rejects writes that could do
harm if they arrived late: every patch and replace must carry a resourceVersion, every delete a UID and a
resourceVersion, every create a name.
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self

from tapestry.client.options import (
    PatchType,
    Propagation,
    delete_options,
    dry_run_query,
    selector_query,
    with_resource_version,
)
from tapestry.client.responses import (
    DECODE_BATCH_SIZE,
    ENCODER,
    LIST_DECODER,
    OBJECT_DECODER,
    Page,
    check_identity,
    decode_object,
    decode_response,
    decoding_errors,
    gc_paused,
)
from tapestry.client.retries import MAX_ATTEMPTS, send_with_retries
from tapestry.client.transport import SMALL_RESPONSE_BYTES, Request, Transport
from tapestry.kube.errors import ApiError, NotFound, ResponseTooLarge
from tapestry.kube.objects import Object, name_of, namespace_of, object_named, uid_of, version_of
from tapestry.kube.patches import owned_patch
from tapestry.kube.resources import PODS, SERVICE_ACCOUNTS, Resource
from tapestry.process.audit import AuditLog, WriteRecord

PAGE_SIZE = 500
"""Number of objects that a list requests per page."""


class UnconditionalWrite(ValueError):
    """A leader's write without the preconditions that make a late arrival harmless."""


class Client:
    """Client of one API server.  It owns its transport; as a context manager, it closes the transport on exit.

    The caller owns the returned objects.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        fence: Callable[[], None] | None = None,
        audit: AuditLog | None = None,
        identity: str = "tapestry",
    ) -> None:
        self.transport = transport
        self.identity = identity
        self._fence = fence
        self._audit = audit

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- reading

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, subresource: str | None = None
    ) -> Object:
        request = Request("GET", resource.path(namespace, name, subresource))
        return await self._send_for_object(request, "get", resource_label(resource, subresource))

    async def find(self, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
        """Return the object, or None if it does not exist."""
        try:
            return await self.get(resource, name, namespace)
        except NotFound:
            return None

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        page_size: int = PAGE_SIZE,
    ) -> list[Object]:
        """Return all objects of one snapshot.  Raise Gone if the list took longer than the server keeps its pages."""
        return [
            item
            async for part in self.pages(resource, namespace, labels=labels, fields=fields, page_size=page_size)
            for item in part.items
        ]

    async def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        page_size: int = PAGE_SIZE,
        without_managed_fields: bool = False,
        only_metadata: bool = False,
    ) -> AsyncIterator[Page]:
        """Yield the pages of one consistent list, each decoded on demand.

        The page size is reduced if a response of `page_size` objects is too large.  `without_managed_fields` omits
        metadata.managedFields, about a third of a list.  `only_metadata` omits spec, status and data.
        """
        query, doing = selector_query(labels, fields), f"list {resource.name}"
        identity = {"apiVersion": resource.api_version, "kind": resource.kind}
        while True:
            request = Request("GET", resource.path(namespace), {**query, "limit": str(page_size)})
            try:
                response = await send_with_retries(self.transport, request, "list", resource.name)
            except ResponseTooLarge:
                if page_size == 1:
                    raise
                page_size = max(1, page_size // 4)
                continue
            decoded = decode_response(LIST_DECODER, response.body, doing)
            raws = decoded.items or []
            for begin in range(0, len(raws) or 1, DECODE_BATCH_SIZE):
                with gc_paused(), decoding_errors(doing):
                    batch = raws[begin : begin + DECODE_BATCH_SIZE]
                    items = [
                        decode_object(raw, without_managed_fields=without_managed_fields, only_metadata=only_metadata)
                        | identity
                        for raw in batch
                    ]
                    for item in items:
                        check_identity(item)
                yield Page(decoded.metadata, items)
            if not decoded.metadata.continue_:
                return
            query = {**query, "continue": decoded.metadata.continue_}

    async def server_version(self) -> Object:
        return await self._send_for_object(Request("GET", "/version", max_body=SMALL_RESPONSE_BYTES), "get", "version")

    # -- writing

    async def create(
        self, resource: Resource, obj: Object, *, subresource: str | None = None, dry_run: bool = False
    ) -> Object:
        """Create `obj`.  With a subresource, post `obj` to that subresource of the object it names."""
        if not obj["metadata"].get("name"):
            self._require_precondition("create", resource, "a name of its own, not generateName")
        name = name_of(obj) if subresource else None
        path = resource.path(namespace_of(obj), name, subresource)
        return await self._write(
            "create",
            resource,
            obj,
            Request("POST", path, dry_run_query(dry_run), ENCODER.encode(obj)),
            subresource=subresource,
        )

    async def replace(
        self, resource: Resource, obj: Object, *, subresource: str | None = None, dry_run: bool = False
    ) -> Object:
        """Replace the object by `obj`.  If `obj` has a resourceVersion, it must still be current."""
        if not version_of(obj):
            self._require_precondition("replace", resource, "metadata.resourceVersion")
        path = resource.path(namespace_of(obj), name_of(obj), subresource)
        return await self._write(
            "replace",
            resource,
            obj,
            Request("PUT", path, dry_run_query(dry_run), ENCODER.encode(obj)),
            subresource=subresource,
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
        """Patch `target`.  If `target` has a resourceVersion, it must still be current."""
        version = version_of(target)
        if not version:
            self._require_precondition("patch", resource, "metadata.resourceVersion")
        body = with_resource_version(patch, version, type) if version else patch
        path = resource.path(namespace_of(target), name_of(target), subresource)
        request = Request("PATCH", path, dry_run_query(dry_run), ENCODER.encode(body), content_type=type)
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
        """Server-side apply the fields in `obj` as `manager`.  Conflict names fields of other managers."""
        if not version_of(obj):
            self._require_precondition("apply", resource, "metadata.resourceVersion")
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        query = {"fieldManager": manager, "force": "true" if force else "false", **dry_run_query(dry_run)}
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
        """Delete `target`.  Its UID and resourceVersion, if set, are preconditions.

        Return the terminating object, or a Status if it was deleted at once.
        """
        if not (uid_of(target) and version_of(target)):
            self._require_precondition("delete", resource, "metadata.uid and metadata.resourceVersion")
        body = delete_options(target, grace_seconds, propagation)
        if dry_run:
            body["dryRun"] = ["All"]  # a server ignores the query if the body has options
        path = resource.path(namespace_of(target), name_of(target))
        return await self._write("delete", resource, target, Request("DELETE", path, {}, ENCODER.encode(body)))

    async def delete_if_exists(
        self,
        resource: Resource,
        target: Object,
        *,
        grace_seconds: int | None = None,
        propagation: Propagation | None = None,
    ) -> None:
        """Delete `target`.  Do nothing if it does not exist."""
        try:
            await self.delete(resource, target, grace_seconds=grace_seconds, propagation=propagation)
        except NotFound:
            return

    async def delete_collection(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> None:
        """Delete all objects that the selectors match.  Not allowed with a fence: it has no preconditions."""
        self._require_precondition(
            "delete collection of", resource, "one precondition for each object: delete them one by one"
        )
        path = resource.path(namespace)
        target = object_named("*", namespace)
        await self._write("deletecollection", resource, target, Request("DELETE", path, selector_query(labels, fields)))

    async def evict(self, pod: Object, *, grace_seconds: int | None = None) -> None:
        """Evict the pod.  Raise TooManyRequests if a disruption budget does not allow it now."""
        if not (uid_of(pod) and version_of(pod)):
            self._require_precondition("evict", PODS, "metadata.uid and metadata.resourceVersion")
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name_of(pod), "namespace": namespace_of(pod)},
            "deleteOptions": delete_options(pod, grace_seconds, None),
        }
        path = PODS.path(namespace_of(pod), name_of(pod), "eviction")
        request = Request("POST", path, {}, ENCODER.encode(eviction))
        await self._write("create", PODS, pod, request, subresource="eviction", max_attempts=1)

    async def converge(self, resource: Resource, cached: Object | None, desired: Object) -> Object:
        """Make the object equal to `desired` with the fewest writes, none if it is equal already.

        `desired` contains only the fields that we own; None means absent.  `cached` is the last known state of the
        object.  The status is written through its subresource, after the rest.
        """
        if cached is None:
            current = await self.create(resource, without_nones(desired))
        else:
            current = cached
            if patch := owned_patch(current, {key: value for key, value in desired.items() if key != "status"}):
                current = await self.patch(resource, current, patch)
        if "status" in desired and (patch := owned_patch(current, {"status": desired["status"]})):
            current = await self.patch(resource, current, patch, subresource="status")
        return current

    # -- tokens and reviews

    async def request_token(
        self,
        name: str,
        namespace: str,
        *,
        audiences: Sequence[str] = (),
        seconds: int = 3600,
        bound_to: Object | None = None,
    ) -> Object:
        """Return a service account token: the TokenRequest's status, with `token` and `expirationTimestamp`."""
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
        request = Request("POST", path, {}, ENCODER.encode(body))
        response = await self._send_for_object(request, "create", resource_label(SERVICE_ACCOUNTS, "token"))
        status: Object = response["status"]
        return status

    async def review(self, resource: Resource, spec: Object) -> Object:
        """Post a review (access, token).  It is not stored, so it needs no leadership."""
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        request = Request("POST", resource.path(), {}, ENCODER.encode(body))
        return await self._send_for_object(request, "create", resource.name)

    # -- connections

    def abort(self) -> None:
        """Cut all connections now.  Requests in flight fail."""
        self.transport.abort()

    async def close(self) -> None:
        await self.transport.close()

    def _require_precondition(self, verb: str, resource: Resource, missing: str) -> None:
        if self._fence is not None:
            raise UnconditionalWrite(
                f"{verb} {resource.name}: a leader's write must have {missing}, so that a late one is rejected"
            )

    async def _write(
        self,
        verb: str,
        resource: Resource,
        target: Object,
        request: Request,
        *,
        subresource: str | None = None,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> Object:
        started = time.monotonic()
        outcome: dict[str, Any] = {"error": "Cancelled"}
        try:
            response = await send_with_retries(
                self.transport,
                request,
                verb,
                resource_label(resource, subresource),
                fence=self._fence,
                max_attempts=max_attempts,
            )
            outcome = {"code": response.status, "request_id": response.headers.get("audit-id")}
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
                fields = (self.identity, verb, resource.name, name, namespace, subresource)
                self._audit.record(WriteRecord(*fields, seconds=seconds, **outcome))
        return decode_response(OBJECT_DECODER, response.body, str(request))

    async def _send_for_object(self, request: Request, verb: str, what: str) -> Object:
        return decode_response(
            OBJECT_DECODER, (await send_with_retries(self.transport, request, verb, what)).body, str(request)
        )


def resource_label(resource: Resource, subresource: str | None) -> str:
    """Return the name for metrics and the audit log: `pods`, `pods/status`."""
    return f"{resource.name}/{subresource}" if subresource else resource.name


def without_nones(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nones(child) for key, child in value.items() if child is not None}
    return value
