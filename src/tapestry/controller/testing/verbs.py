"""The verbs of the in-process API: each takes the place it was asked at and answers with an object, or raises.

Reads see the revision that readers are let to see, writes always the truth.  No verb waits, so each is atomic.
"""

import base64
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from tapestry.apiserver import refusals
from tapestry.controller.testing import writes
from tapestry.controller.testing.selection import selection
from tapestry.controller.testing.storage import Key, Storage
from tapestry.controller.testing.watches import Watch
from tapestry.kube.conditions import with_condition
from tapestry.kube.objects import Object, is_deleting, key_of, split_key, uid_of, value_at, with_value, without
from tapestry.kube.patches import PatchError, json_patched, merged
from tapestry.kube.resources import Resource
from tapestry.kube.strategic import PatchSchema, strategic_merged
from tapestry.kube.times import timestamp

MERGE = "application/merge-patch+json"
SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # of generated names: without vowels, hence without words
SHOWN_WHEN_GONE = ("pods", "services", "serviceaccounts", "namespaces", "persistentvolumes", "persistentvolumeclaims")
WATCH_SECONDS = 1800

Query = Mapping[str, str]
Place = tuple[str, str]  # in a list: the namespace and the name


class Target(NamedTuple):
    """What a path names; a collection where `name` is None."""

    resource: Resource
    namespace: str | None = None
    name: str | None = None
    subresource: str | None = None

    @property
    def key(self) -> Key:
        assert self.name is not None, f"{self} is a collection"
        return Key(self.resource, self.namespace or "", self.name)


