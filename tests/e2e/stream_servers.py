"""Our API server and kube-apiserver in front of the same kubelet and the same pod.

The kubelet belongs to the real cluster. Our server has a Node and a Pod of the same names, so that both servers connect
to the same container.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tapestry.local.kubernetes import ControlPlane

from ..integration.servers import OwnServer
from .images import IMAGE
from .nodes import MACHINE, Kit, RealNode, run

PAGE = "served by the pod"
SCRIPT = f"mkdir /www; echo {PAGE} > /www/page; httpd -p 8080 -h /www; while read line; do echo got $line; done"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web"},
    "spec": {
        "nodeName": "n1",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "containers": [{"name": "main", "image": IMAGE, "command": ["sh", "-c", SCRIPT], "stdin": True}],
    },
}
PENDING = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "pending"},
    "spec": {"containers": [{"name": "main", "image": IMAGE}], "automountServiceAccountToken": False},
}
WEBSOCKETS = {
    "websocket": {},
    "spdy": {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false"},
}
"""Environment of kubectl for each protocol."""
BACKEND = "streams.tapestry.io/backend-protocol"


@dataclass(frozen=True)
class Access:
    """A server, accessed with kubectl over one protocol."""

    kubeconfig: Path
    assets: Path
    protocol: str

    def command(self, *arguments: object) -> list[str]:
        return list(map(str, (self.assets / "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments)))

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, **WEBSOCKETS[self.protocol]}

    def kubectl(self, *arguments: object, data: bytes = b"") -> tuple[int, bytes, str]:
        """Return the exit code, the output and the errors of kubectl."""
        done = subprocess.run(
            self.command(*arguments), input=data, capture_output=True, check=False, timeout=60, env=self.environ
        )
        return done.returncode, done.stdout, done.stderr.decode()


@dataclass(frozen=True)
class Servers:
    """Our API server and kube-apiserver, with the same pod."""

    own: OwnServer
    real: ControlPlane
    assets: Path
    audit_file: Path

    def access(self, protocol: str, *, real: bool = False) -> Access:
        return Access(self.real.kubeconfig if real else self.own.kubeconfig, self.assets, protocol)

    def sessions(self, subresource: str) -> set[tuple[str, str]]:
        """Return the protocols of the client and of the kubelet in all ended sessions, from the audit log."""
        events = map(json.loads, self.audit_file.read_text().splitlines())
        return {
            (event["annotations"]["streams.tapestry.io/protocol"], event["annotations"][BACKEND])
            for event in events
            if event["stage"] == "ResponseComplete"
            and event.get("objectRef", {}).get("subresource") == subresource
            and BACKEND in event.get("annotations", {})
        }


@contextmanager
def stream_servers(folder: Path, kit: Kit) -> Iterator[Servers]:
    """Run both servers and a node. The caller has the network of nodes."""
    audit_file = folder / "audit.log"
    own = OwnServer(folder / "own", f"--audit-log-path={audit_file}", "--controllers=none", pod_accounts="false")
    with (
        ControlPlane(folder / "real", kit.assets, fsync=False, address=MACHINE) as real,
        own,
        RealNode("n1", 1, real, folder / "node", kit) as node,
    ):
        node.wait_until_ready()
        servers = Servers(own, real, kit.assets, audit_file)
        create_pods(servers, node, folder)
        yield servers


def create_pods(servers: Servers, node: RealNode, folder: Path) -> None:
    for name, each in (("web", POD), ("pending", PENDING)):
        (folder / f"{name}.json").write_text(json.dumps(each))
        run(
            servers.assets / "kubectl",
            f"--kubeconfig={servers.real.kubeconfig}",
            "create",
            "-f",
            folder / f"{name}.json",
        )
    real = (servers.assets / "kubectl", f"--kubeconfig={servers.real.kubeconfig}")
    try:
        run(*real, "wait", "pod/web", "--for=condition=Ready", "--timeout=60s")
    except RuntimeError as error:
        error.add_note(node.log_tails())
        raise
    own = (servers.assets / "kubectl", f"--kubeconfig={servers.own.kubeconfig}")
    for kind, name in (("node", "n1"), ("pod", "web"), ("pod", "pending")):
        found = json.loads(run(*real, "get", kind, name, "-o", "json"))
        status = folder / "status.json"
        metadata = {key: found["metadata"][key] for key in ("name", "namespace") if key in found["metadata"]}
        copied = {"apiVersion": "v1", "kind": found["kind"], "metadata": metadata, "spec": found["spec"]}
        (folder / "copy.json").write_text(json.dumps(copied))
        run(*own, "create", "-f", folder / "copy.json")
        status.write_text(json.dumps({"status": found["status"]}))
        run(*own, "patch", kind, name, "--subresource=status", "--type=merge", f"--patch-file={status}")
