"""A real etcd that a test can kill and restart, and stores on top of it."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

from tapestry.apiserver.core.epochs import EpochFence
from tapestry.apiserver.core.resource_registry import published_api
from tapestry.apiserver.storage.etcd.client import Certificates, EtcdClient
from tapestry.apiserver.storage.etcd.connection import epoch_guard
from tapestry.apiserver.storage.etcd.layout import KeyLayout
from tapestry.apiserver.storage.etcd.store import EtcdStore
from tapestry.kube.objects import EMPTY_MAPPING
from tapestry.local.kubernetes import free_ports

READY_SECONDS = 30.0
NO_CERTIFICATES = Certificates()


class Etcd:
    """One etcd member on loopback.  It calls fsync, so acknowledged writes survive a kill."""

    def __init__(
        self, assets: Path, folder: Path, flags: Mapping[str, str] = EMPTY_MAPPING, *, scheme: str = "http"
    ) -> None:
        client, peer, health = free_ports(3)
        self.url = f"{scheme}://127.0.0.1:{client}"
        self.peer_url = f"http://127.0.0.1:{peer}"
        self._health = f"http://127.0.0.1:{health}"
        self._flags = {
            "data-dir": str(folder / "etcd"),
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": f"default={self.peer_url}",
            "listen-metrics-urls": self._health,
            "log-level": "warn",
            **flags,
        }
        self._program = assets / "etcd"
        self._log = folder / "etcd.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start etcd and wait until it answers.  Blocks: call it in a thread from a coroutine."""
        self.launch()
        self.wait_until_ready()

    def launch(self, **flags: str) -> None:
        self._flags |= flags
        with self._log.open("ab") as log:
            command = [str(self._program), *(f"--{name}={value}" for name, value in self._flags.items())]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + READY_SECONDS
        while not answers(f"{self._health}/readyz"):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.02)
            if time.monotonic() > deadline or self._process.returncode is not None:
                self.kill()
                raise RuntimeError(f"etcd does not answer; the end of its log:\n{self._log.read_text()[-2000:]}")

    def pause(self) -> None:
        """Stop the process with SIGSTOP.  Its connections stay open and silent until `resume`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # its threads may run for a while after the signal

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL.  The second call does nothing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def three_members(assets: Path, folder: Path) -> Iterator[list[Etcd]]:
    """A cluster of three members, which survives the loss of one."""
    members = {}
    for name in ("a", "b", "c"):
        (folder / name).mkdir()
        members[name] = Etcd(assets, folder / name, {"name": name})
    together = ",".join(f"{name}={member.peer_url}" for name, member in members.items())
    try:
        for member in members.values():
            member.launch(**{"initial-cluster": together})
        for member in members.values():
            member.wait_until_ready()
        yield list(members.values())
    finally:
        for member in members.values():
            member.kill()


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def new_layout(prefix: str) -> KeyLayout:
    return KeyLayout(prefix, {row.storage for row in published_api().resources})


@asynccontextmanager
async def following(
    urls: str | Sequence[str],
    prefix: str,
    certificates: Certificates = NO_CERTIFICATES,
    fence: EpochFence | None = None,
) -> AsyncIterator[EtcdStore]:
    """A store of a separate server that has caught up with etcd."""
    epoch = epoch_guard(prefix, fence) if fence is not None else None
    async with EtcdClient([urls] if isinstance(urls, str) else urls, certificates, epoch) as client:
        store = EtcdStore(client, new_layout(prefix), history_seconds=300)
        await store.load()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(store.run())
            try:
                await store.wait_for_latest()
                yield store
            finally:
                running.cancel()
