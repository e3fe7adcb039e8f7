"""kubectl commands for workloads on our local cluster."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TAPESTRY = Path(sys.executable).with_name("tapestry")

Kubectl = Callable[..., str]

SETS = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: c, image: "app:1"}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {containers: [{name: c, image: "app:1"}]}
"""
SUCCESS = {
    "deployment/web": 'deployment "web" successfully rolled out',
    "statefulset/db": "partitioned roll out complete: 2 new pods have been updated...",
    "daemonset/agent": 'daemon set "agent" successfully rolled out',
}


@pytest.fixture(scope="module")
def kubectl(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """kubectl connected to a cluster with two simulated nodes."""
    folder = tmp_path_factory.mktemp("clusters")
    command = [TAPESTRY, "cluster", "--data", folder / "mine", "--nodes", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def run(*arguments: str, input: str | None = None) -> str:
        given = ["--cache-dir", folder / "cache", "--kubeconfig", folder / "mine" / "kubeconfig"]
        done = subprocess.run(
            [kube_assets / "kubectl", *given, *arguments],
            input=input,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        assert process.stderr is not None
        next(line for line in map(json.loads, process.stderr) if line["message"] == "cluster ready")
        run("wait", "--for=create", "serviceaccount/default", "--timeout=20s")
        yield run
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


def wait_for_rollout(kubectl: Kubectl, what: str) -> None:
    assert kubectl("rollout", "status", what, "--timeout=40s").splitlines()[-1] == SUCCESS[what]


def revisions(kubectl: Kubectl, what: str) -> list[str]:
    return [row[0] for row in rows(kubectl("rollout", "history", what)) if row and row[0].isdecimal()]


def image_of(kubectl: Kubectl, what: str) -> str:
    return kubectl("get", what, "-o", "jsonpath={.spec.template.spec.containers[0].image}")


@pytest.mark.parametrize("what", ["deployment/web", "statefulset/db", "daemonset/agent"])
def test_rollout_is_followed_undone_and_restarted(kubectl: Kubectl, what: str) -> None:
    if what == "deployment/web":
        kubectl("create", "deployment", "web", "--image=app:1", "--replicas=3")
    else:
        kubectl("apply", "-f", "-", input=SETS)
    wait_for_rollout(kubectl, what)
    container = "app" if what == "deployment/web" else "c"
    kubectl("set", "image", what, f"{container}=app:2")
    wait_for_rollout(kubectl, what)
    assert revisions(kubectl, what) == ["1", "2"]
    kubectl("rollout", "undo", what)
    wait_for_rollout(kubectl, what)
    assert (image_of(kubectl, what), revisions(kubectl, what)) == ("app:1", ["2", "3"])
    assert "app:2" in kubectl("rollout", "history", what, "--revision=2")
    kubectl("rollout", "restart", what)
    wait_for_rollout(kubectl, what)
    assert revisions(kubectl, what) == ["2", "3", "4"]


def test_deployment_is_paused_and_resumed(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "slow", "--image=app:1", "--replicas=2")
    kubectl("rollout", "status", "deployment/slow", "--timeout=40s")
    kubectl("rollout", "pause", "deployment/slow")
    kubectl("set", "image", "deployment/slow", "app=app:2")
    kubectl("scale", "deployment/slow", "--replicas=3")
    kubectl("wait", "--for=jsonpath={.status.availableReplicas}=3", "deployment/slow", "--timeout=40s")
    images = kubectl("get", "pods", "-l", "app=slow", "-o", "jsonpath={.items[*].spec.containers[0].image}")
    assert images.split() == ["app:1"] * 3
    kubectl("rollout", "resume", "deployment/slow")
    kubectl("rollout", "status", "deployment/slow", "--timeout=40s")
    (head, line) = rows(kubectl("get", "deployment", "slow", "-o", "wide"))
    assert head == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE", "CONTAINERS", "IMAGES", "SELECTOR"]
    assert (line[1:4], line[5:]) == (["3/3", "3", "3"], ["app", "app:2", "app=slow"])


def test_jobs_are_created_manually_and_by_schedule(kubectl: Kubectl) -> None:
    kubectl("create", "job", "hello", "--image=app")
    kubectl("create", "cronjob", "tick", "--image=app", "--schedule=0 0 1 1 *")
    kubectl("create", "job", "now", "--from=cronjob/tick")
    kubectl("wait", "--for=condition=complete", "job/hello", "job/now", "--timeout=40s")
    (head, *lines) = rows(kubectl("get", "jobs"))
    assert head == ["NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"]
    assert {tuple(line[:3]) for line in lines} == {("hello", "Complete", "1/1"), ("now", "Complete", "1/1")}
    (head, line) = rows(kubectl("get", "cronjobs"))
    assert " ".join(head) == "NAME SCHEDULE TIMEZONE SUSPEND ACTIVE LAST SCHEDULE AGE"
    assert line[0] == "tick"
    assert line[6:9] == ["<none>", "False", "0"]


def test_sets_are_printed_as_in_kubernetes(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=SETS)
    for what in ("statefulset/db", "daemonset/agent"):
        wait_for_rollout(kubectl, what)
    assert rows(kubectl("get", "statefulset", "db"))[1][:2] == ["db", "2/2"]
    assert rows(kubectl("get", "daemonset", "agent"))[1][:7] == ["agent", "2", "2", "2", "2", "2", "<none>"]
    assert "create Pod db-0 in StatefulSet db successful" in kubectl("describe", "statefulset", "db")
    assert sorted(kubectl("get", "pods", "-l", "app=db", "-o", "name").split()) == ["pod/db-0", "pod/db-1"]


def test_plain_rest_is_served_beside_the_kubernetes_api(kubectl: Kubectl) -> None:
    nodes = json.loads(kubectl("get", "--raw", "/apiext/v1/nodes?sort=name"))
    assert [node["name"] for node in nodes["items"]] == ["mine-1", "mine-2"]
