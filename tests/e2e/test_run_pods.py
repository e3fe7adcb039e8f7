"""`tapestry up --run-pods`: leased pods are processes of this machine."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tapestry.client.kubeconfig import load_access

from .streams import Streams
from .worlds import TAPESTRY, TIMEOUT_SECONDS, WorldProcess, running_world

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
PROCESS = {"runtimeClassName": "process"}
"""Fields of the specs of pods that run as processes."""
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "real"},
    "spec": {
        **PROCESS,
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
SERVER = """
import http.server, os
os.chdir("/e")
with open("index.html", "w") as page:
    page.write(os.uname().nodename)
http.server.ThreadingHTTPServer.request_queue_size = 64
http.server.ThreadingHTTPServer(("", 8080), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
WEB = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web"},
    "spec": {
        **PROCESS,
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "e", "emptyDir": {}}],
        "containers": [
            {
                "name": "c",
                "image": "none",
                "command": [os.path.realpath(sys.executable), "-c", SERVER],
                "volumeMounts": [{"name": "e", "mountPath": "/e"}],
                "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
            }
        ],
    },
}
READER_CONTAINER = {"name": "c", "image": "none", "command": ["cat"], "stdin": True, "stdinOnce": True}
READER = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "reader"},
    "spec": {**PROCESS, "restartPolicy": "Never", "containers": [READER_CONTAINER]},
}
SESSIONS = {
    ("exec", "websocket v5.channel.k8s.io"),
    ("exec", "SPDY/3.1 v4.channel.k8s.io"),
    ("attach", "websocket v5.channel.k8s.io"),
    ("attach", "SPDY/3.1 v4.channel.k8s.io"),
    ("portforward", "websocket SPDY/3.1+portforward.k8s.io"),
    ("portforward", "SPDY/3.1 portforward.k8s.io"),
}
"""Protocols of kubectl, which our API servers and the syncer pass to the process kubelet unchanged."""


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
        check_streams(world, kube_assets, tmp_path)
        check_simulated_pod(world, kube_assets)
        kubectl(world, kube_assets, "delete", "pod", "real")
        assert "sleep 1000" not in world.processes().values()
    with running_world(tmp_path / "world") as world:
        names = [each["metadata"]["name"] for each in get(world, "nodes", cluster="cluster-1")["items"]]
        assert names == ["cluster-1-1"]


def check_streams(world: WorldProcess, assets: Path, folder: Path) -> None:
    """Check every verb over every protocol, and that nothing between kubectl and the kubelet translates."""
    streams = streams_of_web(world, assets)
    for each in (streams, streams.with_spdy()):
        each.check_exec("web")
        each.check_terminal("web")
        each.check_copy("web", folder)
        each.check_port_forward("web", 8080)
        each.check_attach("parrot")
        each.check_debug("web")
    streams.check_logs("talk")
    streams.check_top("web", "vnode-cluster-1-this-machine")
    check_k(world, assets, folder)
    log = kubectl(world, assets, "logs", "-n", "tapestry-system", "deployment/tapestry-syncer-cluster-1", "--all-pods")
    lines = [line for line in log.splitlines() if '"stream session finished"' in line]
    finished = [json.loads(line.partition(" ")[2]) for line in lines]  # each line begins with the name of its pod
    assert {(each["subresource"], each["protocol"]) for each in finished} == SESSIONS


def check_k(world: WorldProcess, assets: Path, folder: Path) -> None:
    """Check `tapestry k` in place of kubectl, through our API server and the syncer."""
    program = folder / "k" / "kubectl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nshift  # --namespace, the default one\nexec {TAPESTRY} k "$@"\n')
    program.chmod(0o700)
    k = Streams(world.kubeconfig, program.parent, "default")
    k.check_exec("web")
    k.check_terminal("web")
    k.check_copy("web", program.parent)
    k.check_port_forward("web", 8080)
    kubectl(world, assets, "apply", "-f", "-", text=json.dumps(READER))
    kubectl(world, assets, "wait", "--for=condition=Ready", "pod/reader", "--timeout=60s")
    assert k.output("attach", "-i", "reader", stdin=b"hello\n") == b"hello\n"
    assert k.output("logs", "reader") == b"hello\n"


def check_simulated_pod(world: WorldProcess, assets: Path) -> None:
    """Check that the error of a simulated pod passes the syncer, over every protocol."""
    streams = Streams(world.kubeconfig, assets, "default")
    for each in (streams, streams.with_spdy()):
        for arguments in (["exec", "simulated", "--", "true"], ["attach", "-q", "simulated"]):
            done = each.kubectl(*arguments)
            assert done.returncode == 126
            assert re.match(rb"tapestry-\S+/simulated-\S+ is simulated: ", done.stderr)
        assert each.kubectl("cp", world.kubeconfig, "simulated:/tmp/x").returncode == 126


def streams_of_web(world: WorldProcess, assets: Path) -> Streams:
    """Start the pod `web`."""
    kubectl(world, assets, "apply", "-f", "-", text=json.dumps(WEB))
    kubectl(world, assets, "wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
    return Streams(world.kubeconfig, assets, "default", image="none", spec=PROCESS)


@pytest.mark.long
def test_100_mebibytes_pass_both_our_servers_unchanged(kube_assets: Path, tmp_path: Path) -> None:
    with running_world(tmp_path / "world", "--clusters", "1", "--nodes", "1", "--run-pods") as world:
        streams = streams_of_web(world, kube_assets)
        for each in (streams, streams.with_spdy()):
            assert each.echoes("web", 100 << 20)
