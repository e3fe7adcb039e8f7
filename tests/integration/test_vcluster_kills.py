"""The service of virtual clusters, killed in the middle of each operation."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.operations import OPERATIONS
from tapestry.apis.planes import PLANES, plane_id
from tapestry.apis.vclusters import VCLUSTERS, Phase
from tapestry.client.client import Client
from tapestry.client.watch import Changes, Synced, Watch
from tapestry.kube.objects import Object, key_of, name_of, value_at
from tapestry.kube.resources import NAMESPACES
from tapestry.local.kubernetes import free_ports
from tapestry.vclusters.orchestrator import journal_of, phase_of, waiting_request

from .plane_clients import client_of
from .servers import PlanesProcess
from .vcluster_clients import COLLECTION, Clients, clients

TIMEOUT = 40.0
BLUE = f"{COLLECTION}/blue"
WITH_SNAPSHOT = {"createSnapshot": True, "drainWorkloads": True}
LIMITS = {"vclusters": "10", "runningVclusters": "10", "snapshots": "10", "concurrentOperations": "10"}
LIFE = ("create", "scale", "snapshot", "suspend", "resume", "suspend-with-snapshot", "resume-again", "restore")
"""Operations of a life in their order. A deletion ends it."""
ENDS: dict[str, Phase] = dict.fromkeys(LIFE, Phase.RUNNING) | {
    "suspend": Phase.SUSPENDED,
    "suspend-with-snapshot": Phase.SUSPENDED,
}
BOUNDARIES = {"create": 2, "scale": 0, "suspend-with-snapshot": 2, "resume-again": 1, "restore": 4, "delete": 1}
"""Changes of the journal before the kill in the short test."""
MAX_BOUNDARY = 8
"""A restore writes its journal most often: once at its start, and once after each of its six steps."""


@dataclass
class Setting:
    """The process, the clients that outlive its kills, and what is known about the virtual cluster."""

    process: PlanesProcess
    world: Clients
    management: Client
    snapshot: str = ""
    killed: list[str] = field(default_factory=list)

    def request(self, name: str) -> tuple[str, str, dict[str, Any]]:
        """Return the HTTP method, the path and the options of an operation. It has the same request id each time."""
        if name == "delete":
            return "DELETE", BLUE, {"params": {"deleteSnapshots": "true", "requestId": name}}
        body: dict[str, Any] = {"requestId": name}
        match name:
            case "create":
                return "POST", COLLECTION, {"json": {**body, "name": "blue"}}
            case "scale":
                body["resources"] = {"cpuLimit": "2"}
            case "suspend-with-snapshot":
                body |= WITH_SNAPSHOT
            case "restore":
                body["snapshotId"] = self.snapshot
        return "POST", f"{BLUE}:{name.partition('-')[0]}", {"json": body}

    async def operate(self, name: str, boundary: int | None) -> Any:
        """Carry out an operation, and kill the process after so many changes of its journal. Return its record."""
        method, path, options = self.request(name)
        before = ""
        if boundary is not None:
            before = await self._interrupted(name, boundary)
        again = await self.world.rest(method, path, **options)
        assert before in ("", again["operationId"])
        async with asyncio.timeout(TIMEOUT):
            while True:
                ended = await self.world.rest(
                    "POST", f"/v1/operations/{again['operationId']}:wait", json={"timeoutSeconds": 30}
                )
                if ended.get("done"):
                    break
        assert "error" not in ended, (name, boundary, ended)
        return ended

    async def _interrupted(self, name: str, boundary: int) -> str:
        """Request an operation and kill the process. Return the id of the operation; empty if no answer came."""
        method, path, options = self.request(name)
        watching = asyncio.Event()
        changes = asyncio.create_task(journal_changes(self.management, boundary, watching))
        await watching.wait()
        request = asyncio.create_task(self.world.rest(method, path, **options))
        await changes if boundary else None
        if not boundary:
            await asyncio.wait([request])
        self.process.kill()
        self.killed.append(name)
        await asyncio.to_thread(self.process.start)
        self.process.wait_for_output("served by rest", len(self.killed) + 1)
        with contextlib.suppress(aiohttp.ClientError):
            answer = await request
            id: str = answer["operationId"]
            return id
        return ""

    async def check(self, phase: Phase) -> None:
        """Check that the virtual cluster is as it should be, and that nothing else exists."""
        (vcluster,) = await self.management.list(VCLUSTERS)
        assert phase_of(vcluster) == phase
        assert journal_of(vcluster) is None
        assert waiting_request(vcluster) is None
        (plane,) = await self.management.list(PLANES)
        assert value_at(plane, "spec", "state") == ("Suspended" if phase is Phase.SUSPENDED else "Open")
        assert name_of(plane) == value_at(vcluster, "status", "plane")
        snapshots = (await self.world.rest("GET", "/v1/snapshots")).get("snapshots", [])
        files = list((self.process.folder / "snapshots").glob("*"))
        assert len(files) == len(snapshots), files
        expected = {
            "vclusters": "1",
            "runningVclusters": "0" if phase is Phase.SUSPENDED else "1",
            "snapshots": str(len(snapshots)),
            "concurrentOperations": "0",
        }
        used = (await self.world.rest("GET", "/v1/projects/default/quota"))["used"]
        assert {name: used.get(name, "0") for name in expected} == expected

    async def check_nothing_is_left(self, plane: Object, namespaces: set[str]) -> None:
        for resource in (VCLUSTERS, PLANES, CLUSTER_BINDINGS):
            assert await self.management.list(resource) == []
        assert {name_of(each) for each in await self.management.list(NAMESPACES)} == {*namespaces, "shop"}
        assert await self.world.rest("GET", "/v1/snapshots") == {}
        used = (await self.world.rest("GET", "/v1/projects/default/quota")).get("used", {})
        assert {name: text for name, text in used.items() if text != "0"} == {}
        assert list((self.process.folder / "snapshots").glob("*")) == []
        left = [each for each in self.process.folder.rglob("*") if plane_id(plane) in each.name]
        assert left == []


async def journal_changes(management: Client, count: int, watching: asyncio.Event) -> None:
    """Wait for the end of the operation that begins next, or for so many changes of its journal."""
    seen: list[Any] = []
    async with aclosing(Watch(management, VCLUSTERS).events()) as events:
        async for event in events:
            if isinstance(event, Synced):
                watching.set()
            for type, vcluster in event.changes if isinstance(event, Changes) else ():
                journal = value_at(vcluster, "status", "journal")
                if journal is not None and journal not in seen:
                    seen.append(journal)
                if type == "DELETED" or len(seen) >= count or (seen and journal is None):
                    return


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Setting]:
    (rest,) = free_ports(1)
    with PlanesProcess(folder / "planes", "--rest-address", f"127.0.0.1:{rest}") as process:
        process.wait_for_output("served by rest")
        async with clients(process, rest, rest) as world, client_of(process.kubeconfig) as management:
            await world.rest("PATCH", "/v1/projects/default/quota", json={"limits": LIMITS})
            yield Setting(process, world, management)


async def check_life(setting: Setting, boundaries: dict[str, int]) -> None:
    """Carry out all operations of a life, with a kill at a boundary of each that has one, and check what exists."""
    namespaces = {name_of(each) for each in await setting.management.list(NAMESPACES)}
    for name in LIFE:
        ended = await setting.operate(name, boundaries.get(name))
        setting.snapshot = ended.get("snapshotId") or setting.snapshot
        await setting.check(ENDS[name])
    (plane,) = await setting.management.list(PLANES)
    await setting.operate("delete", boundaries.get("delete"))
    await setting.check_nothing_is_left(plane, namespaces)
    records = [key_of(each) for each in await setting.management.list(OPERATIONS)]
    assert len(records) == len(LIFE) + 1, records
    assert setting.killed == [*(each for each in (*LIFE, "delete") if each in boundaries)]
    assert "Traceback" not in setting.process.log.read_text()


@pytest.mark.timeout(180)
async def test_operations_survive_kills(tmp_path: Path) -> None:
    async with running(tmp_path) as setting:
        await check_life(setting, BOUNDARIES)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("boundary", range(MAX_BOUNDARY + 1))
async def test_operations_survive_kills_at_every_boundary(tmp_path: Path, boundary: int) -> None:
    async with running(tmp_path) as setting:
        await check_life(setting, dict.fromkeys((*LIFE, "delete"), boundary))
