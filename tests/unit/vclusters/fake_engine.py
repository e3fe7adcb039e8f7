"""An engine whose virtual clusters are entries of a dictionary, with faults at chosen steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tapestry.apis.vclusters import Journal, Phase
from tapestry.kube.objects import Object, uid_of
from tapestry.vclusters.engines import Observation, StepFailed, StepNotDone
from tapestry.vclusters.plans import Step


class ProcessKilled(BaseException):
    """The process ends here, like after kill -9."""


@dataclass
class Cluster:
    """What exists of one virtual cluster outside the management API."""

    is_installed: bool = False
    is_running: bool = False
    is_drained: bool = False
    version: str = ""
    copies: set[str] = field(default_factory=set)
    """Snapshots and safety copies, by operation."""


@dataclass
class Faults:
    """Faults of one step, consumed one by one."""

    kills_before: int = 0
    kills_after: int = 0
    errors: int = 0
    waits: int = 0
    kills_after_undo: int = 0
    undo_errors: int = 0
    is_impossible: bool = False


@dataclass
class FakeEngine:
    clusters: dict[str, Cluster] = field(default_factory=dict)
    faults: dict[Step, Faults] = field(default_factory=dict)
    unhealthy: set[str] = field(default_factory=set)
    installs: int = 0
    """Number of times that something was installed that did not exist."""
    calls: list[str] = field(default_factory=list)

    async def run(self, step: Step, vcluster: Object, journal: Journal) -> Mapping[str, str]:
        self.calls.append(step)
        faults = self.faults.get(step, Faults())
        if faults.kills_before:
            faults.kills_before -= 1
            raise ProcessKilled
        if faults.errors:
            faults.errors -= 1
            raise OSError(f"{step} failed")
        if faults.is_impossible:
            raise StepFailed("IMPOSSIBLE", f"{step} is not possible")
        if faults.waits:
            faults.waits -= 1
            raise StepNotDone(f"{step} waits")
        result = self._effect(step, uid_of(vcluster), journal)
        if faults.kills_after:
            faults.kills_after -= 1
            raise ProcessKilled
        return result

    def _effect(self, step: Step, uid: str, journal: Journal) -> Mapping[str, str]:
        match step:
            case Step.PLACE:
                return {"hostCluster": "host"}
            case Step.UNINSTALL:
                self.clusters.pop(uid, None)
                return {}
            case Step.VERIFY_REMOVED:
                assert uid not in self.clusters
                return {}
            case Step.INSTALL:
                self.installs += uid not in self.clusters
                cluster = self.clusters.setdefault(uid, Cluster())
                cluster.is_installed = cluster.is_running = True
                return {"plane": uid, "apiServerEndpoint": f"https://{uid}"}
            case Step.DELETE_SNAPSHOTS | Step.PREFLIGHT:
                return {}
        cluster = self.clusters.get(uid)
        if cluster is None:
            raise StepFailed("NOT_INSTALLED", "nothing is installed")
        return change(cluster, step, journal.id)

    async def undo(self, step: Step, vcluster: Object, journal: Journal) -> None:
        self.calls.append(f"undo {step}")
        uid, faults = uid_of(vcluster), self.faults.get(step, Faults())
        if faults.undo_errors:
            faults.undo_errors -= 1
            raise OSError(f"{step} not undone")
        if (cluster := self.clusters.get(uid)) is not None:
            self._undo_effect(step, uid, cluster, journal)
        if faults.kills_after_undo:
            faults.kills_after_undo -= 1
            raise ProcessKilled

    def _undo_effect(self, step: Step, uid: str, cluster: Cluster, journal: Journal) -> None:
        match step:
            case Step.INSTALL:
                del self.clusters[uid]
            case Step.STOP:
                cluster.is_running = True
            case Step.DRAIN:
                cluster.is_drained = False
            case Step.RESTORE if journal.phase_from is not Phase.PENDING:  # a new cluster is removed next
                assert not cluster.version or f"{Step.SAFETY_COPY}-{journal.id}" in cluster.copies
                cluster.is_running, cluster.version = False, ""
            case Step.SNAPSHOT | Step.SAFETY_COPY:
                cluster.copies.discard(f"{step}-{journal.id}")

    async def observe(self, vcluster: Object) -> Observation:
        uid = uid_of(vcluster)
        cluster = self.clusters.get(uid)
        is_healthy = cluster is not None and cluster.is_running and uid not in self.unhealthy
        return Observation(is_healthy, "" if is_healthy else "the control plane does not answer")


def change(cluster: Cluster, step: Step, operation: str) -> Mapping[str, str]:
    match step:
        case Step.START:
            cluster.is_running = True
        case Step.WAIT_READY:
            assert cluster.is_running
        case Step.STOP:
            cluster.is_running = False
        case Step.DRAIN:
            cluster.is_drained = True
        case Step.RESUME_WORKLOADS:
            cluster.is_drained = False
        case Step.SNAPSHOT | Step.SAFETY_COPY:
            cluster.copies.add(f"{step}-{operation}")
            return {"snapshot": operation}
        case Step.RESTORE:
            cluster.version = operation
        case Step.APPLY:
            cluster.is_running, cluster.version = True, operation
    return {}
