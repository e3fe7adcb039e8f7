"""Planes whose pods run in containers of a host cluster, accessed with the commands and with kubectl."""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tapestry.apis import keys
from tapestry.kube.objects import Object, annotations_of, name_of, uid_of
from tapestry.kube.pods import is_pod_terminal

from ..integration.servers import TAPESTRY, PlanesProcess
from .clusters import Cluster
from .images import IMAGE
from .nodes import MACHINE, run
from .streams import Streams

PORTS = "15000-15009"
"""Ports of single planes: below those that tests choose at random."""
SECURITY: Object = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY: Object = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""Settings of pods and of containers that the Pod Security level `restricted` requires."""
COMMAND_SECONDS = 150


def restricted_pod(*command: str, **fields: object) -> Object:
    """Return the spec of a pod that runs a command of busybox, and that a tenant with isolation `full` may have.

    `fields` are those of its container.
    """
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]
    container = {"name": "main", "image": IMAGE, "command": [*command], "securityContext": CONTAINER_SECURITY}
    return {
        "securityContext": SECURITY,
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "containers": [{**container, "volumeMounts": mounts, **fields}],
    }


def with_stdin(command: list[object], text: str) -> str:
    """Return the output of a command that reads a text. Raise RuntimeError with its stderr if it fails."""
    done = subprocess.run(
        list(map(str, command)), input=text, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Tenant:
    """A plane whose pods run in a host cluster."""

    name: str
    binding_uid: str
    kubeconfig: Path
    """Kubeconfig of the plane, at its own port."""
    host: Cluster

    @property
    def selector(self) -> str:
        """Selector of all objects of the tenant in the host cluster."""
        return f"--selector={keys.CLUSTER_BINDING_UID}={self.binding_uid}"

    def kubectl(self, *arguments: object) -> str:
        return run(self.host.assets / "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments)

    def apply(self, *objects: Object) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        with_stdin([self.host.assets / "kubectl", f"--kubeconfig={self.kubeconfig}", "apply", "--filename=-"], text)

    def get(self, *arguments: object) -> Object:
        found: Object = json.loads(self.kubectl("get", *arguments, "--output=json"))
        return found

    def streams(self) -> Streams:
        return Streams(self.kubeconfig, self.host.assets, "default")

    def twins(self) -> dict[str, Object]:
        """Return the pods in the host cluster that have not ended, by the names of the pods of the plane."""
        found = json.loads(self.host.kubectl("get", "pods", "--all-namespaces", self.selector, "--output=json"))
        return {
            annotations_of(each)[keys.VIRTUAL_POD_NAME]: each for each in found["items"] if not is_pod_terminal(each)
        }

    def inventory(self) -> str:
        """Return the names of all objects in the host cluster with the label of the tenant."""
        kinds = self.host.kubectl("api-resources", "--verbs=list,delete", "--output=name").split()
        return self.host.kubectl("get", ",".join(kinds), "--all-namespaces", self.selector, "--output=name")

    def diagnostics(self) -> str:
        """Return pods and events of the plane and of the host cluster, to explain failures."""
        pods = self.kubectl("get", "pods", "--all-namespaces", "--output=wide")
        events = self.kubectl("get", "events", "--all-namespaces", "--sort-by=.metadata.creationTimestamp")
        return "\n".join([pods, *events.splitlines()[-20:], self.host.diagnostics()])


@dataclass(frozen=True)
class Planes:
    """A process of planes with host clusters."""

    process: PlanesProcess
    folder: Path
    hosts: dict[str, Cluster]

    def tapestry(self, *words: object) -> str:
        """Return the output of a command on the management API."""
        return run(TAPESTRY, *words, "--data", self.process.folder)

    def manage(self, *arguments: object) -> str:
        """Return the output of kubectl on the management API."""
        assets = next(iter(self.hosts.values())).assets
        return run(assets / "kubectl", f"--kubeconfig={self.process.kubeconfig}", *arguments)

    def start_again(self, tenant: Tenant) -> None:
        """Start the process after it was killed, and wait until the plane of a tenant answers at its own port."""
        self.process.start()
        deadline, pause = time.monotonic() + COMMAND_SECONDS, threading.Event()
        while True:
            try:
                tenant.kubectl("get", "--raw=/readyz")
            except RuntimeError:  # kubectl does not repeat requests
                if time.monotonic() > deadline:
                    raise
                pause.wait(0.1)
            else:
                return

    def add_host(self, name: str, *options: object) -> None:
        """Add one of the host clusters. Its pods reach planes at the address of this machine."""
        access = ("--cluster-kubeconfig", self.hosts[name].plane.kubeconfig, "--api-address", MACHINE)
        self.tapestry("host", "add", name, *access, *options)

    def create_tenant(self, name: str, host: str, *options: object) -> Tenant:
        self.tapestry("planes", "create", name)
        kubeconfig = self.folder / f"{name}.kubeconfig"
        self.tapestry("tenant", "create", name, "--host", host, *options)
        kubeconfig.write_text(self.tapestry("planes", "kubeconfig", name, "--own-port"))
        (binding,) = self.bindings(name)
        tenant = Tenant(name, uid_of(binding), kubeconfig, self.hosts[host])
        tenant.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=60s")
        return tenant

    def bindings(self, tenant: str) -> list[Object]:
        """Return the binding of a tenant, if it exists."""
        found = json.loads(self.tapestry("tenant", "list", "--output=json"))
        return [each for each in found if name_of(each) == tenant]


@contextmanager
def running_planes(folder: Path, **hosts: Cluster) -> Iterator[Planes]:
    """Run a process of planes that pods reach, with host clusters to add."""
    process = PlanesProcess(folder / "planes", "--port-range", PORTS, address=MACHINE)
    with process:
        yield Planes(process, folder, hosts)
