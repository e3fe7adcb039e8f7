"""`tapestry apiserver` and `tapestry planes run` as processes that can be stopped, and restarted on their data."""

import base64
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.local.kubernetes import free_ports

TAPESTRY = Path(sys.executable).with_name("tapestry")


class ServerProcess:
    """A server with a data folder, at the same address after each start.  It logs `started` when it serves."""

    started = ""

    def __init__(self, folder: Path, *flags: str, address: str = "127.0.0.1", **settings: str) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        """Kubeconfig of the administrator."""
        self.log = folder / "log"
        self.output = folder / "output"
        self.url = f"https://{address}:{free_ports(1)[0]}"
        self.ready_seconds = 0.0
        self._flags = flags
        self._environ = {f"TAPESTRY_{name.upper()}": value for name, value in settings.items()}
        self._ticks = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def address(self) -> str:
        return self.url.removeprefix("https://")

    def command(self) -> Sequence[str | Path]:
        """Return the command of the server.  The data folder exists."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the server and wait until it serves.  Sets `ready_seconds`."""
        self.folder.mkdir(exist_ok=True, mode=0o700)
        command = self.command()
        log_size = self.log.stat().st_size if self.log.exists() else 0
        begun = time.monotonic()
        with self.log.open("ab") as log, self.output.open("ab") as output:
            environ = {**os.environ, "NO_COLOR": "1", **self._environ}
            self._process = subprocess.Popen(list(map(str, command)), stdout=output, stderr=log, env=environ)
        while not self._serves(log_size):
            if self._process.poll() is not None or time.monotonic() - begun > 30:
                self.kill()
                raise RuntimeError(f"the server does not serve; the end of its log:\n{self.log.read_text()[-2000:]}")
            self._ticks.wait(0.01)
        self.ready_seconds = time.monotonic() - begun

    def _serves(self, log_size: int) -> bool:
        with self.log.open("rb") as log:
            log.seek(log_size)
            return any(
                f'"{self.started}"'.encode() in line and json.loads(line)["message"] == self.started for line in log
            )

    def wait_for_output(self, text: str, times: int = 1) -> None:
        """Wait until the server has printed a text, in all its starts together so many times."""
        begun = time.monotonic()
        while self.output.read_text().count(text) < times:
            if self._process is None or self._process.poll() is not None or time.monotonic() - begun > 30:
                raise RuntimeError(f"the server did not print {text!r}:\n{self.log.read_text()[-2000:]}")
            self._ticks.wait(0.01)

    def stop(self) -> None:
        """Terminate the server, even if it is paused, and check that it exits."""
        if self._process is not None:
            self.resume()
            self._process.terminate()
            if self._process.wait(30) != 0:
                raise RuntimeError(f"it ended with {self._process.returncode}:\n{self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Kill the server and start it again on its data."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Stop the process with SIGSTOP.  Its connections stay open and silent until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, type: object, *_: object) -> None:
        try:
            if type is None:
                self.stop()
        finally:
            self.kill()


class OwnServer(ServerProcess):
    """Our API server over TLS."""

    started = "API server started"

    def __init__(self, folder: Path, *flags: str, address: str = "127.0.0.1", **settings: str) -> None:
        super().__init__(folder, *flags, address=address, **settings)
        self.token = secrets.token_urlsafe(32)

    @property
    def ca(self) -> Path:
        return self.folder / "pki" / "ca.crt"

    def command(self) -> Sequence[str | Path]:
        tokens = self.folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f'{self.token},admin,admin,"system:masters"\n')
        certificate, key = CertificateAuthority(self.ca.parent).client_certificate(
            "apiserver-kubelet-client", ["system:masters"]
        )
        return [
            *(TAPESTRY, "apiserver", "--file-rootpath", self.folder, "--token-auth-file", tokens),
            *("--bind-address", self.address, *self._flags),
            *("--kubelet-client-certificate", certificate, "--kubelet-client-key", key),
        ]

    def start(self) -> None:
        super().start()
        authority = base64.b64encode(self.ca.read_bytes()).decode()
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "own",
            "clusters": [{"name": "own", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "own", "context": {"cluster": "own", "user": "admin"}}],
        }
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(json.dumps(content))


class PlanesProcess(ServerProcess):
    """A process of planes.  `kubeconfig` is that of the management API."""

    started = "planes process started"

    def command(self) -> Sequence[str | Path]:
        return [TAPESTRY, "planes", "run", "--data", self.folder, "--bind-address", self.address, *self._flags]


class ClusterProcess(ServerProcess):
    """A cluster with simulated nodes."""

    started = "cluster ready"

    def command(self) -> Sequence[str | Path]:
        return [TAPESTRY, "cluster", "--data", self.folder, *self._flags]
