"""The verbs: each takes what was asked for and answers with bytes, or raises what Kubernetes would answer.

Reads see what is durable.  A write reads the newest version there is, makes the next one by pure functions, and puts it
in the place of just that version; where another write came first it begins again, unless its caller named the version.
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
from tapestry.apiserver.spec_cache import is_interned, memoize
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

SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # of generated names: without vowels, hence without words
DELETE_COLLECTION_WORKERS = 16
"""Objects of a collection that are deleted at the same time."""
MAX_ATTEMPTS = 200
"""How often a write begins again that named no version: as many others may be under way, and come first."""
REVISION_WAIT_TIMEOUT = 3.0
"""Seconds that a reader waits for a revision that is yet to come."""
DEFAULT_WATCH_SECONDS = (1800, 3600)
"""How long a watch lasts that does not say."""
MAX_WATCH_SECONDS = 86_400
"""Seconds that a watch may ask for."""
JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC_PATCH, APPLY_PATCH = "application/strategic-merge-patch+json", "application/apply-patch+yaml"

ENCODER = msgspec.json.Encoder()
DECODER = msgspec.json.Decoder()

Verb = Literal["create", "update", "patch", "delete"]


@dataclass(slots=True)
class WriteRequest:
    """A write, as those see it who have a say in it."""

    verb: Verb
    target: Target
    user: User
    query: Query
    content_type: str = ""
    body: bytes = b""
    decoded_body: Any = None
    """The body, read."""
    user_agent: str = ""
    """The program that asks."""
    duplicate_keys: tuple[str, ...] = ()
    """Keys that a body in YAML has twice."""
    name: str = ""
    """What the object that is made is called."""
    warnings: list[str] = field(default_factory=list)
    audit_annotations: dict[str, str] = field(default_factory=dict)
    """For the audit log."""
    claim: Precondition | None = None
    """Of what is about to be written."""
    size: int = 0
    """Bytes of JSON that have to be looked at: of the body, of the object that is changed, or of its schema."""

    @property
    def is_dry_run(self) -> bool:
        return "dryRun" in self.query


@dataclass(frozen=True, slots=True)
class ListResult:
    """A list, or a page of one: its metadata and its items in JSON."""

    metadata: Object
    items: Sequence[bytes]


Step = Callable[[WriteRequest, Object | None, Object | None], Awaitable[Object]]
"""Something that has a say in a write: (old, new) to what new becomes; new is None for a deletion, and stays so."""


Apply = Callable[[WriteRequest, Object | None, Any], Object]
"""Server-side apply: what there is, and what is applied to it, to what is wanted."""


Convert = Callable[[ResourceInfo, Sequence[Object], str], Awaitable[Sequence[Object]]]
"""Objects of a row in another version."""


VerbAuthorizer = Callable[[User, str, Target], bool]
"""Whether a user may use a verb on a target."""


def allow_all_verbs(_: User, __: str, ___: Target) -> bool:
    return True


def body_unchanged(_: WriteRequest, __: Object | None, body: Any) -> Object:
    found: Object = body
    return found


async def object_unchanged(_: WriteRequest, old: Object | None, new: Object | None) -> Object:
    found = new if new is not None else old
    assert found is not None
    return found


async def with_api_version(_: ResourceInfo, objects: Sequence[Object], api_version: str) -> Sequence[Object]:
    return [{**obj, "apiVersion": api_version} for obj in objects]


@dataclass(frozen=True)
class Verbs:
    """The generic verbs over one store."""

    store: Store
    now: Callable[[], datetime]
    prepare: Step = object_unchanged
    """What a writer wants, before the server adds its own: types, defaults, managed fields, mutating admission."""
    validate: Step = object_unchanged
    """What would be stored: validation, validating admission."""
    server_side_apply: Apply = body_unchanged
    random: Random = field(default_factory=Random)
    unrestricted: bool = False
    """Whether a write to an object may change its status, too."""
    convert: Convert = with_api_version
    """For custom resources whose definition has a webhook for that."""
    admission_validate: Step = object_unchanged
    """The part of `settle` that sees also what changes nothing: others' rules, who may want to know of every try."""
    is_allowed: VerbAuthorizer = allow_all_verbs
    """Authorizes the creations that a PUT or an apply turns out to be; the server has authorized the verb itself."""

    # -- reading

    async def get(self, target: Target, query: Query) -> bytes:
        await self.wait_for_revision(query.get("resourceVersion", ""))
        version = self.store.get(*target.key)
        if version is None:
            raise api_errors.not_found(target.info.resource, target.name)
        return await self.from_storage(target.info, version.raw)

    async def list(self, target: Target, query: Query) -> ListResult:
        selection = await self.selection_of(target.info, query)
        versions, revision, limit = await self.list_versions(target, query)
        chosen = await self.matching_versions(versions, selection)
        page = chosen[:limit] if limit else chosen
        metadata: Object = {"resourceVersion": str(revision)}
        if len(page) < len(chosen):
            last = page[-1].key
            metadata["continue"] = ContinueToken(revision, last.namespace, last.name).encode()
            if selection.matches is None:
                metadata["remainingItemCount"] = len(chosen) - len(page)
        return ListResult(metadata, await self.all_from_storage(target.info, page))

    async def from_storage(self, info: ResourceInfo, raw: bytes) -> bytes:
        """An object out of the store as this version shows it."""
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
        """Objects out of the store in the version of a row, in one call for all that are in another one."""
        version = info.resource.api_version
        if all(raw.startswith(api_version_prefix(version)) for raw in raws):
            return raws
        objects = await self.convert(info, [DECODER.decode(raw) for raw in raws], version)
        return [ENCODER.encode(obj) for obj in objects]

    async def to_storage(self, info: ResourceInfo, obj: Object) -> RevisionEncoder:
        """An object of a row as it goes into the store."""
        if info.conversion_webhook and info.storage_api_version:
            [obj] = await self.convert(info, [obj], info.storage_api_version)
        return encode_for_storage(info, obj)

    async def list_versions(self, target: Target, query: Query) -> tuple[Sequence[ObjectVersion], int, int]:
        """The objects of a place at the revision that the query asks for, that revision, and how many are wanted."""
        row, namespace = target.info, target.namespace
        version, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
        limit = parse_number(query.get("limit") or "0", "limit")
        check_list_options(version, match, query)
        if token := query.get("continue"):
            start = decode_continue_token(token)
            await self.wait_for_revision(str(max(start.revision, 0)))  # another server may have begun the list
            found = (
                self.versions_at(row, namespace, start.revision, start._replace(revision=-1).encode())
                if start.revision >= 0
                else self.store.list_objects(row.storage, namespace)
            )
            after = start.namespace, start.name
            rest = [each for each in found if (each.key.namespace, each.key.name) > after]
            return rest, max(start.revision, 0) or self.store.revision, limit
        await self.wait_for_revision(version)
        if match == "Exact" or (limit and not match and version not in ("", "0")):
            exact = parse_number(version, "resourceVersion")
            return self.versions_at(row, namespace, exact), exact, limit
        return self.store.list_objects(row.storage, namespace), self.store.revision, 0 if version == "0" else limit

    def versions_at(
        self, info: ResourceInfo, namespace: str, revision: int, token: str = ""
    ) -> Sequence[ObjectVersion]:
        """The objects at a revision; `token` is where a list could go on that is not of one moment."""
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
        row, version, initial = target.info, query.get("resourceVersion", ""), query.get("sendInitialEvents")
        if initial is not None and query.get("resourceVersionMatch") != "NotOlderThan":
            why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            raise api_errors.invalid_field(api_errors.LIST_OPTIONS, "", "resourceVersionMatch", why)
        selection = await self.selection_of(row, query)
        anywhere = version in ("", "0")
        with_list = anywhere if initial is None else initial == "true"
        if with_list or anywhere:
            await self.wait_for_revision(version)
        after = self.store.revision if with_list or anywhere else parse_number(version, "resourceVersion")
        name = target.name or selection.name
        try:
            subscription = self.store.watch(row.storage, target.namespace, name, after=after)
        except Compacted as error:
            raise api_errors.resource_version_expired(after, error.oldest) from None
        first = None
        if with_list:
            try:
                first = await self.matching_versions(self.store.list_objects(row.storage, target.namespace), selection)
            except BaseException:
                self.store.unwatch(row.storage, subscription)
                raise
        asked = min(parse_number(query.get("timeoutSeconds") or "0", "timeoutSeconds"), MAX_WATCH_SECONDS)
        seconds = asked or self.random.randrange(*DEFAULT_WATCH_SECONDS)
        bookmarks = query.get("allowWatchBookmarks") in ("1", "true")
        return WatchResponse(
            self.store,
            row,
            subscription,
            selection.matches,
            encoder,
            list(first) if first is not None else None,
            after,
            bookmarks,
            seconds,
            send_initial_end=initial == "true",
            convert=(lambda raws: self.convert_stored(row, raws)) if row.conversion_webhook else None,
            budget=current_request_budget(),
        )

    async def wait_for_revision(self, version: str) -> None:
        """Wait a little for a revision that is yet to come; where none is named, for the latest."""
        if not version:
            await self.store.wait_for_latest()
        elif not await self.store.wait_for_revision(parse_number(version, "resourceVersion"), REVISION_WAIT_TIMEOUT):
            raise api_errors.resource_version_too_large(version, self.store.revision)

    # -- writing

    async def create(self, request: WriteRequest, body: Any) -> bytes:
        target = request.target
        row, resource = target.info, target.info.resource
        if resource.namespaced and not target.namespace:
            raise api_errors.method_not_allowed()
        wanted = writes.object_from_body(target, body)
        request.size = max(request.size, len(request.body), row.schema_size)
        if request.is_dry_run:
            wanted = without_field(wanted, "metadata", "resourceVersion")  # which Kubernetes minds only where it stores
        base = str(wanted["metadata"].get("generateName", ""))
        for _ in range(MAX_ATTEMPTS):
            given = wanted["metadata"].get("name")
            request.name = name = given or self.generated_name(row, base)
            named = wanted if given else with_value(wanted, ("metadata", "name"), name)
            ready = await self.prepare(request, None, named)
            request.name = name = name_of(ready)  # which admission may have changed
            made = writes.created_object(row, ready, uid=self.new_uid(), now=self.now())
            settled = await self.validate(request, None, made)
            key = Key(row.storage, target.namespace, name)
            if (head := self.store.head(*key)) is not None:
                if base and not given:
                    continue
                raise api_errors.already_exists(resource, name, is_deleting=is_deleting(DECODER.decode(head.raw)))
            if request.is_dry_run:
                return ENCODER.encode(settled)
            try:
                make = (
                    await self.to_storage(row, settled) if row.conversion_webhook else encode_for_storage(row, settled)
                )
                raw = (await self.store.put(key, None, make, request.claim)).raw
                return raw if row.is_plain else await self.from_storage(row, raw)
            except VersionConflict:
                continue
        raise api_errors.already_exists(resource, base)

    async def replace(self, request: WriteRequest, body: Any) -> bytes:
        target = request.target
        wanted = writes.object_from_body(target, body)
        if (
            self.store.head(*target.key) is None
            and target.info.resource.name in ALLOWS_CREATE_ON_UPDATE
            and not target.subresource
        ):
            return await self.create(self.as_create_request(request), body)
        return await self.update(request, lambda _: wanted)

    async def patch(self, request: WriteRequest, patch: Any) -> bytes:
        """Patch an object; see `apply` for what is done by server-side apply."""

        def patched(current: Object) -> Object:
            found = writes.object_from_body(
                request.target, self.apply_patch(request.target.info, current, request.content_type, patch)
            )
            if uid_of(found) and uid_of(found) != uid_of(current):
                raise api_errors.uid_mismatch(
                    request.target.info.resource, name_of(current), uid_of(found), uid_of(current)
                )
            return found

        return await self.update(request, patched)

    async def apply(self, request: WriteRequest, body: Any) -> tuple[int, bytes]:
        """Have what is stated, whatever else there is; 201 where there was nothing."""
        target = request.target
        for _ in range(MAX_ATTEMPTS):
            if target.subresource or self.store.head(*target.key) is not None:
                return 200, await self.update(
                    request,
                    lambda current: writes.object_from_body(target, self.server_side_apply(request, current, body)),
                )
            try:
                creating = self.as_create_request(request)
                config = await run_if_large(len(request.body), self.server_side_apply, request, None, body)
                return 201, await self.create(creating, config)
            except AlreadyExists:
                continue
        raise api_errors.conflict(target.info.resource, target.name, api_errors.OBJECT_MODIFIED)

    def as_create_request(self, request: WriteRequest) -> WriteRequest:
        """A write that creates its target, as a create request.  Raises Forbidden if its user may not create."""
        if not self.is_allowed(request.user, "create", request.target):
            raise api_errors.forbidden_resource(request.user.name, "create", request.target)
        return replace(request, verb="create")

    async def update(
        self, request: WriteRequest, change: Callable[[Object], Object], *, unrestricted: bool = False
    ) -> bytes:
        """Have the object as `wanted` makes it of what is there; its status, too, if it is `free` to."""
        target = request.target
        row, key = target.info, target.key
        for _ in range(MAX_ATTEMPTS):
            head = self.store.head(*key)
            if head is None:
                raise api_errors.not_found(row.resource, target.name)
            request.size = max(len(request.body), len(head.raw), row.schema_size)
            raw = head.raw if row.is_plain else await self.from_storage(row, head.raw)
            if request.size < LARGE_BYTES:
                current: Object = DECODER.decode(raw)
                changed = change(current)
            else:
                await reserve_memory(request.size)
                current = await run_if_large(request.size, DECODER.decode, raw)
                changed = await run_if_large(request.size, change, current)
            ready = await self.prepare(request, current, changed)
            new = writes.updated_object(
                row, current, ready, target.subresource, unrestricted=unrestricted or self.unrestricted
            )
            settled = await (self.validate if new is not current else self.admission_validate)(request, current, new)
            if settled == current:
                await self.store.wait_for_pending_write(key)
                return await self.from_storage(row, head.raw)
            if request.is_dry_run:
                return ENCODER.encode(settled)
            try:
                made = await self.to_storage(row, settled)
                if writes.is_removable(settled):
                    return await self.from_storage(row, (await self.store.delete(key, head, made)).raw)
                return await self.from_storage(row, (await self.store.put(key, head, made, request.claim)).raw)
            except VersionConflict:
                continue
        raise api_errors.conflict(row.resource, target.name, api_errors.OBJECT_MODIFIED)

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
        """Delete an object, or mark it as deleting; 202 where it is still there."""
        target = request.target
        row, key = target.info, target.key
        for _ in range(MAX_ATTEMPTS):
            head = self.store.head(*key)
            if head is None:
                raise api_errors.not_found(row.resource, target.name)
            current: Object = DECODER.decode(await self.from_storage(row, head.raw))
            left = writes.deleted_object(row, current, options, self.now())
            await self.validate(request, current, None)
            if left is current or request.is_dry_run:
                return 200, self.delete_response(row, current, head.raw, is_deleted=left is None)
            try:
                if left is None:
                    gone = await self.store.delete(key, head, await self.to_storage(row, current))
                    return 200, self.delete_response(
                        row, current, await self.from_storage(row, gone.raw), is_deleted=True
                    )
                return 200, await self.from_storage(
                    row, (await self.store.put(key, head, await self.to_storage(row, left))).raw
                )
            except VersionConflict:
                continue
        raise api_errors.conflict(row.resource, target.name, api_errors.OBJECT_MODIFIED)

    def delete_response(self, info: ResourceInfo, obj: Object, raw: bytes, *, is_deleted: bool) -> bytes:
        if not is_deleted or info.resource.name in RETURNS_DELETED_OBJECT:
            return raw
        details = {**api_errors.status_details(info.resource, name_of(obj)), "uid": uid_of(obj)}
        return ENCODER.encode(success_status(details))

    async def delete_collection(self, request: WriteRequest, options: Mapping[str, Any]) -> bytes:
        target = request.target
        selection = await self.selection_of(target.info, request.query)
        going = await self.matching_versions(self.store.list_objects(target.info.storage, target.namespace), selection)
        waiting = iter(going)

        async def delete_next() -> None:
            for version in waiting:
                await self.delete_if_exists(request, version, options)
                await asyncio.sleep(0)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(DELETE_COLLECTION_WORKERS, len(going))):
                    group.create_task(delete_next())
        except ExceptionGroup as errors:
            refusal = next((each for each in errors.exceptions if isinstance(each, ApiError)), None)
            if refusal is None:
                raise
            raise refusal from None
        metadata = {"resourceVersion": str(self.store.revision)}
        return encode_list(target.info, metadata, await self.all_from_storage(target.info, going))

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
    found = []
    for place, version in enumerate(versions):
        if not place % 256:
            checkpoint()
        if matches(version):
            found.append(version)
    return found