@dataclass(frozen=True, slots=True)
class Verbs:
    storage: Storage
    now: Callable[[], datetime]
    without_status: frozenset[Resource]
    schemas: Mapping[Resource, PatchSchema]
    random: Random
    salt: int
    """Makes this server's UIDs unlike those of others."""
    births: Counter[str] = field(default_factory=Counter)

    # -- reading

    def get(self, target: Target, query: Query) -> Object:
        found = self.storage.at(self._not_older(query.get("resourceVersion", ""))).get(target.key)
        if found is None:
            raise refusals.not_found(target.resource, target.key.name)
        return found

    def list(self, target: Target, query: Query) -> Object:
        chosen = selection(target.resource, target.namespace, query)
        version, limit = query.get("resourceVersion", ""), number(query.get("limit", "0"))
        if token := query.get("continue"):
            revision, start = opened_token(token)
            if revision < self.storage.compacted:
                raise refusals.ExpiredList(token)
        else:
            revision, start = self._not_older(version), ("", "")
            if version == "0":  # a list out of a cache is never cut into pages
                limit = 0
        objects = [obj for obj in chosen.of(self.storage.at(revision)) if place(obj) > start]
        return listed(target.resource, objects, limit or len(objects), revision)

    def watch(self, target: Target, query: Query) -> Watch:
        version, initial = query.get("resourceVersion", ""), query.get("sendInitialEvents")
        if initial is not None and query.get("resourceVersionMatch") != "NotOlderThan":
            why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            raise refusals.invalid(refusals.LIST_OPTIONS, "", "resourceVersionMatch", why)
        anywhere = version in ("", "0")
        listing = anywhere if initial is None else initial == "true"
        return Watch(
            self.storage,
            selection(target.resource, target.namespace, query),
            cursor=self._not_older(version) if listing or anywhere else number(version),
            initial=listing,
            bookmarks=query.get("allowWatchBookmarks") in ("1", "true"),
            seconds=number(query.get("timeoutSeconds", "0")) or WATCH_SECONDS,
        )

    def _not_older(self, version: str) -> int:
        """The revision that readers see.  Where a real server would first wait for `version`, this one refuses."""
        visible = self.storage.visible
        if version and number(version) > visible:
            raise refusals.too_new(version, visible)
        return visible

    # -- writing

    def create(self, target: Target, body: Any, query: Query) -> Object:
        resource, namespace = target.resource, target.namespace
        if resource.namespaced and namespace is None:
            raise refusals.not_allowed()
        wanted = writes.checked(resource, namespace, target.name, body)
        name = wanted["metadata"].get("name") or self._generated_name(resource, wanted)
        key = Key(resource, namespace or "", name)
        if self.storage.get(key) is not None:
            raise refusals.already_exists(resource, name)
        wanted = with_value(wanted, ("metadata", "name"), name)
        has_status = resource not in self.without_status
        found = writes.created(resource, wanted, uid=self._uid(key), has_status=has_status, now=self.now())
        return self._commit(key, None, found, query)

    def replace(self, target: Target, body: Any, query: Query) -> Object:
        return self._update(target, self._current(target), writes.checked(*target[:3], body), query)

    def patch(self, target: Target, content_type: str, patch: Any, query: Query) -> Object:
        current = self._current(target)
        wanted = writes.checked(*target[:3], self._patched(target.resource, current, content_type, patch))
        if uid_of(wanted) != uid_of(current):
            why = f'Invalid value: "{uid_of(wanted)}": field is immutable'
            raise refusals.invalid(target.resource, target.key.name, "metadata.uid", why)
        return self._update(target, current, wanted, query)

    def apply(self, target: Target, body: Any, query: Query) -> tuple[int, Object]:
        """Server-side apply in its least form: create, or merge.

        Nobody owns fields here: nothing conflicts, a field that is no longer applied stays, and lists are replaced.
        """
        if not query.get("fieldManager"):
            why = "Required value: is required for apply patch"
            raise refusals.invalid(refusals.PATCH_OPTIONS, "", "fieldManager", why)
        if self.storage.get(target.key) is None and target.subresource is None:
            return 201, self.create(target, body, query)
        return 200, self.patch(target, MERGE, body, query)

    def delete(self, target: Target, options: Mapping[str, Any], query: Query) -> Object:
        current = self._current(target)
        left = writes.deleted(target.resource, current, options, self.now())
        found = self._commit(target.key, current, left, query)
        if left is None and target.resource.plural not in SHOWN_WHEN_GONE:
            return success({**refusals.details(target.resource, target.key.name), "uid": uid_of(current)})
        return found

    def delete_collection(self, target: Target, options: Mapping[str, Any], query: Query) -> Object:
        chosen = selection(target.resource, target.namespace, query)
        objects = chosen.of(self.storage.at(self.storage.revision))
        for obj in objects:
            self.delete(Target(target.resource, *split_key(key_of(obj))), options, query)
        return listed(target.resource, objects, len(objects), self.storage.revision)

    def evict(self, target: Target, body: Any, query: Query) -> Object:
        """There are no disruption budgets here: an eviction is a deletion."""
        self.delete(target, value_at(body, "deleteOptions", default={}), query)
        return success({})

    def bind(self, target: Target, body: Any, query: Query) -> Object:
        """A scheduler says where a pod runs; it is said once."""
        pod = self._current(target)
        if uid_of(body) and uid_of(body) != uid_of(pod):
            raise refusals.other_uid(target.resource, target.key.name, uid_of(body), uid_of(pod))
        if is_deleting(pod) or value_at(pod, "spec", "nodeName"):
            why = "it is being deleted, or assigned to a node already"
            raise refusals.conflict(target.resource, target.key.name, why)
        placed = with_value(pod, ("spec", "nodeName"), value_at(body, "target", "name"))
        conditions = value_at(pod, "status", "conditions", default=[])
        marks = with_condition(conditions, {"type": "PodScheduled", "status": "True"}, self.now())
        self._commit(target.key, pod, with_value(placed, ("status", "conditions"), marks), query)
        return success({})

    def token(self, target: Target, body: Any) -> Object:
        """A token that nothing accepts, with a true expiry."""
        account = self._current(target)
        expiry = self.now() + timedelta(seconds=value_at(body, "spec", "expirationSeconds", default=3600))
        return {
            **body,
            "status": {"token": f"{uid_of(account)}.{self._uid(target.key)}", "expirationTimestamp": timestamp(expiry)},
        }

    def _current(self, target: Target) -> Object:
        found = self.storage.get(target.key)
        if found is None:
            raise refusals.not_found(target.resource, target.key.name)
        return found

    def _update(self, target: Target, current: Object, wanted: Object, query: Query) -> Object:
        status = None if target.resource in self.without_status else target.subresource == "status"
        found = writes.updated(target.resource, current, wanted, status=status)
        if writes.is_gone(found):
            self._commit(target.key, current, None, query)
            return found
        return self._commit(target.key, current, found, query)

    def _commit(self, key: Key, current: Object | None, wanted: Object | None, query: Query) -> Object:
        """Store `wanted`, or delete where it is None; a write that changes nothing is no revision."""
        if wanted is not current and "dryRun" not in query:
            return self.storage.commit(key, wanted)
        found = wanted or current
        assert found is not None
        return found

    def _patched(self, resource: Resource, current: Object, content_type: str, patch: Any) -> Any:
        """`current` after a patch.  Without a schema a strategic merge patch is a merge patch: lists are replaced."""
        try:
            match content_type:
                case "application/json-patch+json":
                    return json_patched(current, patch)
                case "application/strategic-merge-patch+json" if resource in self.schemas:
                    return strategic_merged(current, patch, self.schemas[resource])
                case "application/strategic-merge-patch+json" if not writes.is_custom(resource):
                    return merged(current, patch)
                case "application/merge-patch+json":
                    return merged(current, patch)
        except PatchError as error:
            raise refusals.rejected_patch(str(error)) from error
        raise refusals.unknown_format(content_type)

    def _uid(self, key: Key) -> str:
        """Follows from the name and from how often it was given, not from what else was made before: names of ours
        are made of UIDs, and a replay that makes one thing more must come to the same ones."""
        name = f"{key.resource}/{key.namespace}/{key.name}"
        self.births[name] += 1
        return str(UUID(int=Random(f"{self.salt}/{name}/{self.births[name]}").getrandbits(128), version=4))

    def _generated_name(self, resource: Resource, wanted: Object) -> str:
        base: str = wanted["metadata"].get("generateName", "")
        if not base:
            why = "Required value: name or generateName is required"
            raise refusals.invalid(resource, "", "metadata.name", why)
        return base[:58] + "".join(self.random.choices(SUFFIX_LETTERS, k=5))


def listed(resource: Resource, objects: list[Object], limit: int, revision: int) -> Object:
    """The first `limit` of `objects` as a list of one moment."""
    items = objects[:limit]
    metadata: Object = {"resourceVersion": str(revision)}
    if len(objects) > limit:
        metadata["continue"] = sealed_token(revision, place(items[-1]))
    if not writes.is_custom(resource):  # items of built-in kinds do not say what they are
        items = [without(without(item, "kind"), "apiVersion") for item in items]
    return {"apiVersion": resource.api_version, "kind": f"{resource.kind}List", "metadata": metadata, "items": items}


def place(obj: Object) -> Place:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def sealed_token(revision: int, after: Place) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((revision, after))).decode()


def opened_token(token: str) -> tuple[int, Place]:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token), type=tuple[int, Place])
    except ValueError as error:  # of the alphabet, or of what is written in it
        raise refusals.bad_request(f"continue key is not valid: {error}") from error


def number(text: str) -> int:
    if not text.isdecimal():
        raise refusals.bad_request(f'Invalid value: "{text}": it is not a number')
    return int(text)


def success(details: Object) -> Object:
    return {"apiVersion": "v1", "kind": "Status", "status": "Success", "details": details}
