"""Checks of exec, attach, cp, port-forward, debug, logs and top with kubectl, on pods with the commands of busybox.

Each check uses one protocol between kubectl and its API server: WebSocket, or SPDY, which older clients use.
"""

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import ssl
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tapestry.local.kubernetes import ControlPlane

from .images import IMAGE

SECONDS = 60
"""Limit of every command: far more than a loaded machine needs."""
PARALLEL_CONNECTIONS = 50
WEBSOCKET_CHANNEL, STDOUT_CHANNEL = "v4.channel.k8s.io", 1
RESTARTED = "if [ -e /shared/again ]; then echo second; exec sleep 1000; fi; touch /shared/again; echo first; exit 1"
TALKING = "echo one; until [ -e /shared/more ]; do sleep 0.1; done; echo two; exec sleep 1000"
"""Scripts of the containers whose logs are read."""


@dataclass(frozen=True)
class Streams:
    """kubectl for the pods of a namespace, with one protocol."""

    kubeconfig: Path
    assets: Path
    namespace: str
    websockets: bool = True
    image: str = IMAGE
    spec: Mapping[str, object] = field(default_factory=dict)
    """Fields of the specs of pods that checks create."""

    def with_spdy(self) -> "Streams":
        return replace(self, websockets=False)

    @property
    def environ(self) -> dict[str, str]:
        chosen = str(self.websockets).lower()
        names = ("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS")
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), **dict.fromkeys(names, chosen)}

    def command(self, *arguments: object) -> list[str]:
        return [str(self.assets / "kubectl"), f"--namespace={self.namespace}", *map(str, arguments)]

    def kubectl(self, *arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run kubectl to its end, which may be a failure."""
        return subprocess.run(
            self.command(*arguments), env=self.environ, input=stdin, capture_output=True, check=False, timeout=SECONDS
        )

    def output(self, *arguments: object, stdin: bytes = b"") -> bytes:
        done = self.kubectl(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def wait_for_exec(self, pod: str, until: Callable[[subprocess.CompletedProcess[bytes]], bool]) -> None:
        """Run a command in the pod until its result is as expected: API servers apply roles with a delay."""
        deadline = time.monotonic() + SECONDS
        while not until(done := self.kubectl("exec", pod, "--", "true")):
            assert time.monotonic() < deadline, done

    # -- checks

    def check_exec(self, pod: str) -> None:
        """Check the streams, the half-close of stdin, and the exit code."""
        done = self.kubectl("exec", "-i", pod, "--", "sh", "-c", "cat; echo done >&2; exit 7", stdin=b"one\ntwo\n")
        assert done.stdout == b"one\ntwo\n"
        assert b"done" in done.stderr
        assert done.returncode == 7

    def echoes(self, pod: str, size: int) -> bool:
        """Return whether `size` random bytes pass through stdin and stdout unchanged."""
        data = os.urandom(size)
        return self.output("exec", "-i", pod, "--", "cat", stdin=data) == data

    def check_copy(self, pod: str, folder: Path) -> None:
        """Copy a file into the pod and back."""
        source, copy = folder / "source", folder / f"copy-{self.websockets}"
        source.write_bytes(os.urandom(300_000))
        self.output("cp", source, f"{pod}:/tmp/copied")
        self.output("cp", f"{pod}:/tmp/copied", copy)
        assert copy.read_bytes() == source.read_bytes()

    def check_terminal(self, pod: str) -> None:
        """Check that a shell sees the size of the terminal, also after it changes."""
        with Terminal(self.command("exec", "-it", pod, "--", "sh"), self.environ, 24, 80) as terminal:
            terminal.expect_size(24, 80)
            terminal.resize(40, 100)
            terminal.expect_size(40, 100)
            terminal.write(b"exit 3\n")
            assert terminal.wait() == 3

    def check_attach(self, pod: str) -> None:
        """Attach to a container that ends with its stdin, and read what it writes."""
        overrides = json.dumps({"spec": {"terminationGracePeriodSeconds": 1, **self.spec}})
        run = ("run", pod, f"--image={self.image}", "--restart=Never", "--stdin", f"--overrides={overrides}", "--rm")
        script = "read line; echo $line $line"
        done = self.kubectl(*run, "--command", "--", "sh", "-c", script, stdin=b"parrot\n")
        assert b"parrot parrot" in done.stdout, done.stderr

    def check_debug(self, pod: str) -> None:
        """Get an attached shell in an ephemeral container, and leave it."""
        command = self.command("debug", pod, "-it", "--profile=baseline", f"--image={self.image}", "--", "sh")
        with Terminal(command, self.environ, 24, 80) as terminal:
            terminal.expect_size(24, 80)
            terminal.write(b"exit\n")
            assert terminal.wait() == 0

    def check_logs(self, pod: str) -> None:
        """Read the logs of a pod with two containers, one of which was restarted, and follow one to its end."""
        self.output("apply", "--filename=-", stdin=json.dumps(self.talking_pod(pod)).encode())
        for state in ("jsonpath={.status.containerStatuses[0].restartCount}=1", "condition=Ready"):
            self.output("wait", f"pod/{pod}", f"--for={state}", f"--timeout={SECONDS}s")
        assert self.output("logs", pod, "-c", "restarted") == b"second\n"
        assert self.output("logs", pod, "-c", "restarted", "--previous") == b"first\n"
        assert sorted(self.output("logs", pod, "--all-containers").split()) == [b"one", b"second"]
        assert self.output("logs", pod, "-c", "talking", "--since=1h", "--limit-bytes=3") == b"one"
        assert self.output("logs", pod, "-c", "talking", "--since-time=2999-01-01T00:00:00Z") == b""
        stamped = self.output("logs", pod, "-c", "talking", "--timestamps").decode()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z one\n", stamped)
        command = self.command("logs", "-f", pod, "-c", "talking")
        with subprocess.Popen(command, env=self.environ, stdout=subprocess.PIPE) as following:
            assert following.stdout is not None
            try:
                assert following.stdout.readline() == b"one\n"
                self.output("exec", pod, "-c", "talking", "--", "touch", "/shared/more")
                assert following.stdout.readline() == b"two\n"
                self.output("delete", "pod", pod, "--wait=false")
                assert following.wait(SECONDS) == 0
            finally:
                following.kill()

    def talking_pod(self, name: str) -> Mapping[str, object]:
        mounts = [{"name": "shared", "mountPath": "/shared"}]
        containers = [
            {"name": each, "image": self.image, "command": ["sh", "-c", script], "volumeMounts": mounts}
            for each, script in (("restarted", RESTARTED), ("talking", TALKING))
        ]
        spec = {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "shared", "emptyDir": {}}],
            "containers": containers,
            **self.spec,
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}

    def check_top(self, pod: str, node: str) -> None:
        """Wait for the usage of a pod and of its node, which are measured after they start."""
        deadline, pause = time.monotonic() + 2 * SECONDS, threading.Event()
        for kind, name in (("pod", pod), ("node", node)):
            while (done := self.kubectl("top", kind, name, "--no-headers")).returncode != 0:
                assert time.monotonic() < deadline, done.stderr
                pause.wait(1)
            assert re.match(rf"{name} +\d+m +.*\d+Mi", done.stdout.decode()), done.stdout

    def check_port_forward(self, pod: str, port: int) -> None:
        """Send a request on each of many connections that are open at the same time."""
        with self.port_forward(pod, port) as local, ExitStack() as stack:
            sockets = [
                stack.enter_context(socket.create_connection(("127.0.0.1", local), SECONDS))
                for _ in range(PARALLEL_CONNECTIONS)
            ]
            for each in sockets:
                each.sendall(b"GET / HTTP/1.0\r\n\r\n")
            answers = [b"".join(iter(lambda each=each: each.recv(1 << 16), b"")) for each in sockets]
        assert all(b"200 OK" in answer and pod.encode() in answer for answer in answers)

    @contextmanager
    def port_forward(self, pod: str, port: int) -> Iterator[int]:
        """Forward a free local port to the pod, and yield it."""
        with subprocess.Popen(
            self.command("port-forward", f"pod/{pod}", f":{port}", "--address=127.0.0.1"),
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            reader = threading.Thread(target=process.stdout.read)  # otherwise its output blocks it
            try:
                line = process.stdout.readline()
                found = re.search(r"127\.0\.0\.1:(\d+)", line)
                assert found, line
                reader.start()
                yield int(found[1])
            finally:
                process.kill()
                if reader.is_alive():
                    reader.join()

    def check_websocket_client(self, plane: ControlPlane, pod: str) -> None:
        """Run a command as clients with the first WebSocket protocol do, which API servers do not translate."""
        address = plane.url.replace("https:", "wss:", 1)
        url = f"{address}/api/v1/namespaces/{self.namespace}/pods/{pod}/exec?command=hostname&stdout=true"
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        headers = {"Authorization": f"Bearer {plane.token}"}
        protocols = [Subprotocol(WEBSOCKET_CHANNEL)]
        with connect(
            url, ssl=tls, subprotocols=protocols, additional_headers=headers, proxy=None, open_timeout=SECONDS
        ) as channel:
            assert channel.subprotocol == WEBSOCKET_CHANNEL
            frames = [frame for frame in channel if isinstance(frame, bytes)]
        output = b"".join(frame[1:] for frame in frames if frame[:1] == bytes([STDOUT_CHANNEL]))
        assert output.strip() == pod.encode()


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, command: list[str], environ: dict[str, str], rows: int, columns: int) -> None:
        self._main, side = pty.openpty()
        self.seen = b""
        set_size(side, rows, columns)
        self._process = subprocess.Popen(
            command, env={**environ, "TERM": "xterm"}, stdin=side, stdout=side, stderr=side, start_new_session=True
        )
        os.close(side)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._main)

    def write(self, data: bytes) -> None:
        os.write(self._main, data)

    def resize(self, rows: int, columns: int) -> None:
        set_size(self._main, rows, columns)
        self._process.send_signal(signal.SIGWINCH)

    def expect_size(self, rows: int, columns: int) -> None:
        """Wait until `stty size` in the shell prints this size."""
        deadline, wanted = time.monotonic() + SECONDS, f"{rows} {columns}".encode()
        self.seen = b""
        while wanted not in self.seen:
            assert time.monotonic() < deadline, self.seen
            self.write(b"stty size\n")
            self._read_for(1.0, wanted)

    def _read_for(self, seconds: float, wanted: bytes) -> None:
        deadline = time.monotonic() + seconds
        while wanted not in self.seen and (left := deadline - time.monotonic()) > 0:
            if select.select([self._main], [], [], left)[0]:
                self.seen += os.read(self._main, 1 << 16)

    def wait(self) -> int:
        return self._process.wait(SECONDS)


def set_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
