"""Real Kubernetes control plane on this machine: etcd, kube-apiserver and optional controllers.

The programs are in KUBEBUILDER_ASSETS or in the cache folder that `make kube-assets` fills.  Each is a child process
that listens on loopback (kube-apiserver: on a chosen address) and keeps its data, certificates and log in one folder.
A control plane that is started again over the same folder keeps its ports, token and objects.

Nothing here is asynchronous, because a control plane outlives event loops.  From a coroutine, call it in a thread
(`await asyncio.to_thread(plane.restart, "kube-apiserver")`).
"""

import base64
import contextlib
import http.client
import json
import os
import random
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, get_args
from urllib.parse import urlsplit

from tapestry.client.kubeconfig_entries import kubeconfig_document
from tapestry.process.child_processes import GUARD_COMMAND

KUBERNETES_VERSION = "1.34.3"
ETCD_VERSION = "3.6.8"
READY_SECONDS = 120.0
"""Seconds until a program must answer; kube-apiserver needs four on an idle machine."""

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}

Component = Literal["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
COMPONENTS: tuple[Component, ...] = get_args(Component)


class AssetsMissing(Exception):
    """The Kubernetes programs are missing; the message says how to get them."""


class ControlPlaneFailed(Exception):
    """A program did not become ready; the message ends with the last lines of its log."""


def assets_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder where the programs of a control plane are expected."""
    if configured := environ.get("KUBEBUILDER_ASSETS"):
        return Path(configured)
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tapestry" / "kube-assets" / f"kubernetes-{KUBERNETES_VERSION}-etcd-{ETCD_VERSION}"


def find_assets(environ: Mapping[str, str], programs: Sequence[str] = ("etcd", "kube-apiserver", "kubectl")) -> Path:
    """Return the folder with at least these programs; raise AssetsMissing otherwise."""
    folder = assets_folder(environ)
    if missing := [name for name in programs if not (folder / name).exists()]:
        raise AssetsMissing(
            f"no {', '.join(missing)} in {folder}: run make kube-assets (needs Go 1.24+), or set KUBEBUILDER_ASSETS"
        )
    return folder


def find_kubectl(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the kubectl command of this machine; None if there is none."""
    if shutil.which("kubectl"):
        return "kubectl"
    built = assets_folder(environ) / "kubectl"
    return str(built) if built.exists() else None


@dataclass(frozen=True, slots=True)
class Program:
    """Flags of a component, and the URLs that return 200 when it is ready."""

    flags: Mapping[str, str]
    ready_urls: tuple[str, ...]
    ca: Path | None = None


class ControlPlane:
    """A cluster without nodes.  Its data survive `stop` and `kill`; its processes end with ours.

    `kubeconfig` exists after `start`, is readable only by its owner, and verifies the server.
    """

    def __init__(
        self,
        folder: Path,
        assets: Path,
        *,
        controller_manager: bool | Mapping[str, str] = False,
        scheduler: bool = False,
        fsync: bool = True,
        audit: bool = False,
        address: str = "127.0.0.1",
        flags: Mapping[str, str] | None = None,
    ) -> None:
        """Configure the control plane.

        Without `fsync`, etcd is faster, but a crash of the machine (not of a process) may lose data.  With `audit`,
        each request is a line in `audit_log`.  kube-apiserver listens only on `address` of this machine and its
        certificate names only that.  `flags` are additional flags of kube-apiserver, and `controller_manager` can be
        those of kube-controller-manager.
        """
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self.token, (etcd, peer, secure, controllers, scheduling) = self._token_and_ports()
        self.etcd_url = f"http://127.0.0.1:{etcd}"
        self.url = f"https://{address}:{secure}"
        self.ca = folder / "certs" / "apiserver.crt"
        self.audit_log = folder / "audit.log"
        self._assets = assets
        self._programs: dict[Component, Program] = {
            "etcd": self._etcd(f"http://127.0.0.1:{peer}", fsync=fsync),
            "kube-apiserver": self._apiserver(flags or {}, service_accounts=bool(controller_manager), audit=audit),
        }
        if controller_manager:
            self._programs["kube-controller-manager"] = self._controller_manager(
                controllers, {} if controller_manager is True else controller_manager
            )
        if scheduler:
            self._programs["kube-scheduler"] = self._scheduler(scheduling)
        self._processes: dict[Component, subprocess.Popen[bytes]] = {}
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start every component and wait until each is ready; on failure stop all."""
        write_private(self._tokens, f"{self.token},admin,admin,system:masters\n")
        write_private(self._audit_policy, json.dumps(AUDIT_POLICY))
        self._guard = self._guard or subprocess.Popen(GUARD_COMMAND, stdin=subprocess.PIPE, process_group=0)
        try:
            for component in self._programs:
                self.launch(component)
                if component == "kube-apiserver":
                    write_private(self.kubeconfig, json.dumps(self._kubeconfig()))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill every component; the second call does nothing.

        All state is in etcd, which survives a kill, so no graceful shutdown is needed.
        """
        for name in list(self._processes):
            self.kill(name)
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.communicate()  # at the end of its input the guard kills its group, which is now only itself

    def launch(self, component: Component) -> None:
        """Start a component that is not running and wait until it is ready."""
        if component in self._processes or self._guard is None:
            raise ValueError(f"{component} can be launched only in a started control plane where it is not running")
        flags = self._programs[component].flags
        with self.log(component).open("ab") as log:
            self._processes[component] = subprocess.Popen(
                [str(self._assets / component), *(f"--{flag}={value}" for flag, value in flags.items())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=self._guard.pid,
            )
        self.wait_for_ready(component)

    def kill(self, component: Component) -> None:
        """Kill a component with SIGKILL and wait until the process is gone."""
        process = self._processes.pop(component)
        process.kill()
        process.wait()

    def restart(self, component: Component = "kube-apiserver") -> None:
        """Kill a component and start it again on the same port."""
        self.kill(component)
        self.launch(component)

    def pause(self, component: Component = "kube-apiserver") -> None:
        """Suspend a component: its connections stay open without responses until `resume`."""
        self._processes[component].send_signal(signal.SIGSTOP)

    def resume(self, component: Component = "kube-apiserver") -> None:
        self._processes[component].send_signal(signal.SIGCONT)

    def pids(self) -> dict[Component, int]:
        return {name: process.pid for name, process in self._processes.items()}

    def log(self, component: Component) -> Path:
        return self.folder / f"{component}.log"

    def wait_for_ready(self, component: Component) -> None:
        """Wait until a component is ready; raise ControlPlaneFailed if it exits or takes too long."""
        program, process = self._programs[component], self._processes[component]
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            if all(_is_responding(url, program.ca, self.token) for url in program.ready_urls):
                return
            time.sleep(0.05)
        failure = f"was not ready after {READY_SECONDS:g} s"
        if process.returncode is not None:
            failure = f"exited with {process.returncode}"
        log = self.log(component)
        raise ControlPlaneFailed(f"{component} {failure}; the end of {log}:\n{_tail(log)}")

    def _token_and_ports(self) -> tuple[str, list[int]]:
        """Return a token and ports for all components, generated once and stored in the folder."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self.folder / "chosen.json"
        if not file.exists():
            write_private(file, json.dumps({"token": secrets.token_urlsafe(32), "ports": free_ports(5)}))
        generated = json.loads(file.read_text())
        return generated["token"], generated["ports"]

    @property
    def _tokens(self) -> Path:
        return self.folder / "tokens.csv"

    @property
    def _service_account_key(self) -> Path:
        # kube-apiserver writes its serving certificate and key before it reads the key for tokens.  One key for both
        # is sufficient on loopback, and no key has to be generated here.
        return self.folder / "certs" / "apiserver.key"

    def _etcd(self, peer_url: str, *, fsync: bool) -> Program:
        flags = {
            "data-dir": str(self.folder / "etcd"),
            "listen-client-urls": self.etcd_url,
            "advertise-client-urls": self.etcd_url,
            "listen-peer-urls": peer_url,
            "initial-advertise-peer-urls": peer_url,
            "initial-cluster": f"default={peer_url}",
            "unsafe-no-fsync": str(not fsync).lower(),
            "log-level": "warn",
        }
        return Program(flags, ready_urls=(f"{self.etcd_url}/readyz",))

    @property
    def _audit_policy(self) -> Path:
        return self.folder / "audit-policy.json"

    def _apiserver(self, more: Mapping[str, str], *, service_accounts: bool, audit: bool) -> Program:
        audited = {"audit-policy-file": str(self._audit_policy), "audit-log-path": str(self.audit_log)}
        url = urlsplit(self.url)
        flags = {
            **(audited if audit else {}),
            "etcd-servers": self.etcd_url,
            "bind-address": str(url.hostname),
            "advertise-address": str(url.hostname),
            "secure-port": str(url.port),
            "cert-dir": str(self.ca.parent),
            "token-auth-file": str(self._tokens),
            "authorization-mode": "Node,RBAC",
            "service-account-key-file": str(self._service_account_key),
            "service-account-signing-key-file": str(self._service_account_key),
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-cluster-ip-range": "10.96.0.0/16",
            "allow-privileged": "true",
            # The default tries the host name first, which does not resolve here: logs and exec would fail.
            "kubelet-preferred-address-types": "InternalIP",
            # The plugin rejects pods without a service account, which only kube-controller-manager creates.
            "disable-admission-plugins": "" if service_accounts else "ServiceAccount",
            **more,
        }
        # /readyz reports ok a moment before the first namespaces exist.
        ready = ("/readyz", "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system")
        return Program(flags, ready_urls=tuple(self.url + path for path in ready), ca=self.ca)

    def _controller_manager(self, port: int, more: Mapping[str, str]) -> Program:
        flags = {
            "service-account-private-key-file": str(self._service_account_key),
            "root-ca-file": str(self.ca),
            **more,
        }
        return self._client_program("kube-controller-manager", port, flags)

    def _scheduler(self, port: int) -> Program:
        return self._client_program("kube-scheduler", port, {})

    def _client_program(self, name: Component, port: int, flags: Mapping[str, str]) -> Program:
        certificates = self.folder / f"{name}-certs"
        common = {
            "kubeconfig": str(self.kubeconfig),
            "leader-elect": "false",
            "bind-address": "127.0.0.1",
            "secure-port": str(port),
            "cert-dir": str(certificates),
            "kube-api-qps": "500",
            "kube-api-burst": "1000",
        }
        ready = (f"https://127.0.0.1:{port}/healthz",)
        return Program({**common, **flags}, ready, ca=certificates / f"{name}.crt")

    def _kubeconfig(self) -> dict[str, object]:
        authority = base64.b64encode(self.ca.read_bytes()).decode()
        cluster = {"server": self.url, "certificate-authority-data": authority}
        return kubeconfig_document("admin", cluster, {"token": self.token})


def free_ports(count: int) -> list[int]:
    """Return unused loopback ports.

    They are below the range of ephemeral ports, so that no outgoing connection takes the port of a component between
    its exit and its restart.
    """
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.add(port)
    return list(found)


def _is_responding(url: str, ca: Path | None, token: str) -> bool:
    parsed = urlsplit(url)
    host, port = parsed.hostname or "", parsed.port
    try:
        connection = (
            http.client.HTTPSConnection(host, port, timeout=5, context=ssl.create_default_context(cafile=ca))
            if ca
            else http.client.HTTPConnection(host, port, timeout=5)
        )
        with contextlib.closing(connection):
            connection.request("GET", parsed.path, headers={"Authorization": f"Bearer {token}"})
            return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):  # OSError also while the certificate is not written yet
        return False


def _tail(log: Path, lines: int = 20) -> str:
    with log.open(errors="replace") as file:
        return "".join(deque(file, maxlen=lines))


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, readable only by its owner."""
    fresh = path.with_name(f"{path.name}.new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)
