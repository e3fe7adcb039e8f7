"""`tapestry up --run-pods`: leased pods are processes of this machine."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .worlds import TIMEOUT_SECONDS, WorldProcess, running_world

pytestmark = pytest.mark.timeout(300)  # worlds start and end within it, on a shared machine
SCRIPT = "hostname; cat /mnt/k; echo; echo $$ > /e/pid; [ -e /e/again ] || { touch /e/again; exit 1; }; exec sleep 1000"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "real"},
    "spec": {
        "runtimeClassName": "process",
        "volumes": [{"name": "m", "configMap": {"name": "m"}}, {"name": "e", "emptyDir": {}}],
        "containers": [
            {
                "name": "c",
                "image": "none",
                "command": ["sh", "-c", SCRIPT.replace("$$", "$$$$")],
                "volumeMounts": [{"name": "m", "mountPath": "/mnt"}, {"name": "e", "mountPath": "/e"}],
                "readinessProbe": {"exec": {"command": ["test", "-e", "/e/pid"]}},
            }
        ],
        "terminationGracePeriodSeconds": 1,
    },
}


def kubectl(world: WorldProcess, assets: Path, *arguments: str, cluster: str = "virtual", text: str = "") -> str:
    command = [assets / "kubectl", f"--kubeconfig={world.folder / cluster / 'kubeconfig'}", *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_leased_pods_run_as_processes(kube_assets: Path, tmp_path: Path) -> None:
    def get(world: WorldProcess, *arguments: str, cluster: str = "virtual") -> Any:
        return json.loads(kubectl(world, kube_assets, "get", "-o", "json", *arguments, cluster=cluster))

    with running_world(tmp_path / "world", "--clusters", "1", "--nodes", "1", "--run-pods") as world:
        assert "pods run on cluster-1/this-machine; containers are" in world.output
        kubectl(world, kube_assets, "create", "configmap", "m", "--from-literal=k=value")
        kubectl(world, kube_assets, "apply", "-f", "-", text=json.dumps(POD))
        kubectl(world, kube_assets, "run", "simulated", "--image=nginx")
        kubectl(world, kube_assets, "wait", "--for=condition=Ready", "pod/real", "pod/simulated", "--timeout=60s")
        for arguments in (["--previous"], [], ["--limit-bytes=10"], ["--tail=2", "--since=1h"]):
            assert kubectl(world, kube_assets, "logs", "real", *arguments).rstrip() == "real\nvalue"
        assert get(world, "pod", "simulated")["spec"]["nodeName"] == "vnode-cluster-1-cluster-1-1"
        (twin,) = [each for each in get(world, "pods", "-A", cluster="cluster-1")["items"] if "real" in str(each)]
        assert twin["spec"]["nodeName"] == "this-machine"
        assert "sleep 1000" in world.processes().values()
        kubectl(world, kube_assets, "delete", "pod", "real")
        assert "sleep 1000" not in world.processes().values()
    with running_world(tmp_path / "world") as world:
        names = [each["metadata"]["name"] for each in get(world, "nodes", cluster="cluster-1")["items"]]
        assert names == ["cluster-1-1"]
