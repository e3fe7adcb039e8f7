"""Folder of a local world: its size, its lock and its clusters.

  world.json   number of clusters and nodes, and type of control plane
  pid          PID of the process that runs the world, which holds a lock on the file
  NAME/        one cluster: objects, certificates, log, kubeconfig

A folder with any other content is not a world: it is neither used nor deleted.
"""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

LAYOUT = 1
VIRTUAL = "virtual"
SERVICE_FOLDER, SERVICE_CONFIG, PLANES_FOLDER = "lifecycle_service", "service.yaml", "planes"
"""Folder of the lifecycle service in that of the world, its configuration file for `tapestry vc`, and the data of its
planes. No cluster can have the name of the folder."""
DEFAULT_CLUSTERS, DEFAULT_NODES = 2, 5
"""Default size of a world."""
LOCK_TIMEOUT = 1.0
"""Seconds; a process that only checks the lock holds it for less."""
FORGET_HINT = "choose another folder with --data, or delete this one with `tapestry down --purge`"


class WorldError(Exception):
    """A world cannot be started, run or deleted; the message says why and what to do."""


@dataclass(frozen=True)
class WorldRecord:
    """Persistent size and state of a world."""

    clusters: int
    """Number of physical clusters."""
    nodes: int
    """Number of simulated nodes per physical cluster."""
    real_kubernetes: bool = False
    joined: int = 0
    """Number of clusters that were joined once; a cluster that was unjoined since stays so."""
    layout: int = LAYOUT


@dataclass(frozen=True)
class WorldFolder:
    path: Path

    @property
    def pid_file(self) -> Path:
        return self.path / "pid"

    @property
    def record_file(self) -> Path:
        return self.path / "world.json"

    @property
    def service_config(self) -> Path:
        return self.path / SERVICE_FOLDER / SERVICE_CONFIG

    @property
    def planes_folder(self) -> Path:
        """Data of the planes of the lifecycle service."""
        return self.path / SERVICE_FOLDER / PLANES_FOLDER

    # -- contents

    def has_world(self) -> bool:
        """Return whether a world of any layout is in it; raise WorldError if it has other content."""
        try:
            names = {each.name for each in self.path.iterdir()} - {self.pid_file.name}
        except FileNotFoundError:
            return False
        except OSError as error:
            raise folder_error(error) from error
        if names.isdisjoint((self.record_file.name, VIRTUAL)) and names:
            found = ", ".join(sorted(names)[:3])
            raise WorldError(f"{self.path} contains other files ({found}); choose another folder with --data")
        return bool(names)

    def read_record(self) -> WorldRecord | None:
        """Return the record of the world; None if there is none yet.  Raise WorldError."""
        if not self.has_world():
            return None
        if not self.record_file.exists():  # created before records were written
            clusters = len(list(self.path.glob("cluster-*/cluster.json")))
            return WorldRecord(clusters, 0, joined=clusters)
        try:
            known = json.loads(self.record_file.read_text())
            if known["layout"] == LAYOUT:
                return WorldRecord(**known)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise WorldError(f"{self.record_file} cannot be read ({error}); {FORGET_HINT}") from error
        raise WorldError(f"{self.record_file}: layout {known['layout']} is not supported, only {LAYOUT}; {FORGET_HINT}")

    def resolve_record(self, clusters: int | None, nodes: int | None, *, real_kubernetes: bool) -> WorldRecord:
        """Return the record of the world to run; an existing world is never reduced.  Raise WorldError."""
        before = self.read_record()
        if before is None:
            return WorldRecord(clusters or DEFAULT_CLUSTERS, DEFAULT_NODES if nodes is None else nodes, real_kubernetes)
        if before.real_kubernetes != real_kubernetes:
            created = "with" if before.real_kubernetes else "without"
            advice = "use that option" if before.real_kubernetes else FORGET_HINT
            raise WorldError(
                f"the world in {self.path} was created {created} --real-kubernetes and cannot change; {advice}"
            )
        return replace(before, clusters=max(clusters or 0, before.clusters), nodes=max(nodes or 0, before.nodes))

    def delete(self) -> bool:
        """Delete the world; return whether there was one.  Raise WorldError if it runs, or for other content."""
        if not self.has_world():
            return False
        if (pid := self.running_pid()) is not None:
            raise WorldError(f"the world in {self.path} is run by process {pid}; stop it first")
        shutil.rmtree(self.path)
        return True

    # -- lock

    @contextmanager
    def claim(self, record: WorldRecord) -> Iterator[None]:
        """Lock the folder and write the record.  Raise WorldError."""
        with self.open_pid_file() as pid_file:
            self.lock(pid_file)
            try:
                pid_file.truncate(0)
                print(os.getpid(), file=pid_file, flush=True)
                self.write_record(record)
            except OSError as error:
                raise folder_error(error, self.path) from error
            yield
            pid_file.truncate(0)

    def write_record(self, record: WorldRecord) -> None:
        fresh = self.record_file.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(record)))
        fresh.replace(self.record_file)

    def open_pid_file(self) -> IO[str]:
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            return self.pid_file.open("a+")
        except OSError as error:
            raise folder_error(error, self.path) from error

    def lock(self, pid_file: IO[str]) -> None:
        deadline = time.monotonic() + LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(pid_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    owner = f"is already run by process {self.running_pid()}"
                    raise WorldError(f"the world in {self.path} {owner}; `tapestry down` stops it") from None
                time.sleep(LOCK_TIMEOUT / 20)
            else:
                return

    def running_pid(self) -> int | None:
        """Return the PID of the process that runs the world, if there is one."""
        try:
            with self.pid_file.open() as pid_file:
                try:
                    fcntl.flock(pid_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(pid_file.read())
        except (OSError, ValueError):  # no such file, or the PID is not written yet
            return None
        return None

    def wait_for_exit(self) -> None:
        """Wait until no process runs the world."""
        with self.pid_file.open() as pid_file:
            fcntl.flock(pid_file, fcntl.LOCK_SH)


def folder_error(error: OSError, path: Path | None = None) -> WorldError:
    return WorldError(f"{error.filename or path}: {error.strerror}; choose another folder with --data")
