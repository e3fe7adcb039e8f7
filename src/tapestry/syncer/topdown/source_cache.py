"""Cache of the ConfigMaps and Secrets that our pods may use in the virtual cluster.

The ConfigMaps of a namespace are watched together, and each Secret that a pod refers to separately, because a syncer
may only read these. Both are watched from their first pod on, and for a while after their last, because pods of a
workload are replaced often. The cache keeps digests. Data is read when it is copied, and not kept. Secrets beyond a
maximum number of watches are read periodically.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from tapestry.client.client import Client
from tapestry.controller import Informer, Result
from tapestry.kube.errors import Forbidden
from tapestry.kube.names import dns_subdomain_error
from tapestry.kube.objects import Object, key_of, version_of
from tapestry.kube.resources import CONFIGMAPS, SECRETS, Resource
from tapestry.syncer.cache_transforms import digest_only
from tapestry.syncer.grants import GrantWaits
from tapestry.syncer.topdown.namespace_informers import NamespaceInformers

COPIED_RESOURCES: dict[str, Resource] = {resource.plural: resource for resource in (CONFIGMAPS, SECRETS)}
IDLE_TIMEOUT = timedelta(seconds=20)
"""Time for which a scope without pods stays watched; less than the time until the manager revokes the right."""
MAX_WATCHED_SECRETS = 256
"""Maximum number of watched Secrets: each watch is a connection, and tenants decide how many Secrets there are."""
POLL_SECONDS = 60.0
"""Interval of reads of the other Secrets."""
ROOT_CA = "kube-root-ca.crt"
"""ConfigMap of every namespace, which is read to learn whether ConfigMaps may be read."""


def scope_of(key: str) -> str:
    """Return the scope of a source: `configmaps/team-a` or `secrets/team-a/password`."""
    kind, namespace, _ = key.split("/", 2)
    return key if kind == SECRETS.plural else f"{kind}/{namespace}"


@dataclass
class SourceCache:
    """Watch the sources of copies; keys are as in `secrets/team-a/password`."""

    is_used: Callable[[str], bool]
    """Return whether a pod may use a source in the scope."""
    client: Client
    now: Callable[[], datetime]
    on_change: Callable[[str, Object | None, Object | None], None]
    """Called for each change with (key, before, after)."""
    after_sync: Callable[[str], None]
    """Called with a scope once all its sources are known."""
    requeue: Callable[[str], None]
    """Requeue a scope."""
    idle_since: dict[str, datetime | None] = field(default_factory=dict, init=False)
    """Watched scopes, with the time since which they have no pods; None if they have some."""
    polled: dict[str, Object | None] = field(default_factory=dict, init=False)
    """Digest views of the Secrets that are not watched; None if one does not exist."""
    informers: dict[str, NamespaceInformers] = field(init=False)

    def __post_init__(self) -> None:
        self.grant_waits = GrantWaits(self.now)
        self.informers = {kind: NamespaceInformers(partial(self._informer, kind)) for kind in COPIED_RESOURCES}

    def is_synced(self, key: str) -> bool:
        """Return whether the cache of the scope is filled. Before that, a missing object may exist."""
        scope = scope_of(key)
        kind, _, target = scope.partition("/")
        return scope in self.polled or self.informers[kind].synced_informer(target) is not None

    def get(self, key: str) -> Object | None:
        """Return the digest view of a source if it is known."""
        scope = scope_of(key)
        if scope in self.polled:
            return self.polled[scope]
        kind, _, target = scope.partition("/")
        informer = self.informers[kind].synced_informer(target)
        return informer.store.get(key.partition("/")[2]) if informer is not None else None

    def is_up_to_date(self, scope: str) -> bool:
        """Return whether `reconcile` would change nothing: the scope is watched if and only if it is used."""
        is_followed = scope in self.idle_since and self.idle_since[scope] is None
        return is_followed == self.is_used(scope)

    async def reconcile(self, scope: str) -> Result | None:
        """Watch a scope while it is used, and some time longer."""
        if self.is_used(scope):
            return await self.follow(scope)
        self.grant_waits.clear(scope)
        if scope not in self.idle_since:
            return None
        now = self.now()
        since = self.idle_since[scope] = self.idle_since[scope] or now
        if now < since + IDLE_TIMEOUT:
            return Result(requeue_at=since + IDLE_TIMEOUT)
        del self.idle_since[scope]
        self.polled.pop(scope, None)
        kind, _, target = scope.partition("/")
        self.informers[kind].discard(target)
        return None

    async def follow(self, scope: str) -> Result | None:
        """Start to watch a scope once it may be read, or read a Secret that is not watched."""
        kind, _, target = scope.partition("/")
        is_polled = scope in self.polled
        if scope in self.idle_since and not is_polled:
            self.idle_since[scope] = None
            return None
        namespace, _, name = target.partition("/")
        if dns_subdomain_error(name or ROOT_CA):  # a pod may refer to an impossible name
            return None
        try:
            found = await self.client.find(COPIED_RESOURCES[kind], name or ROOT_CA, namespace)
        except Forbidden:
            return Result(requeue_after=self.grant_waits.pause(scope))
        self.grant_waits.clear(scope)
        self.idle_since[scope] = None
        if is_polled or (kind == SECRETS.plural and len(self.informers[kind]) >= MAX_WATCHED_SECRETS):
            self.record_poll(scope, found)
            return Result(requeue_after=POLL_SECONDS)
        self.informers[kind].add(target)
        return None

    def record_poll(self, key: str, found: Object | None) -> None:
        old, new = self.polled.get(key), digest_only(found) if found is not None else None
        is_first = key not in self.polled
        self.polled[key] = new
        if (version_of(old) if old else None) != (version_of(new) if new else None):
            self.on_change(key, old, new)
        if is_first:
            self.after_sync(key)

    def _informer(self, kind: str, target: str) -> Informer:
        namespace, _, name = target.partition("/")
        fields = f"metadata.name={name}" if name else ""
        informer = Informer(
            self.client, COPIED_RESOURCES[kind], namespace=namespace, fields=fields, transform=digest_only
        )
        informer.with_name(f"virtual_{kind}")
        informer.on_change(partial(self._changed, kind))
        informer.after_sync(lambda: self.after_sync(f"{kind}/{target}"))
        return informer

    def _changed(self, kind: str, old: Object | None, new: Object | None) -> None:
        if (obj := new or old) is not None:
            self.on_change(f"{kind}/{key_of(obj)}", old, new)
