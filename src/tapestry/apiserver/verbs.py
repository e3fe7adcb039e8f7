"""The API verbs over one store: each returns encoded bytes, or raises the same error as Kubernetes.

Reads see durable data only. A write reads the newest version, computes the next one with pure functions, and
replaces exactly that version. If another write came first, it is retried, unless the client named a resourceVersion.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from random import Random
from typing import Any, Literal

import msgspec

from tapestry.apiserver import api_errors, writes
from tapestry.apiserver.requests import (
    ContinueToken,
    Query,
    Selection,
    Target,
    User,
    decode_continue_token,
    parse_number,
    selection_of,
)
from tapestry.apiserver.resource_registry import ALLOWS_CREATE_ON_UPDATE, RETURNS_DELETED_OBJECT, ResourceInfo
from tapestry.apiserver.spec_cache import Interned, memoize
from tapestry.apiserver.storage.log import Key
from tapestry.apiserver.storage.store import (
    Compacted,
    ObjectVersion,
    Precondition,
    RevisionEncoder,
    Store,
    VersionConflict,
)
from tapestry.apiserver.watches import IDENTITY_ENCODER, WatchEncoder, WatchResponse
from tapestry.apiserver.workers import (
    LARGE_BYTES,
    LARGE_SELECTION,
    current_request_budget,
    reserve_memory,
    run_if_large,
)
from tapestry.kube.budget import checkpoint
from tapestry.kube.errors import AlreadyExists, ApiError
from tapestry.kube.objects import (
    Object,
    is_deleting,
    labels_of,
    name_of,
    uid_from_bits,
    uid_of,
    with_value,
    without_field,
)
from tapestry.kube.patches import PatchError, apply_json_patch, apply_merge_patch
from tapestry.kube.strategic_merge import apply_strategic_merge_patch

SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # for generated names: without vowels, so that no words appear
DELETE_COLLECTION_WORKERS = 16
"""Number of objects of a collection that are deleted concurrently."""
MAX_ATTEMPTS = 200
"""Maximum number of attempts of a write without resourceVersion; concurrent writes may come first."""
REVISION_WAIT_TIMEOUT = 3.0
"""Seconds that a read waits for a revision that does not exist yet."""
DEFAULT_WATCH_SECONDS = (1800, 3600)
"""Range of the default watch timeout in seconds."""
MAX_WATCH_SECONDS = 86_400
"""Maximum watch timeout in seconds."""
JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC_PATCH, APPLY_PATCH = "application/strategic-merge-patch+json", "application/apply-patch+yaml"

ENCODER = msgspec.json.Encoder()
DECODER = msgspec.json.Decoder()

Verb = Literal["create", "update", "patch", "delete"]


@dataclass(slots=True)
class WriteRequest:
    """A write request, as the steps of the pipeline see it."""

    verb: Verb
    target: Target
    user: User
    query: Query
    content_type: str = ""
    body: bytes = b""
    decoded_body: Any = None
    user_agent: str = ""
    duplicate_keys: tuple[str, ...] = ()
    """Messages about keys that a YAML body sets twice."""
    name: str = ""
    """Name of the object that is created."""
    warnings: list[str] = field(default_factory=list)
    audit_annotations: dict[str, str] = field(default_factory=dict)
    """Additional annotations for the audit event."""
    claim: Precondition | None = None
    """Precondition that the store checks with the write, and that reserves allocated values."""
    size: int = 0
    """Bytes of JSON to process: the largest of the body, the changed object and its schema."""

    @property
    def is_dry_run(self) -> bool:
        return "dryRun" in self.query


@dataclass(frozen=True, slots=True)
class ListResult:
    """Metadata and encoded items of a list, or of one page."""

    metadata: Object
    items: Sequence[bytes]


Step = Callable[[WriteRequest, Object | None, Object], Awaitable[Object]]
"""A step of a create or an update: (old, new) to the changed new object."""


DeleteStep = Callable[[WriteRequest, Object], Awaitable[None]]
"""A step of a deletion: rejects it, or adds warnings."""


Apply = Callable[[WriteRequest, Object | None, Any], Object]
"""Server-side apply: (current object, applied configuration) to the desired object."""


Convert = Callable[[ResourceInfo, Sequence[Object], str], Awaitable[Sequence[Object]]]
"""Converts objects of a resource to another apiVersion."""


VerbAuthorizer = Callable[[User, str, Target], bool]
"""Returns whether a user may use a verb on a target."""


def allow_all_verbs(_: User, __: str, ___: Target) -> bool:
    return True


def body_unchanged(_: WriteRequest, __: Object | None, body: Any) -> Object:
    result: Object = body
    return result


async def object_unchanged(_: WriteRequest, __: Object | None, new: Object) -> Object:
    return new


async def with_api_version(_: ResourceInfo, objects: Sequence[Object], api_version: str) -> Sequence[Object]:
    return [{**obj, "apiVersion": api_version} for obj in objects]


@dataclass(frozen=True)
class Verbs:
    store: Store
    now: Callable[[], datetime]
    prepare: Step = object_unchanged
    """Runs before the server sets its own fields: decoding, defaults, managed fields, mutating admission."""
    validate: Step = object_unchanged
    """Runs on the object to be stored: validation, validating admission."""
    delete_steps: Sequence[DeleteStep] = ()
    server_side_apply: Apply = body_unchanged
    random: Random = field(default_factory=Random)
    unrestricted: bool = False
    """Allow writes to an object to change its status too."""
    convert: Convert = with_api_version
    """Converts custom resources whose definition has a conversion webhook."""
    admission_validate: Step = object_unchanged
    """The part of `validate` that also runs for writes without changes: policies and webhooks."""
    is_allowed: VerbAuthorizer = allow_all_verbs
    """Authorizes the create that a PUT or an apply may result in; the server has authorized the verb itself."""

    # -- reads

    async def get(self, target: Target, query: Query) -> bytes:
        await self.wait_for_revision(query.get("resourceVersion", ""))
        version = self.store.get(*target.key)
        if version is None:
            raise api_errors.not_found(target.info.resource, target.name)
        return await self.from_storage(target.info, version.raw)

    async def list(self, target: Target, query: Query) -> ListResult:
        selection = await self.selection_of(target.info, query)
        versions, revision, limit = await self.list_versions(target, query)
        matching = await self.matching_versions(versions, selection)
        page = matching[:limit] if limit else matching
        metadata: Object = {"resourceVersion": str(revision)}
        if len(page) < len(matching):
            last = page[-1].key
            metadata["continue"] = ContinueToken(revision, last.namespace, last.name).encode()
            if selection.matches is None:
                metadata["remainingItemCount"] = len(matching) - len(page)
        return ListResult(metadata, await self.all_from_storage(target.info, page))

    async def from_storage(self, info: ResourceInfo, raw: bytes) -> bytes:
        """Return a stored object in the form in which this version is served."""
        raw = (await self.convert_stored(info, [raw]))[0] if info.conversion_webhook else raw
        if info.storage_version is None:
            return served_bytes(info, raw)
        return await run_if_large(max(len(raw), info.schema_size), served_bytes, info, raw)

    async def all_from_storage(self, info: ResourceInfo, versions: Sequence[ObjectVersion]) -> Sequence[bytes]:
        raws = [version.raw for version in versions]
        if not info.is_custom and info.storage_version is None:
            return raws
        raws = list(await self.convert_stored(info, raws)) if info.conversion_webhook else raws
        if info.storage_version is None:
            return [served_bytes(info, raw) for raw in raws]
        return await run_if_large(sum(map(len, raws)), all_served_bytes, info, raws)

    async def convert_stored(self, info: ResourceInfo, raws: Sequence[bytes]) -> Sequence[bytes]:
        """Convert stored objects to the version of a resource, in one call for all that differ."""
        version = info.resource.api_version
        if all(raw.startswith(api_version_prefix(version)) for raw in raws):
            return raws
        objects = await self.convert(info, [DECODER.decode(raw) for raw in raws], version)
        return [ENCODER.encode(obj) for obj in objects]

    async def to_storage(self, info: ResourceInfo, obj: Object) -> RevisionEncoder:
        """Return the encoder that stores an object."""
        if info.conversion_webhook and info.storage_api_version:
            [obj] = await self.convert(info, [obj], info.storage_api_version)
        return encode_for_storage(info, obj)

    async def list_versions(self, target: Target, query: Query) -> tuple[Sequence[ObjectVersion], int, int]:
        """Return the objects at the requested revision, that revision, and the limit."""
        info, namespace = target.info, target.namespace
        version, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
        limit = parse_number(query.get("limit") or "0", "limit")
        check_list_options(version, match, query)
        if token := query.get("continue"):
            start = decode_continue_token(token)
            await self.wait_for_revision(str(max(start.revision, 0)))  # another server may have started the list
            result = (
                self.versions_at(info, namespace, start.revision, start._replace(revision=-1).encode())
                if start.revision >= 0
                else self.store.list_objects(info.storage, namespace)
            )
            position = start.namespace, start.name
            rest = [each for each in result if (each.key.namespace, each.key.name) > position]
            return rest, max(start.revision, 0) or self.store.revision, limit
        await self.wait_for_revision(version)
        if match == "Exact" or (limit and not match and version not in ("", "0")):
            exact = parse_number(version, "resourceVersion")
            return self.versions_at(info, namespace, exact), exact, limit
        return self.store.list_objects(info.storage, namespace), self.store.revision, 0 if version == "0" else limit

    def versions_at(
        self, info: ResourceInfo, namespace: str, revision: int, token: str = ""
    ) -> Sequence[ObjectVersion]:
        """Return the objects at a revision; `token` is for the error if the revision is compacted."""
        if revision == self.store.revision:
            return self.store.list_objects(info.storage, namespace)
        try:
            return self.store.list_at_revision(info.storage, namespace, revision)
        except Compacted:
            raise api_errors.ExpiredList(token) from None

    async def selection_of(self, info: ResourceInfo, query: Query) -> Selection:
        size = len(query.get("labelSelector", "")) + len(query.get("fieldSelector", ""))
        return selection_of(info, query) if size < LARGE_BYTES else await run_if_large(size, selection_of, info, query)

    async def matching_versions(
        self, versions: Sequence[ObjectVersion], selection: Selection
    ) -> Sequence[ObjectVersion]:
        if selection.name:
            versions = [version for version in versions if version.key.name == selection.name]
        matches = selection.matches
        if matches is None:
            return versions
        if len(versions) <= LARGE_SELECTION:
            return [version for version in versions if matches(version)]
        return await run_if_large(LARGE_BYTES, filter_versions, versions, matches)

    async def watch(self, target: Target, query: Query, encoder: WatchEncoder = IDENTITY_ENCODER) -> WatchResponse:
        info, version, initial = target.info, query.get("resourceVersion", ""), query.get("sendInitialEvents")
        if initial is not None and query.get("resourceVersionMatch") != "NotOlderThan":
            why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            raise api_errors.invalid_field(api_errors.LIST_OPTIONS, "", "resourceVersionMatch", why)
        selection = await self.selection_of(info, query)
        any_version = version in ("", "0")
        with_list = any_version if initial is None else initial == "true"
        if with_list or any_version:
            await self.wait_for_revision(version)
        after = self.store.revision if with_list or any_version else parse_number(version, "resourceVersion")
        name = target.name or selection.name
        try:
            subscription = self.store.watch(info.storage, target.namespace, name, after=after)
        except Compacted as error:
            raise api_errors.resource_version_expired(after, error.oldest) from None
        items = None
        if with_list:
            try:
                items = await self.matching_versions(self.store.list_objects(info.storage, target.namespace), selection)
            except BaseException:
                self.store.unwatch(info.storage, subscription)
                raise
        requested = min(parse_number(query.get("timeoutSeconds") or "0", "timeoutSeconds"), MAX_WATCH_SECONDS)
        seconds = requested or self.random.randrange(*DEFAULT_WATCH_SECONDS)
        bookmarks = query.get("allowWatchBookmarks") in ("1", "true")
        return WatchResponse(
            self.store,
            info,
            subscription,
            selection.matches,
            encoder,
            list(items) if items is not None else None,
            after,
            bookmarks,
            seconds,
            send_initial_end=initial == "true",
            convert=(lambda raws: self.convert_stored(info, raws)) if info.conversion_webhook else None,
            budget=current_request_budget(),
        )

    async def wait_for_revision(self, version: str) -> None:
        """Wait a short time for a future revision, or for the latest one if none is named."""
        if not version:
            await self.store.wait_for_latest()
        elif not await self.store.wait_for_revision(parse_number(version, "resourceVersion"), REVISION_WAIT_TIMEOUT):
            raise api_errors.resource_version_too_large(version, self.store.revision)

    # -- writes

    async def create(self, request: WriteRequest, body: Any) -> bytes:
        target = request.target
        info, resource = target.info, target.info.resource
        if resource.namespaced and not target.namespace:
            raise api_errors.method_not_allowed()
        desired = writes.object_from_body(target, body)
        request.size = max(request.size, len(request.body), info.schema_size)
        if request.is_dry_run:
            desired = without_field(desired, "metadata", "resourceVersion")  # Kubernetes checks it only for real writes
        base = str(desired["metadata"].get("generateName", ""))
        for _ in range(MAX_ATTEMPTS):
            given_name = desired["metadata"].get("name")
            request.name = name = given_name or self.generated_name(info, base)
            named_object = desired if given_name else with_value(desired, ("metadata", "name"), name)
            prepared = await self.prepare(request, None, named_object)
            request.name = name = name_of(prepared)  # admission may have changed it
            created = writes.created_object(info, prepared, uid=self.new_uid(), now=self.now())
            validated = await self.validate(request, None, created)
            key = Key(info.storage, target.namespace, name)
            if (head := self.store.head(*key)) is not None:
                if base and not given_name:
                    continue
                raise api_errors.already_exists(resource, name, is_deleting=is_deleting(DECODER.decode(head.raw)))
            if request.is_dry_run:
                return ENCODER.encode(validated)
            try:
                encoder = (
                    await self.to_storage(info, validated)
                    if info.conversion_webhook
                    else encode_for_storage(info, validated)
                )
                raw = (await self.store.put(key, None, encoder, request.claim)).raw
                return raw if info.is_plain else await self.from_storage(info, raw)
            except VersionConflict:
                continue
        raise api_errors.already_exists(resource, base)

    async def replace(self, request: WriteRequest, body: Any) -> bytes:
        target = request.target
        desired = writes.object_from_body(target, body)
        if (
            self.store.head(*target.key) is None
            and target.info.resource.name in ALLOWS_CREATE_ON_UPDATE
            and not target.subresource
        ):
            return await self.create(self.as_create_request(request), body)
        return await self.update(request, lambda _: desired)

    async def patch(self, request: WriteRequest, patch: Any) -> bytes:
        """Patch an object, except by server-side apply (see `apply`)."""

        def patched(current: Object) -> Object:
            result = writes.object_from_body(
                request.target, self.apply_patch(request.target.info, current, request.content_type, patch)
            )
            if uid_of(result) and uid_of(result) != uid_of(current):
                raise api_errors.uid_mismatch(
                    request.target.info.resource, name_of(current), uid_of(result), uid_of(current)
                )
            return result

        return await self.update(request, patched)

    async def apply(self, request: WriteRequest, body: Any) -> tuple[int, bytes]:
        """Apply a configuration by server-side apply; the status is 201 if the object was created."""
        target = request.target
        for _ in range(MAX_ATTEMPTS):
            if target.subresource or self.store.head(*target.key) is not None:
                return 200, await self.update(
                    request,
                    lambda current: writes.object_from_body(target, self.server_side_apply(request, current, body)),
                )
            try:
                create_request = self.as_create_request(request)
                config = await run_if_large(len(request.body), self.server_side_apply, request, None, body)
                return 201, await self.create(create_request, config)
            except AlreadyExists:
                continue
        raise api_errors.conflict(target.info.resource, target.name, api_errors.OBJECT_MODIFIED)

    def as_create_request(self, request: WriteRequest) -> WriteRequest:
        """Return a create request for the target of a write. Raises Forbidden if the user may not create it."""
        if not self.is_allowed(request.user, "create", request.target):
            raise api_errors.forbidden_resource(request.user.name, "create", request.target)
        return replace(request, verb="create")

    async def update(
        self, request: WriteRequest, change: Callable[[Object], Object], *, unrestricted: bool = False
    ) -> bytes:
        """Replace an object with the result of `change`; `unrestricted` lets it change the status too."""
        target = request.target
        info, key = target.info, target.key
        for _ in range(MAX_ATTEMPTS):
            head = self.store.head(*key)
            if head is None:
                raise api_errors.not_found(info.resource, target.name)
            request.size = max(len(request.body), len(head.raw), info.schema_size)
            raw = head.raw if info.is_plain else await self.from_storage(info, head.raw)
            if request.size < LARGE_BYTES:
                current: Object = DECODER.decode(raw)
                changed = change(current)
            else:
                await reserve_memory(request.size)
                current = await run_if_large(request.size, DECODER.decode, raw)
                changed = await run_if_large(request.size, change, current)
            prepared = await self.prepare(request, current, changed)
            new = writes.updated_object(
                info, current, prepared, target.subresource, unrestricted=unrestricted or self.unrestricted
            )
            validated = await (self.validate if new is not current else self.admission_validate)(request, current, new)
            if validated == current:
                await self.store.wait_for_pending_write(key)
                return await self.from_storage(info, head.raw)
            if request.is_dry_run:
                return ENCODER.encode(validated)
            try:
                encoder = await self.to_storage(info, validated)
                if writes.is_removable(validated):
                    return await self.from_storage(info, (await self.store.delete(key, head, encoder)).raw)
                return await self.from_storage(info, (await self.store.put(key, head, encoder, request.claim)).raw)
            except VersionConflict:
                continue
        raise api_errors.conflict(info.resource, target.name, api_errors.OBJECT_MODIFIED)

    def apply_patch(self, info: ResourceInfo, current: Object, content_type: str, patch: Any) -> Any:
        if content_type != JSON_PATCH:
            api_errors.check_patch_type(patch, dict, "map[string]interface {}")
        else:
            api_errors.check_patch_type(patch, list, "[]handlers.jsonPatchOp")
            for each in patch:
                api_errors.check_patch_type(each, dict, "handlers.jsonPatchOp")
        try:
            match content_type:
                case "application/json-patch+json":
                    return apply_json_patch(current, patch)
                case "application/merge-patch+json":
                    return apply_merge_patch(current, patch)
                case "application/strategic-merge-patch+json" if info.patch_schema is not None:
                    return apply_strategic_merge_patch(current, patch, info.patch_schema)
        except PatchError as error:
            raise api_errors.invalid_patch(str(error)) from error
        accepted = (
            JSON_PATCH,
            MERGE_PATCH,
            *((STRATEGIC_PATCH,) if info.patch_schema is not None else ()),
            APPLY_PATCH,
        )
        raise api_errors.unsupported_patch_type(", ".join(accepted))

    async def delete(self, request: WriteRequest, options: Mapping[str, Any]) -> tuple[int, bytes]:
        """Delete an object, or mark it as deleting; return the status code and the response body."""
        target = request.target
        info, key = target.info, target.key
        for _ in range(MAX_ATTEMPTS):
            head = self.store.head(*key)
            if head is None:
                raise api_errors.not_found(info.resource, target.name)
            current: Object = DECODER.decode(await self.from_storage(info, head.raw))
            remaining = writes.deleted_object(info, current, options, self.now())
            for step in self.delete_steps:
                await step(request, current)
            if remaining is current or request.is_dry_run:
                return 200, self.delete_response(info, current, head.raw, is_deleted=remaining is None)
            try:
                if remaining is None:
                    deleted = await self.store.delete(key, head, await self.to_storage(info, current))
                    return 200, self.delete_response(
                        info, current, await self.from_storage(info, deleted.raw), is_deleted=True
                    )
                return 200, await self.from_storage(
                    info, (await self.store.put(key, head, await self.to_storage(info, remaining))).raw
                )
            except VersionConflict:
                continue
        raise api_errors.conflict(info.resource, target.name, api_errors.OBJECT_MODIFIED)

    def delete_response(self, info: ResourceInfo, obj: Object, raw: bytes, *, is_deleted: bool) -> bytes:
        if not is_deleted or info.resource.name in RETURNS_DELETED_OBJECT:
            return raw
        details = {**api_errors.status_details(info.resource, name_of(obj)), "uid": uid_of(obj)}
        return ENCODER.encode(success_status(details))

    async def delete_collection(self, request: WriteRequest, options: Mapping[str, Any]) -> bytes:
        target = request.target
        selection = await self.selection_of(target.info, request.query)
        items = await self.matching_versions(self.store.list_objects(target.info.storage, target.namespace), selection)
        remaining = iter(items)

        async def delete_next() -> None:
            for version in remaining:
                await self.delete_if_exists(request, version, options)
                await asyncio.sleep(0)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(DELETE_COLLECTION_WORKERS, len(items))):
                    group.create_task(delete_next())
        except ExceptionGroup as errors:
            api_error = next((each for each in errors.exceptions if isinstance(each, ApiError)), None)
            if api_error is None:
                raise
            raise api_error from None
        metadata = {"resourceVersion": str(self.store.revision)}
        return encode_list(target.info, metadata, await self.all_from_storage(target.info, items))

    async def delete_if_exists(self, request: WriteRequest, version: ObjectVersion, options: Mapping[str, Any]) -> None:
        target = Target(request.target.info, version.key.namespace, version.key.name)
        try:
            await self.delete(WriteRequest("delete", target, request.user, request.query), options)
        except ApiError as error:
            if error.code != 404:
                raise

    def new_uid(self) -> str:
        return uid_from_bits(self.random.getrandbits(128))

    def generated_name(self, info: ResourceInfo, base: str) -> str:
        if not base:
            why = "Required value: name or generateName is required"
            raise api_errors.invalid_field(info.resource, "", "metadata.name", why)
        return base[:58] + "".join(self.random.choices(SUFFIX_LETTERS, k=5))


def filter_versions(versions: Iterable[ObjectVersion], matches: Callable[[ObjectVersion], bool]) -> list[ObjectVersion]:
    result = []
    for number, version in enumerate(versions):
        if not number % 256:
            checkpoint()
        if matches(version):
            result.append(version)
    return result


def all_served_bytes(info: ResourceInfo, raws: Iterable[bytes]) -> list[bytes]:
    result = []
    for raw in raws:
        checkpoint()
        result.append(served_bytes(info, raw))
    return result


def served_bytes(info: ResourceInfo, raw: bytes) -> bytes:
    """Return a stored object as this version is served; apiVersion is the first field of every stored text."""
    if info.storage_version is not None:
        version = {"apiVersion": info.resource.api_version}
        return ENCODER.encode({**version, **info.storage_version.from_storage(DECODER.decode(raw)), **version})
    if not info.is_custom or raw.startswith(prefix := api_version_prefix(info.resource.api_version)):
        return raw
    return prefix + raw[raw.index(b'"', len(b'{"apiVersion":"')) + 1 :]


def api_version_prefix(api_version: str) -> bytes:
    return b'{"apiVersion":"%b"' % api_version.encode()


def encode_for_storage(info: ResourceInfo, obj: Object) -> RevisionEncoder:
    """Return the function that encodes an object for storage at a revision; it also returns the labels."""
    version = {"apiVersion": info.storage_api_version or info.resource.api_version}
    if info.storage_version is not None:
        obj = info.storage_version.to_storage(obj)

    def encode(revision: int) -> tuple[bytes, Object]:
        metadata = {**obj["metadata"], "resourceVersion": str(revision)}
        if "managedFields" in metadata:
            metadata["managedFields"] = [with_text_of_fields(each) for each in metadata["managedFields"]]
        stored = {**version, **obj, **version, "metadata": metadata}
        if "spec" in stored:
            stored["spec"] = encode_spec(stored["spec"])
        return ENCODER.encode(stored), dict(labels_of(obj))

    return encode


def encode_spec(part: Any) -> Any:
    """Return a spec, or owned fields, for the encoder: interned values as cached text."""
    return memoize(part, encode_spec, lambda: msgspec.Raw(ENCODER.encode(part))) if type(part) is Interned else part


def with_text_of_fields(entry: Object) -> Object:
    """Return an entry of `metadata.managedFields` for the encoder."""
    fields = entry.get("fieldsV1")
    return {**entry, "fieldsV1": encode_spec(fields)} if type(fields) is Interned else entry


def encode_list(info: ResourceInfo, metadata: Object, items: Sequence[bytes]) -> bytes:
    """Return a list in JSON; items of built-in kinds have no kind and apiVersion of their own."""
    begin, separator, parts, end = list_segments(info, metadata, items)
    if not parts:
        return begin + end
    if len(parts) == 1:
        return b"".join((begin, parts[0], end))
    # copy a long list only once
    return separator.join((b"".join((begin, parts[0])), *parts[1:-1], b"".join((parts[-1], end))))


def encode_list_chunks(info: ResourceInfo, metadata: Object, items: Sequence[bytes]) -> Sequence[bytes | memoryview]:
    """Return the same text as `encode_list` in chunks, without a copy of the objects."""
    begin, separator, parts, end = list_segments(info, metadata, items)
    result: list[bytes | memoryview] = [begin]
    for each in parts:
        result += (each, separator)
    result[-1] = end if parts else begin + end
    return result


def list_segments(
    info: ResourceInfo, metadata: Object, items: Sequence[bytes]
) -> tuple[bytes, bytes, Sequence[bytes | memoryview], bytes]:
    """Return the start of a list, the separator, the encoded items, and the end."""
    resource = info.resource
    head = {"kind": info.list_kind, "apiVersion": resource.api_version, "metadata": metadata}
    begin, separator, end = ENCODER.encode(head)[:-1] + b',"items":[', b",", b"]}"
    if not info.is_custom and items:
        kind = api_version_prefix(resource.api_version) + b',"kind":"%b",' % resource.kind.encode()
        if all(each.startswith(kind) for each in items):
            return begin + b"{", b",{", [memoryview(each)[len(kind) :] for each in items], end
    return begin, separator, items, end


def check_list_options(version: str, match: str, query: Query) -> None:
    why = ""
    if match and query.get("continue"):
        why = "Forbidden: resourceVersionMatch is forbidden when continue is provided"
    elif match and not version:
        why = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
    elif match and match not in ("Exact", "NotOlderThan"):
        why = f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan", ""'
    elif match == "Exact" and version == "0":
        why = 'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
    if why:
        raise api_errors.invalid_field(api_errors.LIST_OPTIONS, "", "resourceVersionMatch", why)


def success_status(details: Object) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
