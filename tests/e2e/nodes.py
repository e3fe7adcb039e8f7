"""Real nodes on this machine: containerd, kubelet, kube-proxy and containers.

A node is a process tree below its own init, in its own network, mount and process namespaces. The init ends when the
other end of its standard input is closed. Then the kernel kills every process of the tree and removes its mounts,
interfaces and rules. This also happens if the test is killed. Only a bridge and empty cgroups can be left; `network`
removes them, including those of tests that were killed.

Nodes and control planes are connected by the bridge. Nothing outside the machine is reachable.

    the machine    198.18.0.1     kube-apiservers listen here
    node N         198.18.0.1N    its pods have 198.18.N.2 and up
"""

import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tapestry.local.kubernetes import ControlPlane

from ..integration.servers import OwnServer
from .images import IMAGE, is_static

MACHINE = "198.18.0.1"
"""Address in 198.18.0.0/15, which is reserved for network tests."""
NUMBERS = range(1, 5)
BRIDGE = "tapestry-nodes"
PORTS = {number: f"tapestry-{number}" for number in NUMBERS}
"""Interfaces that connect nodes to the bridge."""

CGROUPS = Path("/sys/fs/cgroup")
CGROUP = "tapestry-nodes"
LOCK = Path("/run/lock/tapestry-nodes")

COMMANDS = ("containerd", "ctr", "runc", "ip", "iptables", "busybox", "unshare", "nsenter")
PLUGINS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
OWN_FOLDERS = ("run", "var/lib", "var/log")
"""Folders in which a node has its own files instead of the machine's. Its programs write only there."""

KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""Settings that a kubelet enforces. It sees copies with these values, because the real ones are machine-wide."""

READY_SECONDS = 60

INIT = """
read -r pid _ < /proc/self/stat  # the PID outside of the new namespace
mount -t proc proc /proc
for each in $OWN; do mount --bind "$FOLDER/$each" "/$each"; done
echo "$pid"
read -r _
"""


@dataclass(frozen=True, slots=True)
class Kit:
    """Files from which nodes are built."""

    assets: Path
    """Folder with the Kubernetes binaries."""
    image: Path
    """Archive of the image that all containers run."""


def missing_requirements(assets: Path) -> str | None:
    """Return one line that names missing requirements and a remedy; None if real nodes can run."""
    if os.geteuid() != 0:
        return "real nodes need root: they have namespaces of their own"
    if names := [name for name in ("kubelet", "kube-proxy") if not (assets / name).exists()]:
        return f"no {', '.join(names)} in {assets}: run make node-assets (needs Go 1.24+), or put them there"
    names = [name for name in COMMANDS if shutil.which(name) is None]
    if "busybox" not in names and not is_static(Path(shutil.which("busybox") or "")):
        names.append("a static busybox")
    if not any(folder.exists() for folder in PLUGINS):
        names.append("CNI plugins")
    return f"real nodes need {', '.join(names)}: install the packages that .ci/run installs" if names else None


@contextlib.contextmanager
def network() -> Iterator[None]:
    """Create the bridge between nodes. A machine has one at a time: a second caller waits."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel releases it with the process
        remove_leftovers()
        try:
            run("ip", "link", "add", BRIDGE, "type", "bridge")
            run("ip", "address", "add", f"{MACHINE}/24", "dev", BRIDGE)
            run("ip", "link", "set", BRIDGE, "up")
            yield
        finally:
            remove_leftovers()


def remove_leftovers() -> None:
    """Remove the bridge, interfaces and cgroups of earlier runs. The caller holds the lock, so none are in use."""
    for link in (BRIDGE, *PORTS.values()):
        remove_link(link)
    for hierarchy in cgroup_hierarchies():
        for folder, _, _ in os.walk(hierarchy / CGROUP, topdown=False):
            os.rmdir(folder)


def remove_link(name: str) -> None:
    # It may be missing or vanish meanwhile: the kernel removes interfaces of ended namespaces asynchronously.
    subprocess.run(["ip", "link", "delete", name], stderr=subprocess.DEVNULL, check=False)


