"""Steps of the native engine that write, check, restore and delete snapshots.

A Snapshot has a name that follows from its operation, so each step finds what an earlier attempt made.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tapestry.apis.keys import PREFIX, SNAPSHOT_FINALIZER
from tapestry.apis.operations import SNAPSHOTS
from tapestry.apis.vclusters import Journal, Phase, Verb
from tapestry.client.client import Client
from tapestry.kube.errors import AlreadyExists, ApiError, Invalid
from tapestry.kube.names import dns_subdomain_error
from tapestry.kube.objects import Object, name_of, namespace_of, uid_of, value_at
from tapestry.kube.times import parse_time, timestamp
from tapestry.planes.plane_restores import NotEnoughSpace, SnapshotFile
from tapestry.vclusters.api_errors import service_error
from tapestry.vclusters.engines import StepFailed, StepNotDone
from tapestry.vclusters.operations import snapshot_id, truncated
from tapestry.vclusters.snapshots import SAFETY_PREFIX, NotRestorable, SnapshotFiles
from tapestry.vclusters.validation import Provided, minor_of

MAX_SNAPSHOTS = 100
"""Maximum number of snapshots of one virtual cluster."""
FAILED_RETENTION = timedelta(days=7)
"""Time for which a snapshot that failed is listed."""
OF_VCLUSTER = PREFIX + "snapshot-of"
"""Label of a Snapshot: the UID of its virtual cluster."""
Results = Mapping[str, Any]


@dataclass(frozen=True)
class SnapshotSteps:
    client: Client
    files: SnapshotFiles
    provided: Provided

    # -- snapshot

    async def snapshot(self, vcluster: Object, plane: Object, journal: Journal) -> Results:
        """Write a snapshot, unless an earlier attempt has completed it."""
        snapshot = await self._ensure(vcluster, journal)
        if value_at(snapshot, "status", "phase") != "Ready":
            if value_at(snapshot, "status", "phase") is None:
                snapshot = await self._set_status(snapshot, {"phase": "Creating"})
            with_workloads = journal.arguments.get("includeWorkloads", True)
            written = await self._write(plane, uid_of(snapshot), with_workloads=with_workloads)
            snapshot = await self._complete(snapshot, self._ready_status(uid_of(snapshot), written))
        return {"snapshot": name_of(snapshot), "lastSnapshot": snapshot_info(snapshot)}

    async def undo_snapshot(self, vcluster: Object, journal: Journal) -> None:
        """Keep a complete snapshot, which is useful by itself. Any other one has failed."""
        found = await self.client.find(SNAPSHOTS, snapshot_name(journal), namespace_of(vcluster))
        if found is not None and value_at(found, "status", "phase") not in ("Ready", "Failed"):
            await self._set_status(found, failed_status(journal.error or "the operation has ended"))
            self.files.delete(uid_of(found))

    async def delete_all(self, vcluster: Object) -> Results:
        """Delete all snapshots of a virtual cluster."""
        found = await self._snapshots_of(vcluster)
        for each in found:
            await self.client.delete_if_exists(SNAPSHOTS, each)
        if found:
            raise StepNotDone(f"{len(found)} snapshots are being deleted")
        return {}

    async def _ensure(self, vcluster: Object, journal: Journal) -> Object:
        name, namespace = snapshot_name(journal), namespace_of(vcluster)
        if (found := await self.client.find(SNAPSHOTS, name, namespace)) is not None:
            return found
        if len(await self._snapshots_of(vcluster)) >= MAX_SNAPSHOTS:
            text = f"the virtual cluster has {MAX_SNAPSHOTS} snapshots; delete some"
            raise StepFailed("TOO_MANY_SNAPSHOTS", text, "RESOURCE_EXHAUSTED")
        try:
            return await self.client.create(SNAPSHOTS, snapshot_object(vcluster, journal))
        except AlreadyExists:
            return await self.client.get(SNAPSHOTS, name, namespace)
        except (Invalid, TypeError, OverflowError) as error:
            raise StepFailed("FIELD_INVALID", f"arguments: {error}", "INVALID_ARGUMENT") from error

    async def _snapshots_of(self, vcluster: Object) -> list[Object]:
        return list(
            await self.client.list(SNAPSHOTS, namespace_of(vcluster), labels=f"{OF_VCLUSTER}={uid_of(vcluster)}")
        )

    async def _set_status(self, snapshot: Object, status: Object) -> Object:
        return await self.client.patch(SNAPSHOTS, snapshot, {"status": status}, subresource="status")

    async def _complete(self, snapshot: Object, status: Object) -> Object:
        """Write that a snapshot is ready. The quota may be exceeded now that its size is known."""
        try:
            return await self._set_status(snapshot, status)
        except ApiError as error:
            if (rejected := service_error(error)) is None:
                raise
            raise StepFailed(rejected.reason, rejected.message, rejected.code.name) from error

    async def _write(self, plane: Object, name: str, *, with_workloads: bool) -> SnapshotFile:
        try:
            return await self.files.write(plane, name, with_workloads=with_workloads)
        except NotEnoughSpace as error:
            raise StepFailed("NO_DISK_SPACE", str(error), "RESOURCE_EXHAUSTED") from error
        except NotRestorable as error:
            raise StepFailed("SNAPSHOT_NOT_POSSIBLE", str(error)) from error

    def _ready_status(self, name: str, written: SnapshotFile) -> Object:
        return {
            "phase": "Ready",
            "sizeBytes": written.size,
            "storageUri": f"file:{self.files.folder.name}/{name}.tar",
            "checksumSha256": written.sha256,
            "objectCount": written.objects,
            "revision": written.revision,
            "kubernetesVersion": self.provided.kubernetes_version,
        }

    # -- restore

    async def preflight(self, vcluster: Object, plane: Object | None, journal: Journal) -> Results:
        """Check that the snapshot may be restored here, and that its file is complete."""
        snapshot = await self._requested(vcluster, journal)
        status, is_new = snapshot.get("status") or {}, is_new_cluster(journal)
        if status.get("phase") != "Ready":
            raise StepFailed("SNAPSHOT_NOT_READY", f"snapshot {name_of(snapshot)} is {status.get('phase')}")
        if not is_new and snapshot["spec"]["vclusterUid"] != uid_of(vcluster):
            text = f"snapshot {name_of(snapshot)} is of another virtual cluster; restore it as a new one"
            raise StepFailed("SNAPSHOT_OF_OTHER_CLUSTER", text)
        if version_number(status["kubernetesVersion"]) > version_number(self.provided.kubernetes_version):
            text = f"snapshot {name_of(snapshot)} is of the later version {status['kubernetesVersion']} of Kubernetes"
            raise StepFailed("SNAPSHOT_OF_LATER_VERSION", text)
        try:
            if plane is not None:
                self.files.check_is_here(plane)
            await self.files.check(uid_of(snapshot), status["sizeBytes"], status["checksumSha256"])
        except NotRestorable as error:
            raise StepFailed("SNAPSHOT_NOT_RESTORABLE", str(error)) from error
        return {"snapshotUid": uid_of(snapshot), "objects": str(status["objectCount"])}

    async def safety_copy(self, vcluster: Object, plane: Object) -> Results:
        """Copy what is there before it is replaced."""
        written = await self._write(plane, safety_name(vcluster), with_workloads=True)
        return {"safetyObjects": str(written.objects), "safetyRevision": str(written.revision)}

    async def restore(self, plane: Object, journal: Journal) -> Results:
        """Replace the objects of the closed plane. The counts of objects are checked with it."""
        uid, objects = journal.data["snapshotUid"], int(journal.data["objects"])
        return await self._restore(plane, uid, objects, journal, is_undo=False)

    async def undo_restore(self, vcluster: Object, plane: Object, journal: Journal) -> None:
        """Return to the safety copy."""
        if objects := journal.data.get("safetyObjects"):
            await self._restore(plane, safety_name(vcluster), int(objects), journal, is_undo=True)

    def delete_safety_copy(self, vcluster: Object) -> None:
        self.files.delete(safety_name(vcluster))

    async def _requested(self, vcluster: Object, journal: Journal) -> Object:
        """Return the snapshot to restore, in any namespace of the project. Others look like ones that do not exist."""
        name, project = str(journal.arguments.get("snapshotId")), value_at(vcluster, "spec", "project")
        is_name = dns_subdomain_error(name) is None
        found = await self.client.list(SNAPSHOTS, fields=f"metadata.name={name}") if is_name else []
        for each in sorted(found, key=lambda each: namespace_of(each) != namespace_of(vcluster)):
            if each["spec"]["project"] == project:
                return each
        raise StepFailed("SNAPSHOT_NOT_FOUND", f"there is no snapshot {name}", "NOT_FOUND")

    async def _restore(self, plane: Object, name: str, objects: int, journal: Journal, *, is_undo: bool) -> Results:
        after = int(journal.data.get("safetyRevision", 0))
        is_new = is_new_cluster(journal) and not is_undo
        with_workloads = is_undo or journal.arguments.get("restoreWorkloads", True)
        try:
            restored = await self.files.restore(
                plane, name, objects, after, is_new=is_new, with_workloads=with_workloads
            )
        except NotRestorable as error:
            raise StepFailed("SNAPSHOT_NOT_RESTORABLE", str(error)) from error
        return {"restoredObjects": str(restored.objects), "restoredRevision": str(restored.revision)}


def snapshot_name(journal: Journal) -> str:
    """Return the name of the snapshot that an operation makes."""
    return snapshot_id(journal.id)


def safety_name(vcluster: Object) -> str:
    return SAFETY_PREFIX + uid_of(vcluster)


def is_new_cluster(journal: Journal) -> bool:
    """Return whether an operation restores a snapshot as a new virtual cluster."""
    return journal.verb is Verb.RESTORE and journal.phase_from is Phase.PENDING


def snapshot_object(vcluster: Object, journal: Journal) -> Object:
    """Return the Snapshot of an operation. Its arguments are those of the request."""
    arguments = journal.arguments
    name = arguments.get("snapshotName") or f"{name_of(vcluster)}-snapshot-{int(journal.start_time.timestamp())}"
    spec = {
        "vcluster": name_of(vcluster),
        "vclusterUid": uid_of(vcluster),
        "project": value_at(vcluster, "spec", "project"),
        "owner": value_at(vcluster, "spec", "owner"),
        "displayName": name,
        "description": arguments.get("description"),
        "expireTime": expire_time(arguments.get("retentionHours") or 0, journal.start_time),
    }
    labels = {**(arguments.get("labels") or {}), OF_VCLUSTER: uid_of(vcluster)}
    metadata = {"name": snapshot_name(journal), "namespace": namespace_of(vcluster), "labels": labels}
    return {
        "metadata": {**metadata, "finalizers": [SNAPSHOT_FINALIZER]},
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


def expire_time(retention_hours: int, start: datetime) -> str | None:
    """Return the time at which a snapshot is deleted. Without a retention, it is kept."""
    return timestamp(start + timedelta(hours=retention_hours)) if retention_hours > 0 else None


def failed_status(message: str) -> Object:
    return {"phase": "Failed", "message": truncated(message)}


def is_expired(snapshot: Object, now: datetime) -> bool:
    return (expires := expiry_of(snapshot)) is not None and expires <= now


def expiry_of(snapshot: Object) -> datetime | None:
    """Return when a snapshot is deleted; None if it is kept."""
    if value_at(snapshot, "status", "phase") == "Failed":
        return parse_time(snapshot["metadata"]["creationTimestamp"]) + FAILED_RETENTION
    text = value_at(snapshot, "spec", "expireTime")
    return parse_time(text) if text else None


def snapshot_info(snapshot: Object) -> Object:
    """Return what the status of a virtual cluster says about its last snapshot."""
    return {
        "id": name_of(snapshot),
        "name": snapshot["spec"]["displayName"],
        "createTime": snapshot["metadata"]["creationTimestamp"],
        "sizeBytes": snapshot["status"]["sizeBytes"],
        "status": snapshot["status"]["phase"],
    }


def version_number(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in minor_of(text).split("."))
