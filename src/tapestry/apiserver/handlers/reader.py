"""Reads of objects: get, list and watch. They see durable data only."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import TRUE_VALUES, Query, Target, parse_number
from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.core.storage_codec import StorageCodec
from tapestry.apiserver.core.store import Compacted, ObjectVersion, Store
from tapestry.apiserver.core.workers import current_request_budget
from tapestry.apiserver.handlers.selections import (
    ContinueToken,
    decode_continue_token,
    matching_versions,
    parse_selection,
)
from tapestry.apiserver.handlers.views import ListResult
from tapestry.apiserver.handlers.watches import IDENTITY_ENCODER, WatchEncoder, WatchResponse
from tapestry.kube.objects import Object

REVISION_WAIT_TIMEOUT = 3.0
"""Seconds that a read waits for a revision that does not exist yet."""
DEFAULT_WATCH_SECONDS = (1800, 3600)
"""Range of the default watch timeout in seconds."""
MAX_WATCH_SECONDS = 86_400
"""Maximum watch timeout in seconds."""


@dataclass(frozen=True)
class Reader:
    """Read objects from the store; errors are those of Kubernetes."""

    store: Store
    codec: StorageCodec
    random: Random

    async def get(self, target: Target, query: Query) -> bytes:
        await self.wait_for_revision(query.get("resourceVersion", ""))
        version = self.store.get(*target.key)
        if version is None:
            raise api_errors.not_found(target.info.resource, target.name)
        return await self.codec.from_storage(target.info, version.raw)

    async def list(self, target: Target, query: Query) -> ListResult:
        selection = await parse_selection(target.info, query)
        versions, revision, limit = await self.list_versions(target, query)
        matching = await matching_versions(versions, selection)
        page = matching[:limit] if limit else matching
        metadata: Object = {"resourceVersion": str(revision)}
        if len(page) < len(matching):
            last = page[-1].key
            metadata["continue"] = ContinueToken(revision, last.namespace, last.name).encode()
            if selection.matches is None:
                metadata["remainingItemCount"] = len(matching) - len(page)
        return ListResult(metadata, await self.codec.all_from_storage(target.info, page))

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

    async def watch(self, target: Target, query: Query, encoder: WatchEncoder = IDENTITY_ENCODER) -> WatchResponse:
        info, version, initial = target.info, query.get("resourceVersion", ""), query.get("sendInitialEvents")
        if initial is not None and query.get("resourceVersionMatch") != "NotOlderThan":
            why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            raise api_errors.invalid_field(api_errors.LIST_OPTIONS, "", "resourceVersionMatch", why)
        selection = await parse_selection(info, query)
        any_version = version in ("", "0")
        with_list = any_version if initial is None else initial == "true"
        if with_list or any_version:
            await self.wait_for_revision(version)
        after = self.store.revision if with_list or any_version else parse_number(version, "resourceVersion")
        requested = min(parse_number(query.get("timeoutSeconds") or "0", "timeoutSeconds"), MAX_WATCH_SECONDS)
        name = target.name or selection.name
        try:
            subscription = self.store.watch(info.storage, target.namespace, name, after=after)
        except Compacted as error:
            raise api_errors.resource_version_expired(after, error.oldest) from None
        items = None
        if with_list:
            try:
                existing = self.store.list_objects(info.storage, target.namespace, selection.name)
                items = await matching_versions(existing, selection)
            except BaseException:
                self.store.unwatch(info.storage, subscription)
                raise
        return WatchResponse(
            *(self.store, info, subscription, selection.matches, encoder),
            initial_objects=list(items) if items is not None else None,
            revision=after,
            allow_bookmarks=query.get("allowWatchBookmarks") in TRUE_VALUES,
            timeout=requested or self.random.randrange(*DEFAULT_WATCH_SECONDS),
            send_initial_end=initial == "true",
            convert=(lambda raws: self.codec.convert_stored(info, raws)) if info.conversion_webhook else None,
            budget=current_request_budget(),
        )

    async def wait_for_revision(self, version: str) -> None:
        """Wait a short time for a future revision, or for the latest one if none is named."""
        if not version:
            await self.store.wait_for_latest()
        elif not await self.store.wait_for_revision(parse_number(version, "resourceVersion"), REVISION_WAIT_TIMEOUT):
            raise api_errors.resource_version_too_large(version, self.store.revision)


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
