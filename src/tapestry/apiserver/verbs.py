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

from tapestry.apiserver import refusals, writes
from tapestry.apiserver.recurring import is_part, once
from tapestry.apiserver.requests import Continue, Query, Selection, Target, User, number, opened, selection_of
from tapestry.apiserver.rows import MADE_BY_PUT, SHOWN_WHEN_GONE, Row
from tapestry.apiserver.storage.log import Key
from tapestry.apiserver.storage.store import Claim, Compacted, Make, Stale, Store, Version
from tapestry.apiserver.watches import AS_IS, Flavour, Watching
from tapestry.apiserver.workers import LARGE, MANY, current_work, make_room, run_if_large
from tapestry.kube.budget import checkpoint
from tapestry.kube.errors import AlreadyExists, ApiError
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of, uid_from, uid_of, with_value, without
from tapestry.kube.patches import PatchError, json_patched, merged
from tapestry.kube.strategic import strategic_merged

SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # of generated names: without vowels, hence without words
DELETIONS = 16
"""Objects of a collection that are deleted at the same time."""
TRIES = 200
"""How often a write begins again that named no version: as many others may be under way, and come first."""
PATIENCE = 3.0
"""Seconds that a reader waits for a revision that is yet to come."""
WATCH_SECONDS = (1800, 3600)
"""How long a watch lasts that does not say."""
LONGEST_WATCH = 86_400
"""Seconds that a watch may ask for."""
JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC_PATCH, APPLY_PATCH = "application/strategic-merge-patch+json", "application/apply-patch+yaml"

ENCODER = msgspec.json.Encoder()
DECODER = msgspec.json.Decoder()

Verb = Literal["create", "update", "patch", "delete"]


@dataclass(slots=True)
class Request:
    """A write, as those see it who have a say in it."""

    verb: Verb
    target: Target
    user: User
    query: Query
    content_type: str = ""
    body: bytes = b""
    sent: Any = None
    """The body, read."""
    agent: str = ""
    """The program that asks."""
    repeated: tuple[str, ...] = ()
    """Keys that a body in YAML has twice."""
    name: str = ""
    """What the object that is made is called."""
    warnings: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    """For the audit log."""
    claim: Claim | None = None
    """Of what is about to be written."""
    size: int = 0
    """Bytes of JSON that have to be looked at: of the body, of the object that is changed, or of its schema."""

    @property
    def is_dry(self) -> bool:
        return "dryRun" in self.query


@dataclass(frozen=True, slots=True)
class Listing:
    """A list, or a page of one: its metadata and its items in JSON."""

    metadata: Object
    items: Sequence[bytes]


Step = Callable[[Request, Object | None, Object | None], Awaitable[Object]]
"""Something that has a say in a write: (old, new) to what new becomes; new is None for a deletion, and stays so."""


Apply = Callable[[Request, Object | None, Any], Object]
"""Server-side apply: what there is, and what is applied to it, to what is wanted."""


Convert = Callable[[Row, Sequence[Object], str], Awaitable[Sequence[Object]]]
"""Objects of a row in another version."""


May = Callable[[User, str, Target], bool]
"""Whether a user may use a verb on a target."""


def everybody_may(_: User, __: str, ___: Target) -> bool:
    return True


def as_stated(_: Request, __: Object | None, body: Any) -> Object:
    found: Object = body
    return found


async def as_it_is(_: Request, old: Object | None, new: Object | None) -> Object:
    found = new if new is not None else old
    assert found is not None
    return found


async def under_its_name(_: Row, objects: Sequence[Object], api_version: str) -> Sequence[Object]:
    return [{**obj, "apiVersion": api_version} for obj in objects]


