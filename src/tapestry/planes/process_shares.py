"""Shares of the planes in the threads, memory, connections and time of their process.

No plane can use up what is shared, and no user of a plane, not even a member of its group system:masters, is exempt.
"""

import asyncio
from dataclasses import dataclass

from tapestry.apis.planes import MANAGEMENT
from tapestry.apiserver.assembly import ServerIsolation, ServerThreads, connection_limits
from tapestry.apiserver.core.shared_capacity import SharedCapacity
from tapestry.apiserver.serving.connection_limiter import MAX_CONNECTIONS
from tapestry.apiserver.serving.metrics import ProcessMetrics
from tapestry.apiserver.serving.uploads import MAX_BYTES, UploadBudget
from tapestry.planes.plane_metrics import OPEN_PLANES, PlaneMetrics
from tapestry.planes.work_scheduler import PlaneWork, WorkScheduler
from tapestry.process.audit import AuditWriter


@dataclass(frozen=True)
class PlaneShare:
    """Share of one plane while it is open."""

    work: PlaneWork
    isolation: ServerIsolation

    def close(self) -> None:
        """Stop the metrics of the plane in the process."""
        OPEN_PLANES.pop(self.isolation.name, None)


class ProcessShares:
    """Shares of the planes that run on the current event loop."""

    def __init__(self, threads: ServerThreads) -> None:
        self._worker = threads.large_requests
        self._audit_writer = AuditWriter()
        self._uploads = SharedCapacity(MAX_BYTES)
        self._scheduler = WorkScheduler(asyncio.get_running_loop())
        self._scheduler.install()
        self.connections = SharedCapacity(connection_limits(MAX_CONNECTIONS)[0])
        """Authenticated connections of all planes and of the management API."""

    def open_share(self, plane_id: str) -> PlaneShare:
        work = PlaneWork(self._scheduler, plane_id)
        metrics = OPEN_PLANES[plane_id] = PlaneMetrics(work)
        isolation = ServerIsolation(
            name=plane_id,
            worker=self._worker.share(plane_id),
            upload_budget=UploadBudget(shared=self._uploads, owner=plane_id),
            connections=self.connections,
            scheduler=work,
            metrics=metrics,
            audit_writer=self._audit_writer,
        )
        return PlaneShare(work, isolation)

    def management(self) -> ServerIsolation:
        """Return the share of the management API. Its work comes first, and its metrics are those of the process."""
        return ServerIsolation(
            name=MANAGEMENT,
            worker=self._worker.share(MANAGEMENT),
            upload_budget=UploadBudget(),
            connections=self.connections,
            scheduler=PlaneWork(self._scheduler, MANAGEMENT, comes_first=True),
            metrics=ProcessMetrics(),
            audit_writer=self._audit_writer,
        )