def cgroup_hierarchies() -> list[Path]:
    """Return the single hierarchy of cgroups v2, or one per controller for v1."""
    is_unified = (CGROUPS / "cgroup.procs").exists()
    return [CGROUPS] if is_unified else [folder for folder in CGROUPS.iterdir() if (folder / "cgroup.procs").exists()]


def run(*command: object) -> str:
    """Return the output of a command. Raise RuntimeError with its stderr if it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


class RealNode:
    """A node of a cluster whose API server listens on MACHINE. It needs a `network`."""

    def __init__(
        self,
        name: str,
        number: int,
        plane: ControlPlane | OwnServer,
        folder: Path,
        kit: Kit,
        *,
        bootstrap: Path | None = None,
    ) -> None:
        """Prepare a node. `number` is one of NUMBERS and unique among running nodes.

        With the kubeconfig `bootstrap`, the kubelet requests its certificates. Otherwise it uses the administrator's.
        """
        self.name = name
        self.number = number
        self.address = f"198.18.0.1{number}"
        self.pods = f"198.18.{number}.0/24"
        self.folder = folder
        self._plane = plane
        self._kit = kit
        self._bootstrap = bootstrap
        self._init: subprocess.Popen[str] | None = None
        self._pid = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all programs of the node. On failure nothing is left running."""
        try:
            self._open_namespaces()
            self._connect_to_bridge()
            self._run_containerd()
            self._run_kubelet()
            self._run_kube_proxy()
        except BaseException as error:
            error.add_note(self.log_tails())
            self.stop()
            raise

    def stop(self) -> None:
        """Kill all processes of the node and wait for them. The second call does nothing."""
        init, self._init = self._init, None
        if init is not None:
            init.communicate()
            remove_link(PORTS[self.number])
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def kill_kubelet(self) -> None:
        """Kill the kubelet. Its containers keep running."""
        self.run("kill", "-9", *self.run("pidof", "kubelet").split())

    def start_kubelet(self) -> None:
        """Start a kubelet again after `kill_kubelet`."""
        self._run_kubelet()

    def wait_until_ready(self) -> None:
        command = (self._kit.assets / "kubectl", f"--kubeconfig={self._plane.kubeconfig}", "wait", f"node/{self.name}")
        try:
            for state in ("create", "condition=Ready"):
                run(*command, f"--for={state}", f"--timeout={READY_SECONDS}s")
        except RuntimeError as error:
            error.add_note(self.log_tails())
            raise

    def log_tails(self) -> str:
        """Return the last lines of each log of the node."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(line for log in logs for line in [f"{log}:", *log.read_text().splitlines()[-10:]])

    @property
    def certificate(self) -> Path:
        """File with the client certificate and key of a kubelet that was started with `bootstrap`."""
        return max((self.folder / "var/lib/kubelet/pki").glob("kubelet-client-2*.pem"))

    @property
    def guard(self) -> int:
        """PID of the process that ends after all others of the node."""
        if self._init is None:
            raise ValueError(f"{self.name} is not running")
        return self._init.pid

    def run(self, *command: object) -> str:
        """Return the output of a command run in the namespaces of the node."""
        return run(*self._inside(), *command)

    def containers(self) -> list[str]:
        """Return the IDs of running containers, sandboxes included, from containerd."""
        return self.run("ctr", "--namespace=k8s.io", "tasks", "list", "--quiet").split()

    # -- the parts

    def _open_namespaces(self) -> None:
        for each in OWN_FOLDERS:
            (self.folder / each).mkdir(parents=True)
        settings = {f"proc/sys/{name}": value for name, value in KERNEL_SETTINGS.items()}
        for name, value in settings.items():
            self._write(name, str(value))
        self._init = subprocess.Popen(
            ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", INIT],
            env={**os.environ, "FOLDER": str(self.folder), "OWN": " ".join([*OWN_FOLDERS, *settings])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._init.stdout is not None
        line = self._init.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: could not create namespaces; see stderr")
        self._pid = int(line)

    def _connect_to_bridge(self) -> None:
        """Connect the node to the bridge, and add routes to all pods on the machine and on the node."""
        port = PORTS[self.number]
        run("ip", "link", "add", port, "master", BRIDGE, "type", "veth", "peer", "name", "eth0", "netns", self._pid)
        run("ip", "link", "set", port, "up")
        run("ip", "route", "add", self.pods, "via", self.address)
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        for interface in ("lo", "eth0"):
            self.run("ip", "link", "set", interface, "up")
        for other in set(NUMBERS) - {self.number}:
            self.run("ip", "route", "add", f"198.18.{other}.0/24", "via", f"198.18.0.1{other}")

    def _run_containerd(self) -> None:
        # Point-to-point links: the node routes all traffic of pods, so that the rules of kube-proxy apply. A bridge
        # would need a kernel module that not every machine has.
        addresses = {"type": "host-local", "ranges": [[{"subnet": self.pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
        wires = {"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": addresses}]}
        self._write("cni/pods.conflist", json.dumps(wires))
        plugins = next(folder for folder in PLUGINS if folder.exists())
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        config = [
            "version = 2",
            f"[{cri}]",
            f'sandbox_image = "{IMAGE}"',
            "restrict_oom_score_adj = true",  # a lower score needs a capability that root in a container may lack
            f"[{cri}.cni]",
            f'bin_dir = "{plugins}"',
            f'conf_dir = "{self.folder}/cni"',
        ]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:  # readiness as reported to systemd
            notices.bind(str(self.folder / "run" / "notices"))
            notices.settimeout(READY_SECONDS)
            toml = self._write("containerd.toml", "\n".join(config))
            self._launch("containerd", "--config", toml, NOTIFY_SOCKET="/run/notices")
            while b"READY=1" not in notices.recv(4096).splitlines():
                pass
        self.run("ctr", "--namespace=k8s.io", "images", "import", self._kit.image)

    def _run_kubelet(self) -> None:
        for hierarchy in cgroup_hierarchies():
            (hierarchy / CGROUP / str(self.number)).mkdir(parents=True, exist_ok=True)
        config: Mapping[str, object] = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},  # reachable only from this machine
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{CGROUP}/{self.number}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "resolvConf": "",
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            # Never evict, however full the disk is: the image cannot be pulled again.
            "evictionHard": {},
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": False,
            "rotateCertificates": self._bootstrap is not None,
            "serverTLSBootstrap": self._bootstrap is not None,
        }
        access = [f"--kubeconfig={self._plane.kubeconfig}"]
        if self._bootstrap is not None:
            access = [f"--kubeconfig={self.folder}/kubelet.kubeconfig", f"--bootstrap-kubeconfig={self._bootstrap}"]
        self._launch(
            "kubelet",
            f"--config={self._write('kubelet.json', json.dumps(config))}",
            *access,
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
        )

    def _run_kube_proxy(self) -> None:
        config: Mapping[str, object] = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clientConnection": {"kubeconfig": str(self._plane.kubeconfig)},
            "hostnameOverride": self.name,
            "detectLocalMode": "ClusterCIDR",
            "clusterCIDR": self.pods,
            "conntrack": {"maxPerCore": 0},  # a machine-wide limit; leave it unchanged
        }
        self._launch("kube-proxy", f"--config={self._write('kube-proxy.json', json.dumps(config))}")

    # -- inside

    def _launch(self, program: str, *arguments: object, **environ: str) -> None:
        built = self._kit.assets / program
        command = [*self._inside(), built if built.exists() else program, *arguments]
        with (self.folder / f"{program}.log").open("ab") as log:
            process = subprocess.Popen(
                list(map(str, command)),
                env={**os.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)

    def _inside(self) -> list[str]:
        return ["nsenter", f"--target={self._pid}", "--net", "--mount", "--pid"]

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path