@dataclass(frozen=True)
class Verbs:
    """The generic verbs over one store."""

    store: Store
    now: Callable[[], datetime]
    prepare: Step = as_it_is
    """What a writer wants, before the server adds its own: types, defaults, managed fields, mutating admission."""
    settle: Step = as_it_is
    """What would be stored: validation, validating admission."""
    applied: Apply = as_stated
    random: Random = field(default_factory=Random)
    unrestricted: bool = False
    """Whether a write to an object may change its status, too."""
    convert: Convert = under_its_name
    """For custom resources whose definition has a webhook for that."""
    judge: Step = as_it_is
    """The part of `settle` that sees also what changes nothing: others' rules, who may want to know of every try."""
    may: May = everybody_may
    """Authorizes the creations that a PUT or an apply turns out to be; the server has authorized the verb itself."""

    # -- reading

    async def get(self, target: Target, query: Query) -> bytes:
        await self.wait_for_revision(query.get("resourceVersion", ""))
        version = self.store.get(*target.key)
        if version is None:
            raise refusals.not_found(target.row.resource, target.name)
        return await self.shown(target.row, version.raw)

    async def list(self, target: Target, query: Query) -> Listing:
        selection = await self.selection_of(target.row, query)
        versions, revision, limit = await self.listed(target, query)
        chosen = await self.chosen_of(versions, selection)
        page = chosen[:limit] if limit else chosen
        metadata: Object = {"resourceVersion": str(revision)}
        if len(page) < len(chosen):
            last = page[-1].key
            metadata["continue"] = Continue(revision, last.namespace, last.name).sealed()
            if selection.matches is None:
                metadata["remainingItemCount"] = len(chosen) - len(page)
        return Listing(metadata, await self.all_shown(target.row, page))

    async def shown(self, row: Row, raw: bytes) -> bytes:
        """An object out of the store as this version shows it."""
        raw = (await self.converted(row, [raw]))[0] if row.conversion else raw
        if row.guise is None:
            return shown(row, raw)
        return await run_if_large(max(len(raw), row.schema_size), shown, row, raw)

    async def all_shown(self, row: Row, versions: Sequence[Version]) -> Sequence[bytes]:
        raws = [version.raw for version in versions]
        if not row.is_custom and row.guise is None:
            return raws
        raws = list(await self.converted(row, raws)) if row.conversion else raws
        if row.guise is None:
            return [shown(row, raw) for raw in raws]
        return await run_if_large(sum(map(len, raws)), all_shown, row, raws)

    async def converted(self, row: Row, raws: Sequence[bytes]) -> Sequence[bytes]:
        """Objects out of the store in the version of a row, in one call for all that are in another one."""
        version = row.resource.api_version
        if all(raw.startswith(text_head(version)) for raw in raws):
            return raws
        objects = await self.convert(row, [DECODER.decode(raw) for raw in raws], version)
        return [ENCODER.encode(obj) for obj in objects]

    async def kept(self, row: Row, obj: Object) -> Make:
        """An object of a row as it goes into the store."""
        if row.conversion and row.stored_as:
            [obj] = await self.convert(row, [obj], row.stored_as)
        return making(row, obj)

    async def listed(self, target: Target, query: Query) -> tuple[Sequence[Version], int, int]:
        """The objects of a place at the revision that the query asks for, that revision, and how many are wanted."""
        row, namespace = target.row, target.namespace
        version, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
        limit = number(query.get("limit") or "0", "limit")
        check_list_options(version, match, query)
        if token := query.get("continue"):
            start = opened(token)
            await self.wait_for_revision(str(max(start.revision, 0)))  # another server may have begun the list
            found = (
                self.at(row, namespace, start.revision, start._replace(revision=-1).sealed())
                if start.revision >= 0
                else self.store.every(row.storage, namespace)
            )
            after = start.namespace, start.name
            rest = [each for each in found if (each.key.namespace, each.key.name) > after]
            return rest, max(start.revision, 0) or self.store.revision, limit
        await self.wait_for_revision(version)
        if match == "Exact" or (limit and not match and version not in ("", "0")):
            exact = number(version, "resourceVersion")
            return self.at(row, namespace, exact), exact, limit
        return self.store.every(row.storage, namespace), self.store.revision, 0 if version == "0" else limit

    def at(self, row: Row, namespace: str, revision: int, token: str = "") -> Sequence[Version]:
        """The objects at a revision; `token` is where a list could go on that is not of one moment."""
        if revision == self.store.revision:
            return self.store.every(row.storage, namespace)
        try:
            return self.store.every_at(row.storage, namespace, revision)
        except Compacted:
            raise refusals.ExpiredList(token) from None

    async def selection_of(self, row: Row, query: Query) -> Selection:
        size = len(query.get("labelSelector", "")) + len(query.get("fieldSelector", ""))
        return selection_of(row, query) if size < LARGE else await run_if_large(size, selection_of, row, query)

    async def chosen_of(self, versions: Sequence[Version], selection: Selection) -> Sequence[Version]:
        if selection.name:
            versions = [version for version in versions if version.key.name == selection.name]
        matches = selection.matches
        if matches is None:
            return versions
        if len(versions) <= MANY:
            return [version for version in versions if matches(version)]
        return await run_if_large(LARGE, matching, versions, matches)

    async def watch(self, target: Target, query: Query, flavour: Flavour = AS_IS) -> Watching:
        row, version, initial = target.row, query.get("resourceVersion", ""), query.get("sendInitialEvents")
        if initial is not None and query.get("resourceVersionMatch") != "NotOlderThan":
            why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            raise refusals.invalid(refusals.LIST_OPTIONS, "", "resourceVersionMatch", why)
        selection = await self.selection_of(row, query)
        anywhere = version in ("", "0")
        with_list = anywhere if initial is None else initial == "true"
        if with_list or anywhere:
            await self.wait_for_revision(version)
        after = self.store.revision if with_list or anywhere else number(version, "resourceVersion")
        name = target.name or selection.name
        try:
            subscription = self.store.watch(row.storage, target.namespace, name, after=after)
        except Compacted as error:
            raise refusals.expired(after, error.oldest) from None
        first = None
        if with_list:
            try:
                first = await self.chosen_of(self.store.every(row.storage, target.namespace), selection)
            except BaseException:
                self.store.unwatch(row.storage, subscription)
                raise
        asked = min(number(query.get("timeoutSeconds") or "0", "timeoutSeconds"), LONGEST_WATCH)
        seconds = asked or self.random.randrange(*WATCH_SECONDS)
        bookmarks = query.get("allowWatchBookmarks") in ("1", "true")
        return Watching(
            self.store,
            row,
            subscription,
            selection.matches,
            flavour,
            list(first) if first is not None else None,
            after,
            bookmarks,
            seconds,
            marks_end=initial == "true",
            convert=(lambda raws: self.converted(row, raws)) if row.conversion else None,
            work=current_work(),
        )

    async def wait_for_revision(self, version: str) -> None:
        """Wait a little for a revision that is yet to come; where none is named, for the latest."""
        if not version:
            await self.store.wait_for_latest()
        elif not await self.store.wait_for(number(version, "resourceVersion"), PATIENCE):
            raise refusals.too_new(version, self.store.revision)

    # -- writing

    async def create(self, request: Request, body: Any) -> bytes:
        target = request.target
        row, resource = target.row, target.row.resource
        if resource.namespaced and not target.namespace:
            raise refusals.not_allowed()
        wanted = writes.placed(target, body)
        request.size = max(request.size, len(request.body), row.schema_size)
        if request.is_dry:
            wanted = without(wanted, "metadata", "resourceVersion")  # which Kubernetes minds only where it stores
        base = str(wanted["metadata"].get("generateName", ""))
        for _ in range(TRIES):
            given = wanted["metadata"].get("name")
            request.name = name = given or self.generated_name(row, base)
            named = wanted if given else with_value(wanted, ("metadata", "name"), name)
            ready = await self.prepare(request, None, named)
            request.name = name = name_of(ready)  # which admission may have changed
            made = writes.created(row, ready, uid=self.uid(), now=self.now())
            settled = await self.settle(request, None, made)
            key = Key(row.storage, target.namespace, name)
            if (head := self.store.head(*key)) is not None:
                if base and not given:
                    continue
                raise refusals.already_exists(resource, name, is_deleting=is_deleting(DECODER.decode(head.raw)))
            if request.is_dry:
                return ENCODER.encode(settled)
            try:
                make = await self.kept(row, settled) if row.conversion else making(row, settled)
                raw = (await self.store.put(key, None, make, request.claim)).raw
                return raw if row.is_plain else await self.shown(row, raw)
            except Stale:
                continue
        raise refusals.already_exists(resource, base)

    async def replace(self, request: Request, body: Any) -> bytes:
        target = request.target
        wanted = writes.placed(target, body)
        if self.store.head(*target.key) is None and target.row.resource.name in MADE_BY_PUT and not target.subresource:
            return await self.create(self.creation(request), body)
        return await self.update(request, lambda _: wanted)

    async def patch(self, request: Request, patch: Any) -> bytes:
        """Patch an object; see `apply` for what is done by server-side apply."""

        def patched(current: Object) -> Object:
            found = writes.placed(
                request.target, self.patched(request.target.row, current, request.content_type, patch)
            )
            if uid_of(found) and uid_of(found) != uid_of(current):
                raise refusals.other_uid(request.target.row.resource, name_of(current), uid_of(found), uid_of(current))
            return found

        return await self.update(request, patched)

    async def apply(self, request: Request, body: Any) -> tuple[int, bytes]:
        """Have what is stated, whatever else there is; 201 where there was nothing."""
        target = request.target
        for _ in range(TRIES):
            if target.subresource or self.store.head(*target.key) is not None:
                return 200, await self.update(
                    request, lambda current: writes.placed(target, self.applied(request, current, body))
                )
            try:
                creating = self.creation(request)
                config = await run_if_large(len(request.body), self.applied, request, None, body)
                return 201, await self.create(creating, config)
            except AlreadyExists:
                continue
        raise refusals.conflict(target.row.resource, target.name, refusals.MODIFIED)

    def creation(self, request: Request) -> Request:
        """A write that creates its target, as a create request.  Raises Forbidden if its user may not create."""
        if not self.may(request.user, "create", request.target):
            raise refusals.forbidden(request.user.name, "create", request.target)
        return replace(request, verb="create")

    async def update(self, request: Request, wanted: Callable[[Object], Object], *, free: bool = False) -> bytes:
        """Have the object as `wanted` makes it of what is there; its status, too, if it is `free` to."""
        target = request.target
        row, key = target.row, target.key
        for _ in range(TRIES):
            head = self.store.head(*key)
            if head is None:
                raise refusals.not_found(row.resource, target.name)
            request.size = max(len(request.body), len(head.raw), row.schema_size)
            raw = head.raw if row.is_plain else await self.shown(row, head.raw)
            if request.size < LARGE:
                current: Object = DECODER.decode(raw)
                changed = wanted(current)
            else:
                await make_room(request.size)
                current = await run_if_large(request.size, DECODER.decode, raw)
                changed = await run_if_large(request.size, wanted, current)
            ready = await self.prepare(request, current, changed)
            new = writes.updated(row, current, ready, target.subresource, free=free or self.unrestricted)
            settled = await (self.settle if new is not current else self.judge)(request, current, new)
            if settled == current:
                await self.store.settled(key)
                return await self.shown(row, head.raw)
            if request.is_dry:
                return ENCODER.encode(settled)
            try:
                made = await self.kept(row, settled)
                if writes.is_gone(settled):
                    return await self.shown(row, (await self.store.delete(key, head, made)).raw)
                return await self.shown(row, (await self.store.put(key, head, made, request.claim)).raw)
            except Stale:
                continue
        raise refusals.conflict(row.resource, target.name, refusals.MODIFIED)

    def patched(self, row: Row, current: Object, content_type: str, patch: Any) -> Any:
        if content_type != JSON_PATCH:
            refusals.check_type(patch, dict, "map[string]interface {}")
        else:
            refusals.check_type(patch, list, "[]handlers.jsonPatchOp")
            for each in patch:
                refusals.check_type(each, dict, "handlers.jsonPatchOp")
        try:
            match content_type:
                case "application/json-patch+json":
                    return json_patched(current, patch)
                case "application/merge-patch+json":
                    return merged(current, patch)
                case "application/strategic-merge-patch+json" if row.patches is not None:
                    return strategic_merged(current, patch, row.patches)
        except PatchError as error:
            raise refusals.rejected_patch(str(error)) from error
        accepted = (JSON_PATCH, MERGE_PATCH, *((STRATEGIC_PATCH,) if row.patches is not None else ()), APPLY_PATCH)
        raise refusals.unknown_patch(", ".join(accepted))

    async def delete(self, request: Request, options: Mapping[str, Any]) -> tuple[int, bytes]:
        """Delete an object, or mark it as deleting; 202 where it is still there."""
        target = request.target
        row, key = target.row, target.key
        for _ in range(TRIES):
            head = self.store.head(*key)
            if head is None:
                raise refusals.not_found(row.resource, target.name)
            current: Object = DECODER.decode(await self.shown(row, head.raw))
            left = writes.deleted(row, current, options, self.now())
            await self.settle(request, current, None)
            if left is current or request.is_dry:
                return 200, self.farewell(row, current, head.raw, is_gone=left is None)
            try:
                if left is None:
                    gone = await self.store.delete(key, head, await self.kept(row, current))
                    return 200, self.farewell(row, current, await self.shown(row, gone.raw), is_gone=True)
                return 200, await self.shown(row, (await self.store.put(key, head, await self.kept(row, left))).raw)
            except Stale:
                continue
        raise refusals.conflict(row.resource, target.name, refusals.MODIFIED)

    def farewell(self, row: Row, obj: Object, raw: bytes, *, is_gone: bool) -> bytes:
        if not is_gone or row.resource.name in SHOWN_WHEN_GONE:
            return raw
        details = {**refusals.details(row.resource, name_of(obj)), "uid": uid_of(obj)}
        return ENCODER.encode(success(details))

    async def delete_collection(self, request: Request, options: Mapping[str, Any]) -> bytes:
        target = request.target
        selection = await self.selection_of(target.row, request.query)
        going = await self.chosen_of(self.store.every(target.row.storage, target.namespace), selection)
        waiting = iter(going)

        async def delete_next() -> None:
            for version in waiting:
                await self.delete_quietly(request, version, options)
                await asyncio.sleep(0)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(DELETIONS, len(going))):
                    group.create_task(delete_next())
        except ExceptionGroup as errors:
            refusal = next((each for each in errors.exceptions if isinstance(each, ApiError)), None)
            if refusal is None:
                raise
            raise refusal from None
        metadata = {"resourceVersion": str(self.store.revision)}
        return list_text(target.row, metadata, await self.all_shown(target.row, going))

    async def delete_quietly(self, request: Request, version: Version, options: Mapping[str, Any]) -> None:
        target = Target(request.target.row, version.key.namespace, version.key.name)
        try:
            await self.delete(Request("delete", target, request.user, request.query), options)
        except ApiError as error:
            if error.code != 404:
                raise

    def uid(self) -> str:
        return uid_from(self.random.getrandbits(128))

    def generated_name(self, row: Row, base: str) -> str:
        if not base:
            why = "Required value: name or generateName is required"
            raise refusals.invalid(row.resource, "", "metadata.name", why)
        return base[:58] + "".join(self.random.choices(SUFFIX_LETTERS, k=5))


