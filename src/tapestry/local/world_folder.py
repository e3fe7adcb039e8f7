"""The folder of a world: what lasts of it, and who runs it.

    world.json   how many clusters there are, and what serves them
    pid          the process that runs the world, which has the file locked for as long as it lives
    NAME/        one cluster: objects, certificates, log, kubeconfig

A folder with anything else in it is no world: it is neither filled nor deleted.
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
DEFAULT_CLUSTERS, DEFAULT_NODES = 2, 5
"""Of a world where nobody says how many."""
LOCK_TIMEOUT = 1.0
"""Seconds: nobody holds the lock as long who only wants to know whether it is free."""
FORGET_HINT = "choose another folder with --data, or forget this one with `tapestry down --purge`"


class WorldError(Exception):
    """A world cannot be started, run or forgotten; the message says why, and what to do."""


@dataclass(frozen=True)
class WorldRecord:
    """What is known of a world from one time to the next."""

    clusters: int
    """Physical ones."""
    nodes: int
    """Simulated ones, of each."""
    real_kubernetes: bool = False
    joined: int = 0
    """How many of them have joined.  They may have left again since: whoever wanted that gets it."""
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

    # -- what is in it

    def has_world(self) -> bool:
        """Whether a world is in it, of whatever layout; raises WorldFailed where something else is."""
        try:
            names = {each.name for each in self.path.iterdir()} - {self.pid_file.name}
        except FileNotFoundError:
            return False
        except OSError as error:
            raise folder_error(error) from error
        if names.isdisjoint((self.record_file.name, VIRTUAL)) and names:
            found = ", ".join(sorted(names)[:3])
            raise WorldError(f"{self.path} has other things in it ({found}); choose another folder with --data")
        return bool(names)

    def read_record(self) -> WorldRecord | None:
        """What is known of the world in this folder; None if there is none yet.  Raises WorldFailed."""
        if not self.has_world():
            return None
        if not self.record_file.exists():  # it is of a time when nothing was written down
            clusters = len(list(self.path.glob("cluster-*/cluster.json")))
            return WorldRecord(clusters, 0, joined=clusters)
        try:
            known = json.loads(self.record_file.read_text())
            if known["layout"] == LAYOUT:
                return WorldRecord(**known)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise WorldError(f"{self.record_file} cannot be read ({error}); {FORGET_HINT}") from error
        raise WorldError(
            f"{self.record_file}: layout {known['layout']} is not known here, only {LAYOUT} is; {FORGET_HINT}"
        )

    def resolve_record(self, clusters: int | None, nodes: int | None, *, real_kubernetes: bool) -> WorldRecord:
        """The world to run: one that is there already keeps what it has.  Raises WorldFailed."""
        before = self.read_record()
        if before is None:
            return WorldRecord(clusters or DEFAULT_CLUSTERS, DEFAULT_NODES if nodes is None else nodes, real_kubernetes)
        if before.real_kubernetes != real_kubernetes:
            made = "with" if before.real_kubernetes else "without"
            advice = "run it with that" if before.real_kubernetes else FORGET_HINT
            raise WorldError(f"the world in {self.path} was made {made} --real-kubernetes, and stays so; {advice}")
        return replace(before, clusters=max(clusters or 0, before.clusters), nodes=max(nodes or 0, before.nodes))

    def delete(self) -> bool:
        """Forget the world; whether there was one.  Raises WorldFailed where there is something else, or it is run."""
        if not self.has_world():
            return False
        if (pid := self.running_pid()) is not None:
            raise WorldError(f"the world in {self.path} is run by process {pid}; end it first")
        shutil.rmtree(self.path)
        return True

    # -- who runs it

    @contextmanager
    def claim(self, record: WorldRecord) -> Iterator[None]:
        """Have the folder to ourselves, and write down what is in it.  Raises WorldFailed."""
        with self.open_pid_file() as mark:
            self.lock(mark)
            try:
                mark.truncate(0)
                print(os.getpid(), file=mark, flush=True)
                self.write_record(record)
            except OSError as error:
                raise folder_error(error, self.path) from error
            yield
            mark.truncate(0)

    def write_record(self, record: WorldRecord) -> None:
        """Write down what is known from now on.  Raises OSError."""
        fresh = self.record_file.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(record)))
        fresh.replace(self.record_file)

    def open_pid_file(self) -> IO[str]:
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            return self.pid_file.open("a+")
        except OSError as error:
            raise folder_error(error, self.path) from error

    def lock(self, mark: IO[str]) -> None:
        due = time.monotonic() + LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > due:
                    who = f"is run by process {self.running_pid()} already"
                    raise WorldError(f"the world in {self.path} {who}; `tapestry down` stops it") from None
                time.sleep(LOCK_TIMEOUT / 20)
            else:
                return

    def running_pid(self) -> int | None:
        """The process that runs the world, if one does."""
        try:
            with self.pid_file.open() as mark:
                try:
                    fcntl.flock(mark, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(mark.read())
        except (OSError, ValueError):  # there is none, or it has yet to say who it is
            return None
        return None

    def wait_for_exit(self) -> None:
        """Return when nobody runs the world."""
        with self.pid_file.open() as mark:
            fcntl.flock(mark, fcntl.LOCK_SH)


def folder_error(error: OSError, path: Path | None = None) -> WorldError:
    return WorldError(f"{error.filename or path}: {error.strerror}; choose another folder with --data")