def all_served_bytes(info: ResourceInfo, raws: Iterable[bytes]) -> list[bytes]:
    found = []
    for raw in raws:
        checkpoint()
        found.append(served_bytes(info, raw))
    return found


def served_bytes(info: ResourceInfo, raw: bytes) -> bytes:
    """An object out of the store as this version shows it; the apiVersion is the first field of every text there."""
    if info.storage_version is not None:
        version = {"apiVersion": info.resource.api_version}
        return ENCODER.encode({**version, **info.storage_version.from_storage(DECODER.decode(raw)), **version})
    if not info.is_custom or raw.startswith(head := api_version_prefix(info.resource.api_version)):
        return raw
    return head + raw[raw.index(b'"', len(b'{"apiVersion":"')) + 1 :]


def api_version_prefix(api_version: str) -> bytes:
    return b'{"apiVersion":"%b"' % api_version.encode()


def encode_for_storage(info: ResourceInfo, obj: Object) -> RevisionEncoder:
    """The text of an object at a revision, as it is stored, and its labels."""
    version = {"apiVersion": info.storage_api_version or info.resource.api_version}
    if info.storage_version is not None:
        obj = info.storage_version.to_storage(obj)

    def make(revision: int) -> tuple[bytes, Object]:
        metadata = {**obj["metadata"], "resourceVersion": str(revision)}
        if "managedFields" in metadata:
            metadata["managedFields"] = [with_text_of_fields(each) for each in metadata["managedFields"]]
        at = {**version, **obj, **version, "metadata": metadata}
        if "spec" in at:
            at["spec"] = encode_spec(at["spec"])
        return ENCODER.encode(at), dict(labels_of(obj))

    return make