def matching(versions: Iterable[Version], matches: Callable[[Version], bool]) -> list[Version]:
    found = []
    for place, version in enumerate(versions):
        if not place % 256:
            checkpoint()
        if matches(version):
            found.append(version)
    return found


def all_shown(row: Row, raws: Iterable[bytes]) -> list[bytes]:
    found = []
    for raw in raws:
        checkpoint()
        found.append(shown(row, raw))
    return found


def shown(row: Row, raw: bytes) -> bytes:
    """An object out of the store as this version shows it; the apiVersion is the first field of every text there."""
    if row.guise is not None:
        version = {"apiVersion": row.resource.api_version}
        return ENCODER.encode({**version, **row.guise.served(DECODER.decode(raw)), **version})
    if not row.is_custom or raw.startswith(head := text_head(row.resource.api_version)):
        return raw
    return head + raw[raw.index(b'"', len(b'{"apiVersion":"')) + 1 :]


def text_head(api_version: str) -> bytes:
    return b'{"apiVersion":"%b"' % api_version.encode()


def making(row: Row, obj: Object) -> Make:
    """The text of an object at a revision, as it is stored, and its labels."""
    version = {"apiVersion": row.stored_as or row.resource.api_version}
    if row.guise is not None:
        obj = row.guise.stored(obj)

    def make(revision: int) -> tuple[bytes, Object]:
        metadata = {**obj["metadata"], "resourceVersion": str(revision)}
        if "managedFields" in metadata:
            metadata["managedFields"] = [with_text_of_fields(each) for each in metadata["managedFields"]]
        at = {**version, **obj, **version, "metadata": metadata}
        if "spec" in at:
            at["spec"] = text_of(at["spec"])
        return ENCODER.encode(at), dict(labels_of(obj))

    return make


