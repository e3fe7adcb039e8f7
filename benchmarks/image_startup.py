"""Cold start of a syncer in the container image, compared with one that is installed on this machine.

Each start ends when the syncer is ready: a standby of the syncer of a small world, with synced caches. The kernel
drops its page cache before each start, so all files are read from the disk. The lowest of several runs counts, so
modules are compiled. This needs root, and an image in dist/image.
"""

import base64
import http.client
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import yaml

import image
from benchmarks.startup import TAPESTRY, compiling_environ, world
from benchmarks.table import Row, alone, say
from image_root import unpack

RUNS = 5
BAR = 2.0
START_SECONDS = 120
POLL_SECONDS = 0.01
KUBECONFIG = "kubeconfig"

QUIET: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
Start = Callable[[Sequence[str]], AbstractContextManager["subprocess.Popen[str]"]]


def rows() -> Iterator[Row]:
    if os.geteuid() != 0:
        yield Row("cold start of a syncer: image / machine", None, "x", at_most=BAR, detail="needs root")
        return
    say("image startup: a world, and syncers that start beside its own")
    with tempfile.TemporaryDirectory() as name, world(Path(name)):
        folder = Path(name)
        home = folder / "home"
        home.mkdir()
        (home / KUBECONFIG).write_text(json.dumps(flattened(folder / ".tapestry" / "virtual" / "kubeconfig")))
        unpacked = unpack(image.ROOT / "dist" / "image", image.native_architecture(), folder / "root")
        starts: dict[str, Start] = {
            "machine": lambda options: installed_program(home, *options),
            "image": lambda options: unpacked.program(home, *options, **QUIET),
        }
        seconds = dict.fromkeys(starts, float("inf"))
        for _ in range(RUNS):
            for each, start in starts.items():
                seconds[each] = min(seconds[each], cold_start(start))
    detail = f"{seconds['image'] * 1000:.0f} ms, on the machine {seconds['machine'] * 1000:.0f} ms"
    ratio = seconds["image"] / seconds["machine"]
    yield Row("cold start of a syncer: image / machine", ratio, "x", at_most=BAR, detail=detail)


def flattened(kubeconfig: Path) -> Any:
    """Return a kubeconfig with the content of its files instead of their names, as `kubectl config view --flatten`."""
    config = yaml.safe_load(kubeconfig.read_text())
    for part in (config["clusters"][0]["cluster"], config["users"][0]["user"]):
        for key in {"certificate-authority", "client-certificate", "client-key"} & part.keys():
            content = kubeconfig.parent.joinpath(part.pop(key)).read_bytes()
            part[f"{key}-data"] = base64.b64encode(content).decode()
    return config


def cold_start(start: Start) -> float:
    """Return the seconds until a new syncer is ready, with an empty page cache."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    options = ["--binding=cluster-1", f"--kubeconfig={KUBECONFIG}", "--leader-elect=true", "--allow-loopback=true"]
    options += ["--metrics-bind-address=", f"--health-probe-bind-address=127.0.0.1:{port}", "--kubelet-address="]
    options.append("--log-level=error")
    began = time.monotonic()
    with start(["syncer", *options]) as process:
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() - began > START_SECONDS:
                raise RuntimeError("a syncer did not become ready; its errors are above")
            time.sleep(POLL_SECONDS)
        return time.monotonic() - began


@contextmanager
def installed_program(folder: Path, *options: str) -> Iterator["subprocess.Popen[str]"]:
    environ = compiling_environ(folder.parent)
    with subprocess.Popen([TAPESTRY, *options], cwd=folder, env=environ, text=True, **QUIET) as process:
        try:
            yield process
        finally:
            process.kill()


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    alone(rows)
