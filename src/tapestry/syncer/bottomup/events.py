"""Forwarder of events about twins to their virtual pods and claims, for `kubectl describe`.

Events are for people: those from before the start are not forwarded, and neither are more than a few per second.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field

from tapestry.client.watch import Change, Changes, Synced, Watch
from tapestry.kube.objects import Object, name_of, uid_of, value_at
from tapestry.kube.resources import EVENTS, PERSISTENT_VOLUME_CLAIMS, PODS
from tapestry.syncer.caches import Caches
from tapestry.syncer.clients import Clients
from tapestry.syncer.identity import Identity
from tapestry.syncer.metrics import EVENTS_DROPPED
from tapestry.syncer.translate.metadata import virtual_key, virtual_uid
from tapestry.syncer.translate.sanitize import sanitized_text, truncate_text
from tapestry.syncer.views import Twin

MAX_EVENTS_PER_SECOND = 10.0
MAX_REASON_LENGTH = 128
CLAIM_REASONS = frozenset(
    {
        *("FailedBinding", "ProvisioningFailed", "VolumeMismatch", "ClaimLost", "ClaimMisbound"),
        *("FileSystemResizeRequired", "FileSystemResizeSuccessful", "FileSystemResizeFailed", "VolumeResizeFailed"),
    }
)
"""Reasons of forwarded events about claims. Others are about steps of provisioners."""


@dataclass
class TwinEventForwarder:
    """Watch the events about twins while the syncer leads."""

    identity: Identity
    caches: Caches
    clients: Clients
    claim_of_twin: Callable[[str, str], Object | None]
    """Return the virtual claim by the name and UID of its twin."""
    _left: float = field(default=MAX_EVENTS_PER_SECOND, init=False)
    _at: float = field(default=0.0, init=False)

    async def run(self) -> None:
        watch = Watch(self.clients.physical_reads, EVENTS, self.identity.mount_namespace, without_managed_fields=True)
        is_listed = False
        async with aclosing(watch.events()) as events:
            async for event in events:
                if isinstance(event, Synced):
                    is_listed = True
                elif isinstance(event, Changes) and is_listed:
                    self.forward(event.changes)

    def forward(self, changes: Iterable[Change]) -> None:
        for type, event in changes:
            source = self.source_of(event) if type != "DELETED" else None
            if source is None:
                continue
            if not self.take_token():
                EVENTS_DROPPED.labels(self.identity.binding_name).inc()
                continue
            reason = sanitized_text(event.get("reason"))[:MAX_REASON_LENGTH] or "Unknown"
            # Truncate again: a short name that occurs often may be replaced by a long one.
            message = truncate_text(
                sanitized_text(event.get("message")).replace(str(event["involvedObject"]["name"]), name_of(source))
            )
            record = self.clients.events
            (record.warning if event.get("type") == "Warning" else record.normal)(source, reason, message)

    def source_of(self, event: Object) -> Object | None:
        """Return the virtual object whose twin the event is about."""
        kind = value_at(event, "involvedObject", "kind")
        if kind == PERSISTENT_VOLUME_CLAIMS.kind and event.get("reason") in CLAIM_REASONS:
            involved = event["involvedObject"]
            return self.claim_of_twin(str(involved.get("name")), str(involved.get("uid")))
        return self.pod_of(event) if kind == PODS.kind else None

    def pod_of(self, event: Object) -> Object | None:
        """Return the virtual pod whose twin the event is about."""
        name = value_at(event, "involvedObject", "name")
        twin = self.caches.physical_pods.store.get(f"{self.identity.mount_namespace}/{name}")
        if not isinstance(twin, Twin) or value_at(event, "involvedObject", "uid") != twin.uid:
            return None
        pods = (self.caches.pod_on_our_nodes(key) for key in virtual_key(twin.object))
        return next((pod for pod in pods if pod is not None and uid_of(pod) == virtual_uid(twin.object)), None)

    def take_token(self) -> bool:
        now = asyncio.get_running_loop().time()
        self._left = min(MAX_EVENTS_PER_SECOND, self._left + (now - self._at) * MAX_EVENTS_PER_SECOND)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