def encode_spec(part: Any) -> Any:
    """What is written in the place of a spec, or of owned fields: of those that come again their text, if known."""
    return memoize(part, encode_spec, lambda: msgspec.Raw(ENCODER.encode(part))) if is_interned(part) else part


def with_text_of_fields(entry: Object) -> Object:
    """An entry of `metadata.managedFields`, for the encoder."""
    fields = entry.get("fieldsV1")
    return {**entry, "fieldsV1": encode_spec(fields)} if is_interned(fields) else entry


def encode_list(info: ResourceInfo, metadata: Object, items: Sequence[bytes]) -> bytes:
    """A list in JSON; built-in kinds are told by the list alone, not by each of its items."""
    begin, between, parts, end = list_segments(info, metadata, items)
    if not parts:
        return begin + end
    if len(parts) == 1:
        return b"".join((begin, parts[0], end))
    # A long list is copied just once.
    return between.join((b"".join((begin, parts[0])), *parts[1:-1], b"".join((parts[-1], end))))


def encode_list_chunks(info: ResourceInfo, metadata: Object, items: Sequence[bytes]) -> Sequence[bytes | memoryview]:
    """The same text in pieces that follow each other: objects are not copied."""
    begin, between, parts, end = list_segments(info, metadata, items)
    found: list[bytes | memoryview] = [begin]
    for each in parts:
        found += (each, between)
    found[-1] = end if parts else begin + end
    return found


def list_segments(
    info: ResourceInfo, metadata: Object, items: Sequence[bytes]
) -> tuple[bytes, bytes, Sequence[bytes | memoryview], bytes]:
    """How a list begins, what is between its items, what it has of each of them, and how it ends."""
    resource = info.resource
    head = {"kind": info.list_kind, "apiVersion": resource.api_version, "metadata": metadata}
    begin, between, end = ENCODER.encode(head)[:-1] + b',"items":[', b",", b"]}"
    if not info.is_custom and items:
        kind = api_version_prefix(resource.api_version) + b',"kind":"%b",' % resource.kind.encode()
        if all(each.startswith(kind) for each in items):
            return begin + b"{", b",{", [memoryview(each)[len(kind) :] for each in items], end
    return begin, between, items, end


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
