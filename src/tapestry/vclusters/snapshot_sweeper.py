"""Removal of snapshots that have expired, of the files of deleted ones, and of safety copies."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from tapestry.apis.keys import SNAPSHOT_FINALIZER
from tapestry.apis.operations import SNAPSHOTS
from tapestry.apis.vclusters import VCLUSTERS, Verb
from tapestry.client.client import Client
from tapestry.controller import Manager, Result
from tapestry.controller.informer import ObjectCache
from tapestry.kube.objects import Object, is_deleting, name_of, namespace_of, uid_of, value_at
from tapestry.vclusters.engines.native_snapshots import expiry_of, failed_status, is_expired, safety_name
from tapestry.vclusters.snapshots import SnapshotFiles

RECHECK_SECONDS = 60.0
"""Seconds between two checks whether the operation of an incomplete snapshot still runs."""


@dataclass(frozen=True)
class SnapshotSweeper:
    snapshots: ObjectCache[Object]
    vclusters: ObjectCache[Object]
    client: Client
    files: SnapshotFiles
    now: Callable[[], datetime]

    async def reconcile(self, key: str) -> Result | None:
        """Reconcile a snapshot; keyed by namespace and name."""
        snapshot = self.snapshots.store.get(key)
        if snapshot is None:
            return None
        if is_deleting(snapshot):
            await self._finish_deletion(snapshot)
            return None
        if is_expired(snapshot, self.now()):
            await self.client.delete_if_exists(SNAPSHOTS, snapshot)
            return None
        if value_at(snapshot, "status", "phase") in (None, "Creating"):
            if not self._is_running(snapshot):
                status = failed_status("the operation has ended before the snapshot was complete")
                await self.client.patch(SNAPSHOTS, snapshot, {"status": status}, subresource="status")
                self.files.delete(uid_of(snapshot))
            return Result(requeue_after=RECHECK_SECONDS)
        expires = expiry_of(snapshot)
        return Result(requeue_after=max((expires - self.now()).total_seconds(), 1.0)) if expires is not None else None

    async def remove_safety_copy(self, key: str) -> Result | None:
        """Remove the safety copy of a virtual cluster that is not being restored; keyed by namespace and name."""
        vcluster = self.vclusters.store.get(key)
        if vcluster is not None and value_at(vcluster, "status", "journal", "verb") != Verb.RESTORE:
            self.files.delete(safety_name(vcluster))
        return None

    async def _finish_deletion(self, snapshot: Object) -> None:
        finalizers = value_at(snapshot, "metadata", "finalizers", default=[])
        if SNAPSHOT_FINALIZER not in finalizers:
            return
        self.files.delete(uid_of(snapshot))
        others = [each for each in finalizers if each != SNAPSHOT_FINALIZER]
        await self.client.patch(SNAPSHOTS, snapshot, {"metadata": {"finalizers": others}})

    def _is_running(self, snapshot: Object) -> bool:
        """Return whether the operation that makes a snapshot runs, or may run again."""
        vcluster = self.vclusters.store.get(f"{namespace_of(snapshot)}/{snapshot['spec']['vcluster']}")
        if vcluster is None or uid_of(vcluster) != snapshot["spec"]["vclusterUid"]:
            return False
        running: str = value_at(vcluster, "status", "journal", "id", default="")
        return running.removeprefix("op-") == name_of(snapshot).removeprefix("snap-")


def install(manager: Manager, files: SnapshotFiles) -> None:
    snapshots, vclusters = manager.informer(SNAPSHOTS), manager.informer(VCLUSTERS)
    sweeper = SnapshotSweeper(snapshots, vclusters, manager.client, files, manager.now)
    manager.controller("snapshot-sweeper", sweeper.reconcile).watch(snapshots)
    manager.controller("safety-copies", sweeper.remove_safety_copy).watch(vclusters)
