"""`tapestry up --run-pods`: leased pods are processes of this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tapestry.client.kubeconfig import load_access

from .worlds import TIMEOUT_SECONDS, WorldProcess, running_world

pytestmark = pytest.mark.timeout(300)  # worlds start and end within it, on a shared machine
CALL = """
import os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
url = "https://{KUBERNETES_SERVICE_HOST}:{KUBERNETES_SERVICE_PORT}/apis".format(**os.environ)
headers = {"Authorization": "Bearer " + open(f"{folder}/token").read()}
context = ssl.create_default_context(cafile=f"{folder}/ca.crt")
print(urllib.request.urlopen(urllib.request.Request(url, headers=headers), context=context).status)
"""
"""Script that calls the virtual API server with the pod's token."""
SCRIPT = """
hostname; cat /mnt/k; echo; "$PYTHON" -c "$CALL"
[ -e /e/again ] || { touch /e/again; exit 1; }
touch /e/started
exec sleep 1000
"""
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
                "command": ["sh", "-c", SCRIPT],
                "env": [{"name": "CALL", "value": CALL}, {"name": "PYTHON", "value": os.path.realpath(sys.executable)}],
                "volumeMounts": [{"name": "m", "mountPath": "/mnt"}, {"name": "e", "mountPath": "/e"}],
                "readinessProbe": {"exec": {"command": ["test", "-e", "/e/started"]}},
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
        address = urlsplit(load_access([world.kubeconfig], environ={}).server).netloc
        endpoints = json.dumps({"spec": {"virtualEndpoints": {"api": address}}})
        kubectl(world, kube_assets, "patch", "clusterbinding", "cluster-1", "--type=merge", "-p", endpoints)
        kubectl(world, kube_assets, "create", "configmap", "m", "--from-literal=k=value")
        kubectl(world, kube_assets, "apply", "-f", "-", text=json.dumps(POD))
        kubectl(world, kube_assets, "run", "simulated", "--image=nginx")
        kubectl(world, kube_assets, "wait", "--for=condition=Ready", "pod/real", "pod/simulated", "--timeout=60s")
        for arguments in (["--previous"], [], ["--tail=3", "--since=1h"]):
            assert kubectl(world, kube_assets, "logs", "real", *arguments) == "real\nvalue\n200\n"
        assert kubectl(world, kube_assets, "logs", "real", "--limit-bytes=7") == "real\nva"
        assert get(world, "pod", "simulated")["spec"]["nodeName"] == "vnode-cluster-1-cluster-1-1"
        (twin,) = [each for each in get(world, "pods", "-A", cluster="cluster-1")["items"] if "real" in str(each)]
        assert twin["spec"]["nodeName"] == "this-machine"
        assert "sleep 1000" in world.processes().values()
        kubectl(world, kube_assets, "delete", "pod", "real")
        assert "sleep 1000" not in world.processes().values()
    with running_world(tmp_path / "world") as world:
        names = [each["metadata"]["name"] for each in get(world, "nodes", cluster="cluster-1")["items"]]
        assert names == ["cluster-1-1"]