def text_of(part: Any) -> Any:
    """What is written in the place of a spec, or of owned fields: of those that come again their text, if known."""
    return once(part, text_of, lambda: msgspec.Raw(ENCODER.encode(part))) if is_part(part) else part


def with_text_of_fields(entry: Object) -> Object:
    """An entry of `metadata.managedFields`, for the encoder."""
    fields = entry.get("fieldsV1")
    return {**entry, "fieldsV1": text_of(fields)} if is_part(fields) else entry


def list_text(row: Row, metadata: Object, items: Sequence[bytes]) -> bytes:
    """A list in JSON; built-in kinds are told by the list alone, not by each of its items."""
    begin, between, parts, end = list_pieces(row, metadata, items)
    if not parts:
        return begin + end
    if len(parts) == 1:
        return b"".join((begin, parts[0], end))
    # A long list is copied just once.
    return between.join((b"".join((begin, parts[0])), *parts[1:-1], b"".join((parts[-1], end))))


def list_parts(row: Row, metadata: Object, items: Sequence[bytes]) -> Sequence[bytes | memoryview]:
    """The same text in pieces that follow each other: objects are not copied."""
    begin, between, parts, end = list_pieces(row, metadata, items)
    found: list[bytes | memoryview] = [begin]
    for each in parts:
        found += (each, between)
    found[-1] = end if parts else begin + end
    return found


def list_pieces(
    row: Row, metadata: Object, items: Sequence[bytes]
) -> tuple[bytes, bytes, Sequence[bytes | memoryview], bytes]:
    """How a list begins, what is between its items, what it has of each of them, and how it ends."""
    resource = row.resource
    head = {"kind": row.list_kind, "apiVersion": resource.api_version, "metadata": metadata}
    begin, between, end = ENCODER.encode(head)[:-1] + b',"items":[', b",", b"]}"
    if not row.is_custom and items:
        kind = text_head(resource.api_version) + b',"kind":"%b",' % resource.kind.encode()
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
        raise refusals.invalid(refusals.LIST_OPTIONS, "", "resourceVersionMatch", why)


def success(details: Object) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
