"""Leader election with two `tapestry run` processes: only the holder of the Lease writes.

The leader is killed, stopped or terminated while the writer (writer/writer.py) writes continuously. Etcd numbers all
changes of the ConfigMaps and of the Lease in one sequence. The test looks up the holder at the revision of each write,
so it does not depend on timing.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tapestry.client.client import Client
from tapestry.client.watch import Changes, ListPage, Watch
from tapestry.kube.objects import Object, name_of, value_at, version_of
from tapestry.kube.resources import CONFIGMAPS, LEASES

WRITER = Path(__file__).parent / "writer"
LEASE_SECONDS = 3
CONFIGMAP_COUNT = 4


@dataclass
class Replica:
    """One `tapestry run writer`."""

    process: asyncio.subprocess.Process
    name: str = ""
    messages: list[str] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def read_log(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            record = json.loads(line)
            self.name = record.get("identity", self.name)
            async with self._changed:
                self.messages.append(record["message"])
                self._changed.notify_all()

    async def wait_for_message(self, message: str, *, times: int = 1) -> None:
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(lambda: self.messages.count(message) >= times)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


@dataclass
class History:
    """All changes of the Lease and of the ConfigMaps, by revision."""

    holders: dict[int, str] = field(default_factory=dict)
    writers: dict[int, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def follow(self, watch: Watch, into: dict[int, str], value: Callable[[Object], str]) -> None:
        async with aclosing(watch.events()) as events:
            async for event in events:
                match event:
                    case ListPage(objects):
                        seen = list(objects)
                    case Changes(changes):
                        seen = [change.object for change in changes]
                    case _:
                        continue
                async with self._changed:
                    self.names.update((int(version_of(obj)), name_of(obj)) for obj in seen)
                    into.update((int(version_of(obj)), value(obj)) for obj in seen)
                    self._changed.notify_all()

    async def wait_for_holder(self, wanted: Callable[[str], bool]) -> str:
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(lambda: bool(self.holders) and wanted(self.holder))
            return self.holder

    async def wait_for_writes_of(self, name: str) -> None:
        """Wait until `name` has written each ConfigMap: a late write of another process is then a conflict."""
        start = max(self.writers, default=0)
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(lambda: len(self.written_since(start, name)) == CONFIGMAP_COUNT)

    def written_since(self, revision: int, name: str) -> set[str]:
        """Return the ConfigMaps that `name` wrote after a revision."""
        return {self.names[at] for at, writer in self.writers.items() if at > revision and writer == name}

    @property
    def holder(self) -> str:
        return self.holders[max(self.holders)]

    def stale_writes(self) -> list[tuple[int, str, str]]:
        """Return writes by others than the holder of the Lease, as (revision, writer, holder)."""
        found = []
        terms = sorted(self.holders)
        for revision, writer in self.writers.items():
            before = [term for term in terms if term < revision]
            if writer and before and self.holders[before[-1]] != writer:
                found.append((revision, writer, self.holders[before[-1]]))
        return found


@dataclass
class World:
    """A Lease, ConfigMaps, and replicas that end with the test."""

    client: Client
    namespace: str
    config: Path
    tasks: asyncio.TaskGroup
    history: History = field(default_factory=History)
    replicas: list[Replica] = field(default_factory=list)

    async def start(self) -> Replica:
        """Start a replica and wait until its caches are filled."""
        command = [Path(sys.executable).with_name("tapestry"), "run", "writer", "--config", self.config]
        environ = {**os.environ, "PYTHONPATH": str(WRITER)}
        process = await asyncio.create_subprocess_exec(*command, env=environ, stderr=asyncio.subprocess.PIPE)
        replica = Replica(process)
        self.replicas.append(replica)
        self.tasks.create_task(replica.read_log())
        await replica.wait_for_message("caches synced")
        return replica

    async def start_pair(self) -> tuple[Replica, Replica]:
        """Start a leader, wait for its writes, and start a standby."""
        leader = await self.start()
        await leader.wait_for_message("leader lease acquired")
        standby = await self.start()
        await self.history.wait_for_writes_of(leader.name)
        return leader, standby


@pytest.fixture
async def world(client: Client, kubeconfig: Path, namespace: str, tmp_path: Path) -> AsyncIterator[World]:
    election = {"leaseSeconds": LEASE_SECONDS, "deadlineSeconds": 2, "retrySeconds": 0.5}
    settings = {
        "name": "writer",
        "kubeconfig": str(kubeconfig),
        "filter": {"namespaces": [namespace]},
        "leaderElection": {"enabled": True, "namespace": namespace, **election},
        "metrics": {"address": "127.0.0.1:0"},
        "probes": {"address": "127.0.0.1:0"},
    }
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(settings))
    for number in range(CONFIGMAP_COUNT):
        metadata = {"name": f"written-{number}", "namespace": namespace, "labels": {"written-by": "writer"}}
        await client.create(CONFIGMAPS, {"metadata": metadata, "data": {"count": "0"}})
    async with asyncio.TaskGroup() as tasks:
        world = World(client, namespace, config, tasks)
        following = [
            tasks.create_task(world.history.follow(Watch(client, LEASES, namespace), world.history.holders, holder_of)),
            tasks.create_task(
                world.history.follow(
                    Watch(client, CONFIGMAPS, namespace, labels="written-by=writer"), world.history.writers, writer_of
                )
            ),
        ]
        yield world
        for replica in world.replicas:
            if replica.process.returncode is None:
                replica.process.kill()
                await replica.process.wait()
        for task in following:
            task.cancel()


def holder_of(lease: Object) -> str:
    return str(value_at(lease, "spec", "holderIdentity", default=""))


def writer_of(configmap: Object) -> str:
    return str(configmap["data"].get("writer", ""))


async def test_killed_leader_is_replaced_within_lease_duration(world: World) -> None:
    leader, _ = await world.start_pair()

    leader.signal(signal.SIGKILL)
    killed = time.monotonic()
    successor = await world.history.wait_for_holder(lambda holder: holder not in ("", leader.name))

    assert time.monotonic() - killed <= LEASE_SECONDS + 1
    await world.history.wait_for_writes_of(successor)
    assert world.history.stale_writes() == []


async def test_terminated_leader_hands_over_within_a_second(world: World) -> None:
    leader, _ = await world.start_pair()

    leader.signal(signal.SIGTERM)
    signalled = time.monotonic()
    successor = await world.history.wait_for_holder(lambda holder: holder not in ("", leader.name))

    assert time.monotonic() - signalled <= 1
    async with asyncio.timeout(30):
        assert await leader.process.wait() == 0
    await world.history.wait_for_writes_of(successor)
    assert world.history.stale_writes() == []


async def stop_and_continue(world: World, trials: int) -> None:
    """Pause the leader until the other replica has taken over and written, then resume it; repeat."""
    leader, standby = await world.start_pair()
    for _ in range(trials):
        lost_leases = leader.messages.count("leader lease lost, campaigning again")
        leader.signal(signal.SIGSTOP)
        await world.history.wait_for_holder(lambda holder, name=standby.name: holder == name)  # type: ignore[misc]
        await world.history.wait_for_writes_of(standby.name)
        leader.signal(signal.SIGCONT)
        await leader.wait_for_message("leader lease lost, campaigning again", times=lost_leases + 1)
        await world.history.wait_for_writes_of(standby.name)
        leader, standby = standby, leader


async def test_safety_rule_4_resumed_leader_makes_no_stale_write(world: World) -> None:
    await stop_and_continue(world, trials=3)
    assert world.history.stale_writes() == []


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_safety_rule_4_twenty_resumed_leaders_make_no_stale_write(world: World) -> None:
    await stop_and_continue(world, trials=20)
    assert world.history.stale_writes() == []
