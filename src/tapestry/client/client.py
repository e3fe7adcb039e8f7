"""The verbs: one set for every kind.

A `Client` turns verbs into requests and answers into objects or errors of `tapestry.kube.errors`; `attempts` says what
is sent again.  What keeps coming is not read by a verb: see `watch` and `logs`.

A client made with a `fence` belongs to a leader.  Before each write it asks the fence, and it refuses a write that
could do harm if it arrived late: every patch and replace must carry a resourceVersion, every delete a UID and a
resourceVersion, every create a name of its own.
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
from tapestry.kube.errors import AnswerTooLarge, ApiError, NotFound
from tapestry.kube.objects import Object, name_of, namespace_of, object_named, uid_of, version_of
from tapestry.kube.patches import owned_patch
from tapestry.kube.resources import PODS, SERVICE_ACCOUNTS, Resource
from tapestry.process.audit import AuditLog, WriteRecord

PAGE_SIZE = 500
"""Objects that a list asks for at a time."""


class UnconditionalWrite(ValueError):
    """A leader's write that could do harm if it arrived late."""


class Client:
    """Talks to one API server through a transport that it owns; as a context, it closes that in the end.

    Objects it returns belong to the caller.
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
        """The object, or None where there is none."""
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
        """Every object, of one moment.  Raises Gone when the list took longer than the server keeps its pages."""
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
        """The parts of one consistent list, each decoded only when it is asked for; the server is asked for `page`, or
        fewer where so many objects are too large for one answer.

        `lean` leaves out metadata.managedFields: a third of a list, and caches do not read them; `only_metadata` all
        that differs from kind to kind.
        """
        query, doing = selector_query(labels, fields), f"list {resource.name}"
        identity = {"apiVersion": resource.api_version, "kind": resource.kind}
        while True:
            request = Request("GET", resource.path(namespace), {**query, "limit": str(page_size)})
            try:
                answer = await send_with_retries(self.transport, request, "list", resource.name)
            except AnswerTooLarge:
                if page_size == 1:
                    raise
                page_size = max(1, page_size // 4)
                continue
            found = decode_response(LIST_DECODER, answer.body, doing)
            raws = found.items or []
            for begin in range(0, len(raws) or 1, DECODE_BATCH_SIZE):
                with gc_paused(), decoding_errors(doing):
                    some = raws[begin : begin + DECODE_BATCH_SIZE]
                    items = [
                        decode_object(raw, without_managed_fields=without_managed_fields, only_metadata=only_metadata)
                        | identity
                        for raw in some
                    ]
                    for each in items:
                        check_identity(each)
                yield Page(found.metadata, items)
            if not found.metadata.continue_:
                return
            query = {**query, "continue": found.metadata.continue_}

    async def server_version(self) -> Object:
        """What the server says of itself under /version."""
        return await self._send_for_object(Request("GET", "/version", max_body=SMALL_RESPONSE_BYTES), "get", "version")

    # -- writing

    async def create(
        self, resource: Resource, obj: Object, *, subresource: str | None = None, dry_run: bool = False
    ) -> Object:
        """Create `obj`; with a subresource, post `obj` to that of the object it names."""
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
        """Replace the object by `obj`, if it is still at `obj`'s resourceVersion where it has one."""
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
        """Patch `target`, if it is still at its resourceVersion; a `target` without one is patched as it stands."""
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
        """Server-side apply: `obj` is what `manager` wants of the object; Conflict names other managers' fields."""
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
        """Delete `target` and no other: its UID and resourceVersion, where it has them, are preconditions.

        Returns the object as it goes, or the Status that says it is gone.
        """
        if not (uid_of(target) and version_of(target)):
            self._require_precondition("delete", resource, "metadata.uid and metadata.resourceVersion")
        body = delete_options(target, grace_seconds, propagation)
        if dry_run:
            body["dryRun"] = ["All"]  # a server that finds options in the body does not look at the query
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
        """Delete `target`, unless it is gone already."""
        try:
            await self.delete(resource, target, grace_seconds=grace_seconds, propagation=propagation)
        except NotFound:
            return

    async def delete_collection(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> None:
        """Delete all that the selectors match.  A leader may not: there is nothing to hold a late one back."""
        self._require_precondition(
            "delete collection of", resource, "one precondition for each object: delete them one by one"
        )
        path = resource.path(namespace)
        target = object_named("*", namespace)
        await self._write("deletecollection", resource, target, Request("DELETE", path, selector_query(labels, fields)))

    async def evict(self, pod: Object, *, grace_seconds: int | None = None) -> None:
        """Ask for the pod's eviction; TooManyRequests when a disruption budget does not allow it now."""
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
        """Make the object what `wanted` says, with the fewest writes: none where it is so already.

        `wanted` names only the fields that are ours; a None in it means absent.  `cached` is the object as last seen.
        Status is written through its subresource, after the rest.
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

    # -- asking

    async def request_token(
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
        request = Request("POST", path, {}, ENCODER.encode(body))
        answer = await self._send_for_object(request, "create", resource_label(SERVICE_ACCOUNTS, "token"))
        status: Object = answer["status"]
        return status

    async def review(self, resource: Resource, spec: Object) -> Object:
        """Post a review (access, token); it is answered and not stored, so it needs no leadership."""
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        request = Request("POST", resource.path(), {}, ENCODER.encode(body))
        return await self._send_for_object(request, "create", resource.name)

    # -- carrying

    def abort(self) -> None:
        """Cut all connections now; what is under way fails."""
        self.transport.abort()

    async def close(self) -> None:
        await self.transport.close()

    def _require_precondition(self, verb: str, resource: Resource, missing: str) -> None:
        if self._fence is not None:
            raise UnconditionalWrite(
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
        max_attempts: int = MAX_ATTEMPTS,
    ) -> Object:
        started = time.monotonic()
        outcome: dict[str, Any] = {"error": "Cancelled"}
        try:
            answer = await send_with_retries(
                self.transport,
                request,
                verb,
                resource_label(resource, subresource),
                fence=self._fence,
                max_attempts=max_attempts,
            )
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
                self._audit.record(WriteRecord(*who, seconds=seconds, **outcome))
        return decode_response(OBJECT_DECODER, answer.body, str(request))

    async def _send_for_object(self, request: Request, verb: str, what: str) -> Object:
        return decode_response(
            OBJECT_DECODER, (await send_with_retries(self.transport, request, verb, what)).body, str(request)
        )


def resource_label(resource: Resource, subresource: str | None) -> str:
    """`pods`, `pods/status`: the words for metrics and the audit log."""
    return f"{resource.name}/{subresource}" if subresource else resource.name


def without_nones(value: Any) -> Any:
    """`value` without the fields that are to be absent."""
    if isinstance(value, dict):
        return {key: without_nones(child) for key, child in value.items() if child is not None}
    return value
