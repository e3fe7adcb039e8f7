"""The service of virtual clusters, killed at the boundaries of the steps of its operations.

All virtual clusters of a test carry out the same operation at the same time. Each waits at another boundary until all
of them do, and then the process gets SIGKILL. See `held_planes` for the boundaries.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.unit.tenants.running_tenants import pod_named, wait_for_pod

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.planes import PLANES, plane_id
from tapestry.apis.vclusters import VCLUSTERS, Phase
from tapestry.client.client import Client
from tapestry.client.discovery import served_resources
from tapestry.client.watch import wait_for
from tapestry.kube.objects import Object, key_of, name_of, value_at
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES, PODS
from tapestry.vclusters.lifecycle import is_legal
from tapestry.vclusters.orchestrator import journal_of, phase_of, waiting_request

from .held_planes import BROKEN, boundaries
from .plane_clients import client_of, plane_kubeconfig, together
from .tenant_processes import OF_TENANTS
from .vcluster_clients import COLLECTION, Clients
from .vclusters_with_host import HeldPlanesProcess, service_with_host

TIMEOUT = 60.0
CHANGING_KINDS = frozenset({"Event", "Lease", "Operation", "PodMetrics", "NodeMetrics", "ComponentStatus"})
"""Kinds of objects that come and go without virtual clusters, and the records of operations, which stay for 7 days."""


@dataclass(frozen=True)
class Operation:
    """An operation in the life of a virtual cluster."""

    name: str
    end: Phase | None
    steps: tuple[str, ...]
    body: Mapping[str, Any] = field(default_factory=dict)
    fails_after: str = ""
    undone: tuple[str, ...] = ()

    @property
    def verb(self) -> str:
        return self.name.partition("-")[0]

    @property
    def boundaries(self) -> list[str]:
        return list(boundaries(self.steps, self.undone))


WITH_STEPS = {"createSnapshot": True, "drainWorkloads": True}
NEW_SYNC = {"spec": {"sync": {"syncPriorityClasses": True}}, "updateMask": "spec.sync"}
CREATION = ("Place", "Install", "WaitReady")
SUSPENSION = ("Snapshot", "Drain", "Stop")
RESTORATION = ("Preflight", "SafetyCopy", "Stop", "Restore", "Start", "WaitReady")
DELETION = ("Uninstall", "VerifyRemoved", "DeleteSnapshots")
LIFE = (
    Operation("create-undone", Phase.ERROR, CREATION, fails_after="WaitReady", undone=("Install",)),
    Operation("delete-undone", None, DELETION[:2]),
    Operation("create", Phase.RUNNING, CREATION),
    Operation("update", Phase.RUNNING, ("Apply", "WaitReady"), NEW_SYNC),
    Operation("scale", Phase.RUNNING, ("Apply", "WaitReady"), {"resources": {"cpuLimit": "100m"}}),
    Operation("snapshot", Phase.RUNNING, ("Snapshot",)),
    Operation("suspend", Phase.SUSPENDED, ("Stop",)),
    Operation("snapshot-suspended", Phase.SUSPENDED, ("Snapshot",)),
    Operation("restore-suspended", Phase.SUSPENDED, ("Preflight", "SafetyCopy", "Restore")),
    Operation("resume", Phase.RUNNING, ("Start", "WaitReady", "ResumeWorkloads")),
    Operation("suspend-undone", Phase.RUNNING, SUSPENSION, WITH_STEPS, "Stop", ("Stop", "Drain", "Snapshot")),
    Operation("suspend-with-steps", Phase.SUSPENDED, SUSPENSION, WITH_STEPS),
    Operation("resume-again", Phase.RUNNING, ("Start", "WaitReady", "ResumeWorkloads")),
    Operation("restore-undone", Phase.RUNNING, RESTORATION, {}, "WaitReady", ("Restore", "Stop", "SafetyCopy")),
    Operation("restore", Phase.RUNNING, RESTORATION),
    Operation("delete", None, DELETION, {"deleteSnapshots": "true"}),
)
SHORT_LIFE: Mapping[str, tuple[str, ...]] = {
    "create": ("Request", "after Place", "after Install", "before WaitReady", "Recorded"),
    "suspend-with-steps": ("Start", "after Snapshot", "after Drain", "before Stop", "Recorded"),
    "resume-again": (),
    "restore": ("Answer", "after SafetyCopy", "before Restore", "after Restore", "after Start"),
    "delete": ("Start", "before Uninstall", "after Uninstall", "before DeleteSnapshots", "Recorded"),
}
"""Operations of the short test, and a boundary of each virtual cluster at which the process is killed."""


@dataclass
class Setting:
    """The processes, the clients that outlive kills, and what is known about the virtual clusters."""

    process: HeldPlanesProcess
    world: Clients
    management: Client
    host: Client
    phases: dict[str, Phase] = field(default_factory=dict)
    snapshots: dict[str, str] = field(default_factory=dict)
    """Snapshot to restore."""
    hit: set[tuple[str, str]] = field(default_factory=set)
    """Operations and boundaries at which the process was killed."""
    starts: int = 1

    def request(self, operation: Operation, name: str) -> tuple[str, str, dict[str, Any]]:
        """Return the HTTP method, the path and the options of an operation. It has the same request id each time."""
        path = f"{COLLECTION}/{name}"
        body = {**operation.body, "requestId": f"{operation.name}-{name}"}
        match operation.verb:
            case "delete":
                return "DELETE", path, {"params": body}
            case "create":
                return "POST", COLLECTION, {"json": {**body, "name": name}}
            case "update":
                return "PATCH", path, {"json": body}
            case "restore":
                body["snapshotId"] = self.snapshots[name]
        return "POST", f"{path}:{operation.verb}", {"json": body}

    async def send(self, operation: Operation, name: str) -> str:
        method, path, options = self.request(operation, name)
        answer = await self.world.rest(method, path, **options)
        return str(answer["operationId"])

    async def operate(self, operation: Operation, boundaries: Mapping[str, str]) -> None:
        """Carry out an operation of all virtual clusters, and kill the process when they are at their boundaries."""
        fails = {"operation": operation.name, "fail": operation.fails_after}
        names = [*boundaries]
        held = {name: boundary for name, boundary in boundaries.items() if boundary}
        before: dict[str, str] = {}
        if held:
            holds = {name: {**fails, "hold": boundary} for name, boundary in boundaries.items()}
            self.process.faults.write_text(json.dumps(holds))
            before = await self._killed(operation, held)
        self.process.faults.write_text(json.dumps(dict.fromkeys(names, fails)))
        if held:
            await asyncio.to_thread(self.process.start)
            self.starts += 1
            await asyncio.to_thread(self.process.wait_for_output, "served by rest", self.starts)
        ids = await together(self.send(operation, name) for name in names)
        assert {**dict(zip(names, ids, strict=True)), **before} == dict(zip(names, ids, strict=True))
        await together(self._end(operation, name, id) for name, id in zip(names, ids, strict=True))

    async def _killed(self, operation: Operation, held: Mapping[str, str]) -> dict[str, str]:
        """Request the operation, and kill the process at its boundaries. Return the ids in the answers."""
        requests = {name: asyncio.create_task(self.send(operation, name)) for name in held}
        for name, boundary in held.items():
            await asyncio.to_thread(self.process.wait_for_output, f"held {operation.name} {name} {boundary}\n")
            self.hit.add((operation.name, boundary))
        self.process.kill()
        await asyncio.wait(requests.values())
        answers = {}
        for name, request in requests.items():
            assert isinstance(request.exception(), aiohttp.ClientError | None)
            if request.exception() is None:
                answers[name] = request.result()
        return answers

    async def _end(self, operation: Operation, name: str, id: str) -> None:
        """Wait until an operation has ended, and check its record."""

        def is_idle(vcluster: Object | None) -> bool:
            if vcluster is None or operation.end is None:
                return vcluster is None
            return journal_of(vcluster) is None and value_at(vcluster, "status", "lastOperation") == id

        vcluster = await wait_for(self.management, VCLUSTERS, name, "shop", until=is_idle, timeout=TIMEOUT)
        record = await self.world.rest("GET", f"/v1/operations/{id}")
        assert record["done"], record
        assert record.get("error", {}).get("reason", "") == (BROKEN if operation.fails_after else ""), record
        self.snapshots[name] = record.get("snapshotId") or self.snapshots.get(name, "")
        if vcluster is None:
            del self.phases[name]
            return
        assert operation.end is not None
        self.phases[name] = operation.end
        check_transitions(vcluster)

    async def check(self) -> None:
        """Check that the virtual clusters are as they should be, and that nothing else exists."""
        vclusters = await self.management.list(VCLUSTERS)
        assert {name_of(each): phase_of(each) for each in vclusters} == self.phases
        assert [each for each in vclusters if journal_of(each) or waiting_request(each)] == []
        states = {Phase.RUNNING: "Open", Phase.SUSPENDED: "Suspended"}
        installed = [each for each in vclusters if phase_of(each) in states]
        expected = {value_at(each, "status", "plane"): states[self.phases[name_of(each)]] for each in installed}
        planes, bindings = await self.management.list(PLANES), await self.management.list(CLUSTER_BINDINGS)
        assert {name_of(each): value_at(each, "spec", "state") for each in planes} == expected
        assert {name_of(each) for each in bindings} == expected.keys()
        assert len(await self.host.list(NAMESPACES, labels=OF_TENANTS)) == len(expected)
        await self._check_use()

    async def _check_use(self) -> None:
        snapshots = (await self.world.rest("GET", "/v1/snapshots", params={"pageSize": 1000})).get("snapshots", [])
        assert {each["status"] for each in snapshots} <= {"SNAPSHOT_STATUS_READY"}
        files = list((self.process.folder / "snapshots").glob("*"))
        assert len(files) == len(snapshots), files
        expected = {
            "vclusters": len(self.phases),
            "runningVclusters": sum(each is not Phase.SUSPENDED for each in self.phases.values()),
            "snapshots": len(snapshots),
            "concurrentOperations": 0,
        }
        used = (await self.world.rest("GET", "/v1/projects/default/quota")).get("used", {})
        assert {name: int(used.get(name, 0)) for name in expected} == expected

    async def run_pods(self, folder: Path) -> None:
        """Run a pod in each virtual cluster."""

        async def run_pod(plane: Object) -> None:
            file = await plane_kubeconfig(self.management, name_of(plane), folder / name_of(plane))
            async with client_of(file) as client:
                await client.create(PODS, pod_named("work"))
                await wait_for_pod(client, "work", lambda each: value_at(each, "status", "phase") == "Running")

        await together(map(run_pod, await self.management.list(PLANES)))

    def check_files(self, planes: Sequence[Object]) -> None:
        """Check that no file is left of planes."""
        ids = [plane_id(each) for each in planes]
        left = [each for each in self.process.folder.rglob("*") if any(id in each.name for id in ids)]
        assert left == []
        assert list((self.process.folder / "snapshots").glob("*")) == []


def check_transitions(vcluster: Object) -> None:
    """Check that each phase has followed from the one before it."""
    entries = [each["data"] for each in vcluster["status"]["outbox"]]
    phases = [Phase(each["from"]) if each["from"] else None for each in entries] + [phase_of(vcluster)]
    assert [Phase(each["to"]) for each in entries] == phases[1:]
    assert [pair for pair in pairwise(phases) if not is_legal(*pair)] == []


async def inventory(client: Client) -> set[str]:
    """Return all objects of a cluster, except those that come and go by themselves."""
    served = await served_resources(client)
    kinds = [each for each, verbs in served.items() if verbs >= {"list", "delete"} and each.kind not in CHANGING_KINDS]
    return {f"{kind.kind} {key_of(each)}" for kind in kinds for each in await client.list(kind)}


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Setting]:
    async with service_with_host(folder) as (process, world, management, host):
        await wait_for(management, CONFIGMAPS, "kube-root-ca.crt", "shop", until=bool, timeout=TIMEOUT)
        yield Setting(process, world, management, host)


async def check_life(setting: Setting, boundaries: Mapping[str, Sequence[str]], count: int, folder: Path) -> None:
    """Carry out operations of so many virtual clusters, each killed at its own boundaries, and check what exists."""
    clusters = setting.management, setting.host
    names = [f"v{number}" for number in range(count)]
    before = await together(map(inventory, clusters))
    planes: list[Object] = []
    for operation in LIFE:
        if operation.name not in boundaries:
            continue
        chosen = dict(zip_longest(names, boundaries[operation.name], fillvalue=""))
        await setting.operate(operation, chosen)
        await setting.check()
        if operation.name == "create":
            await setting.run_pods(folder)
        planes = await setting.management.list(PLANES) or planes
    setting.check_files(planes)
    after = await together(map(inventory, clusters))
    assert [new - old for old, new in zip(before, after, strict=True)] == [set(), set()]
    assert setting.hit == {(name, each) for name, chosen in boundaries.items() for each in chosen}
    log = setting.process.log.read_text().splitlines()
    assert [
        line for line in log if "Traceback" in line and '"logger":"asyncio"' not in line
    ] == []  # uvloop may log one


@pytest.mark.timeout(180)
async def test_operations_survive_kills(tmp_path: Path) -> None:
    async with running(tmp_path) as setting:
        await check_life(setting, SHORT_LIFE, 5, tmp_path)
    assert len(setting.hit) == 20


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_operations_survive_kills_at_every_boundary(tmp_path: Path) -> None:
    every = {operation.name: operation.boundaries for operation in LIFE}
    async with running(tmp_path) as setting:
        await check_life(setting, every, max(map(len, every.values())), tmp_path)
