"""The real control plane that other tests rely on."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tapestry.local.kubernetes import KUBERNETES_VERSION, ControlPlane

from .planes import PROCESSES, only_on_kubernetes

Kubectl = Callable[..., str]


@pytest.fixture
def plane(kube_assets: Path, tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane that a test may damage."""
    with ControlPlane(tmp_path / "plane", kube_assets, fsync=False) as plane:
        yield plane


@pytest.fixture
def on_plane(plane: ControlPlane, kubectl: Kubectl) -> Kubectl:
    return lambda *arguments: kubectl(*arguments, kubeconfig=plane.kubeconfig)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@only_on_kubernetes(PROCESSES)
def test_control_plane_has_the_pinned_version(kubectl: Kubectl) -> None:
    versions = json.loads(kubectl("version", "--output=json"))
    assert versions["serverVersion"]["gitVersion"] == f"v{KUBERNETES_VERSION}"
    assert versions["clientVersion"]["gitVersion"] == f"v{KUBERNETES_VERSION}"


@only_on_kubernetes(PROCESSES)
def test_each_test_gets_an_empty_namespace(kubectl: Kubectl, namespace: str) -> None:
    assert json.loads(kubectl("get", "configmaps", f"--namespace={namespace}", "--output=json"))["items"] == []


@only_on_kubernetes(PROCESSES)
def test_the_kubeconfig_is_private_and_verifies_the_server(kubeconfig: Path) -> None:
    assert kubeconfig.stat().st_mode & 0o777 == 0o600
    cluster = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]
    assert cluster.keys() == {"server", "certificate-authority-data"}


@only_on_kubernetes(PROCESSES)
def test_objects_survive_kills(plane: ControlPlane, on_plane: Kubectl) -> None:
    on_plane("create", "configmap", "kept", "--from-literal=colour=blue")
    plane.restart("kube-apiserver")
    plane.restart("etcd")
    plane.wait_for_ready("kube-apiserver")
    plane.stop()
    plane.start()
    assert on_plane("get", "configmap", "kept", "--output=jsonpath={.data.colour}") == "blue"


@only_on_kubernetes(PROCESSES)
def test_paused_server_answers_after_resume(plane: ControlPlane, on_plane: Kubectl) -> None:
    plane.pause("kube-apiserver")
    with pytest.raises(AssertionError, match=r"[Tt]imeout"):
        on_plane("get", "namespaces", "--request-timeout=1s")
    plane.resume("kube-apiserver")
    assert "kube-system" in on_plane("get", "namespaces")


def test_nothing_runs_after_stop(plane: ControlPlane) -> None:
    pids = plane.pids().values()
    assert all(is_running(pid) for pid in pids)
    plane.stop()
    plane.stop()
    assert not any(is_running(pid) for pid in pids)


@only_on_kubernetes(PROCESSES)
def test_controllers_and_scheduler_work(kube_assets: Path, tmp_path: Path, kubectl: Kubectl) -> None:
    with ControlPlane(tmp_path, kube_assets, controller_manager=True, scheduler=True, fsync=False) as plane:

        def run(*arguments: str) -> str:
            return kubectl(*arguments, kubeconfig=plane.kubeconfig)

        run("wait", "--for=create", "serviceaccount/default", "--timeout=30s")
        token = run("create", "token", "default").strip()
        whoami = run("auth", "whoami", f"--token={token}", "--output=json")
        assert json.loads(whoami)["status"]["userInfo"]["username"] == "system:serviceaccount:default:default"
        run("run", "nowhere-to-go", "--image=pause")
        run("wait", "--for=condition=PodScheduled=False", "pod/nowhere-to-go", "--timeout=30s")


OWNER = """
import json, sys
from pathlib import Path
from tapestry.local.kubernetes import ControlPlane

with ControlPlane(Path(sys.argv[1]), Path(sys.argv[2]), fsync=False) as plane:
    print(json.dumps(plane.pids()), flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for strangers' processes, which takes Linux")
def test_control_plane_dies_when_its_owner_is_killed(kube_assets: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path), str(kube_assets)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        ends = {name: os.pidfd_open(pid) for name, pid in json.loads(owner.stdout.readline()).items()}
        owner.send_signal(signal.SIGKILL)
    try:
        left = {name for name, end in ends.items() if not select.select([end], [], [], 30)[0]}
        assert not left
    finally:
        for end in ends.values():
            os.close(end)
