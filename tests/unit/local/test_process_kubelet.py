"""Pods as processes: environment, status and termination."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.objects import Object, uid_of, value_at
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES, NODES, PODS, SECRETS, TOKEN_REVIEWS
from tapestry.local import pod_sandbox
from tapestry.local.isolation import isolation_failure, machine_isolation
from tapestry.local.process_kubelet import ISOLATED, TAINT
from tapestry.local.world import isolation_message

from .worlds import NO_NAMESPACES, World, new_cluster

FOR_EVER = "while :; do sleep 0.05; done"


def new_pod(script: str, name: str = "p", namespace: str = "default", **spec: Any) -> Object:
    """Return a pod with one container that runs a script and ends at once when stopped."""
    container = {"name": "c", "image": "none", "command": ["sh", "-c", script], **spec.pop("container", {})}
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"nodeName": "n", "containers": [container], "terminationGracePeriodSeconds": 5, **spec},
    }


def is_ready(pod: Object) -> bool:
    return is_condition_true(pod, "Ready")


def phase(pod: Object) -> str:
    found: str = value_at(pod, "status", "phase", default="")
    return found


def is_over(pod: Object) -> bool:
    return phase(pod) in ("Succeeded", "Failed")


def container_of(pod: Object) -> Object:
    found: Object = value_at(pod, "status", "containerStatuses", 0, default={})
    return found


async def output_of(world: World, pod: Object) -> str:
    """Run a pod to completion and return its log."""
    await world.client.create(PODS, pod)
    ended = await world.wait_for_pod("p", is_over)
    assert phase(ended) == "Succeeded", await world.log("p")
    return await world.log("p")


def new_script(script: str, **spec: Any) -> Object:
    return new_pod(script, restartPolicy="Never", **spec)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


# -- environment


async def test_pod_runs_to_completion_with_log(open_world: World) -> None:
    assert await output_of(open_world, new_script("echo one; echo two >&2; echo three")) == "one\ntwo\nthree\n"
    assert await open_world.log("p", tailLines=1) == "three\n"
    pod = await open_world.client.get(PODS, "p", "default")
    assert container_of(pod)["state"]["terminated"]["exitCode"] == 0
    assert find_condition(pod["status"]["conditions"], "Ready")["reason"] == "PodCompleted"


async def test_pod_finds_volumes_by_mount_path(open_world: World) -> None:
    await open_world.client.create(
        CONFIGMAPS, {"metadata": {"name": "m", "namespace": "default"}, "data": {"a": "map"}}
    )
    secret = {"metadata": {"name": "s", "namespace": "default"}, "data": {"b": "c2VjcmV0"}}
    await open_world.client.create(SECRETS, secret)
    names = {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}
    volumes = [
        {"name": "m", "configMap": {"name": "m"}},
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "d", "downwardAPI": names},
        {"name": "e", "emptyDir": {}},
    ]
    mounts = [{"name": each, "mountPath": f"/mnt/{each}"} for each in "msde"]
    script = "cat /mnt/m/a /mnt/s/b /mnt/d/labels; echo kept > /mnt/e/x; cat /mnt/e/x; cat $FILE"
    env = [{"name": "FILE", "value": "/mnt/m/a"}]
    pod = new_script(script, volumes=volumes, container={"volumeMounts": mounts, "env": env})
    pod["metadata"]["labels"] = {"app": "x"}
    assert await output_of(open_world, pod) == 'mapsecretapp="x"kept\nmap\n'


async def test_pod_sees_own_fields_but_not_our_environment(open_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"POD": "metadata.name", "IP": "status.podIP", "NODE": "spec.nodeName"}
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    monkeypatch.setenv("TAPESTRY_SECRET", "ours")
    text = await output_of(open_world, new_script("env; pwd", container={"env": env}))
    *lines, folder = text.splitlines()
    found = dict(line.split("=", 1) for line in lines)
    pod = await open_world.client.get(PODS, "p", "default")
    assert (found["POD"], found["IP"], found["NODE"]) == ("p", pod["status"]["podIP"], "n")
    assert found["IP"].startswith("127.")
    assert "TAPESTRY_SECRET" not in found
    assert folder.startswith(str(open_world.folder))


async def test_pod_calls_api_server_as_its_account(open_world: World) -> None:
    text = await output_of(
        open_world,
        new_script(
            "cat $KUBECONFIG; cat $(TOKENS)/token",
            container={"env": [{"name": "TOKENS", "value": "/var/run/secrets/kubernetes.io/serviceaccount"}]},
        ),
    )
    assert open_world.server in text
    assert "tokenFile" in text
    token = text.rpartition("}")[2].strip()
    review = await open_world.client.review(TOKEN_REVIEWS, {"token": token})
    assert review["status"]["user"]["username"] == "system:serviceaccount:default:default"


async def test_pod_waits_for_missing_source(open_world: World) -> None:
    volumes = [{"name": "m", "configMap": {"name": "m"}}]
    mounts = [{"name": "m", "mountPath": "/mnt"}]
    await open_world.client.create(PODS, new_script("cat /mnt/a", volumes=volumes, container={"volumeMounts": mounts}))
    pod = await open_world.wait_for_pod("p", lambda pod: bool(container_of(pod)))
    assert phase(pod) == "Pending"
    assert container_of(pod)["state"]["waiting"]["message"] == 'ConfigMap "m" not found'
    await open_world.client.create(CONFIGMAPS, {"metadata": {"name": "m", "namespace": "default"}, "data": {"a": "x"}})
    await open_world.wait_for_pod("p", lambda pod: phase(pod) == "Succeeded")


async def test_init_containers_run_first_and_sidecars_alongside(open_world: World) -> None:
    def init(name: str, script: str, **more: str) -> Object:
        mounts = [{"name": "e", "mountPath": "/e"}]
        return {"name": name, "image": "i", "command": ["sh", "-c", script], "volumeMounts": mounts, **more}

    containers = [
        init("first", "echo first >> /e/order"),
        init("beside", f"echo beside >> /e/order; {FOR_EVER}", restartPolicy="Always"),
        init("second", "until [ $(wc -l < /e/order) -ge 2 ]; do sleep 0.02; done; echo second >> /e/order"),
    ]
    main = {"volumeMounts": [{"name": "e", "mountPath": "/e"}]}
    pod = new_script("cat /e/order", initContainers=containers, volumes=[{"name": "e", "emptyDir": {}}], container=main)
    assert await output_of(open_world, pod) == "first\nbeside\nsecond\n"
    found = await open_world.client.get(PODS, "p", "default")
    assert all("terminated" in each["state"] for each in found["status"]["initContainerStatuses"])


# -- probes


async def test_pod_is_ready_while_probe_succeeds(open_world: World) -> None:
    probe = {"exec": {"command": ["test", "-e", "/e/ready"]}, "periodSeconds": 1, "failureThreshold": 1}
    mounts = [{"name": "e", "mountPath": "/e"}]
    container = {"readinessProbe": probe, "volumeMounts": mounts}
    await open_world.client.create(
        PODS, new_pod(FOR_EVER, volumes=[{"name": "e", "emptyDir": {}}], container=container)
    )
    pod = await open_world.wait_for_pod("p", lambda pod: phase(pod) == "Running")
    assert not is_ready(pod)
    flag = open_world.folder / "pods" / uid_of(pod) / "volumes" / "e" / "ready"
    flag.touch()
    await open_world.wait_for_pod("p", is_ready)
    flag.unlink()
    await open_world.wait_for_pod("p", lambda pod: not is_ready(pod))


async def test_unhealthy_container_is_restarted(open_world: World) -> None:
    probe = {"exec": {"command": ["test", "-e", "/e/ill"]}, "periodSeconds": 1, "failureThreshold": 1}
    container = {"livenessProbe": probe, "volumeMounts": [{"name": "e", "mountPath": "/e"}]}
    script = f"touch /e/ill; sleep 0.3; rm -f /e/ill; {FOR_EVER}"
    await open_world.client.create(PODS, new_pod(script, volumes=[{"name": "e", "emptyDir": {}}], container=container))
    again = await open_world.wait_for_pod("p", lambda pod: container_of(pod).get("restartCount", 0) >= 1)
    assert container_of(again)["lastState"]["terminated"]["exitCode"] == 143
    events = await open_world.wait_for_events({"Started", "Unhealthy", "Killing"})
    assert {(each["involvedObject"].get("kind"), each["involvedObject"]["name"]) for each in events} == {("Pod", "p")}


# -- restarts and termination


async def test_killed_container_restarts_and_keeps_old_log(open_world: World) -> None:
    await open_world.client.create(PODS, new_pod(f"echo $$$$; {FOR_EVER}"))
    await open_world.wait_for_pod("p", is_ready)
    first = await open_world.first_line("p")
    os.kill(int(first), signal.SIGKILL)
    await open_world.wait_for_pod("p", lambda pod: container_of(pod)["restartCount"] == 1 and is_ready(pod))
    assert await open_world.first_line("p") != first
    assert await open_world.log("p", previous="true") == first


async def test_repeated_failure_backs_off(open_world: World) -> None:
    await open_world.client.create(PODS, new_pod("echo no; exit 3"))
    pod = await open_world.wait_for_pod(
        "p", lambda pod: "waiting" in container_of(pod).get("state", {}) and phase(pod) == "Running"
    )
    assert container_of(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert container_of(pod)["lastState"]["terminated"]["exitCode"] == 3
    assert container_of(pod)["restartCount"] == 1
    assert await open_world.log("p") == await open_world.log("p", previous="true") == "no\n"
    await open_world.client.delete(PODS, pod)
    await open_world.wait_until_gone("p")


@pytest.mark.parametrize(("script", "end"), [("exit 0", "Succeeded"), ("exit 2", "Failed")])
async def test_pod_ends_if_not_restarted(open_world: World, script: str, end: str) -> None:
    await open_world.client.create(PODS, new_script(script))
    assert phase(await open_world.wait_for_pod("p", is_over)) == end


async def test_missing_program_is_reported(open_world: World) -> None:
    pod = new_script("", container={"command": ["no-such-program"]})
    await open_world.client.create(PODS, pod)
    ended = container_of(await open_world.wait_for_pod("p", is_over))["state"]["terminated"]
    assert ended["exitCode"] == 128
    assert "no-such-program" in ended["message"]


async def test_deleted_pod_ends_gracefully_and_leaves_nothing(open_world: World) -> None:
    script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    await open_world.client.create(PODS, new_pod(script))
    pod = await open_world.wait_for_pod("p", is_ready)
    folder = open_world.folder / "pods" / uid_of(pod)
    assert folder.is_dir()
    async with open_world.open_log("p", follow="true") as log:
        assert await log.content.readline() == b"up\n"
        await open_world.client.delete(PODS, pod)
        await open_world.wait_until_gone("p")
        assert await log.content.read() == b"bye\n"
    await open_world.client.create(PODS, new_pod("exit 0", "next", restartPolicy="Never"))
    await open_world.wait_for_pod("next", is_over)
    assert not folder.exists()


async def test_pod_ignoring_sigterm_is_killed_after_grace(open_world: World) -> None:
    await open_world.client.create(PODS, new_pod(f"trap '' TERM; echo $$$$; {FOR_EVER}"))
    pod = await open_world.wait_for_pod("p", is_ready)
    pid = int(await open_world.first_line("p"))
    await open_world.client.delete(PODS, pod, grace_seconds=1)
    await open_world.wait_until_gone("p")
    assert not is_alive(pid)


# -- allowed pods


async def test_disallowed_pod_waits_with_reason(strict_world: World) -> None:
    await strict_world.client.create(PODS, new_pod("touch /tmp/never"))
    pod = await strict_world.wait_for_pod("p", lambda pod: bool(container_of(pod)))
    waiting = container_of(pod)["state"]["waiting"]
    assert (phase(pod), waiting["reason"]) == ("Pending", "Refused")
    assert waiting["message"] == "pods of the namespace default may not run as processes"
    await strict_world.client.delete(PODS, pod)
    await strict_world.wait_until_gone("p")


async def test_our_program_runs_in_trusted_namespace(strict_world: World) -> None:
    await strict_world.client.create(NAMESPACES, {"metadata": {"name": "tapestry-system"}})
    pod = new_pod("", namespace="tapestry-system", restartPolicy="Never")
    pod["spec"]["automountServiceAccountToken"] = False
    pod["spec"]["containers"][0] |= {"command": ["tapestry"], "args": ["syncer", "--binding", "b"]}
    await strict_world.client.create(PODS, pod)
    await strict_world.wait_for_pod("p", is_over, "tapestry-system")
    assert "/nonexistent/.kube/config" in await strict_world.log("p", "tapestry-system")


async def test_node_taint_keeps_other_pods_away(strict_world: World) -> None:
    assert TAINT in (await strict_world.client.get(NODES, "n"))["spec"]["taints"]


# -- isolation


async def test_node_says_that_its_pods_are_not_isolated(open_world: World) -> None:
    node = await open_world.client.get(NODES, "n")
    says = f"containers are plain processes of this machine, without isolation: {NO_NAMESPACES}"
    condition = find_condition(node["status"]["conditions"], ISOLATED)
    assert (condition["status"], condition["reason"], condition["message"]) == ("False", "NoNamespaces", says)
    assert node["status"]["nodeInfo"]["osImage"] == says
    assert isolation_message(node) == says  # `tapestry up` prints it


async def test_missing_namespaces_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = (
        sys.executable,
        "-c",
        "import socket, sys; socket.socket(fileno=int(sys.argv[2])).send(b'not permitted')",
    )
    monkeypatch.setattr(pod_sandbox, "INIT_PROGRAM", refused)
    assert await isolation_failure(machine_isolation(tmp_path, os.environ), tmp_path) == "not permitted"


# -- restarts of the kubelet


async def test_pods_end_with_kubelet_and_restart_with_next(tmp_path: Path) -> None:
    async with new_cluster(tmp_path, run_pods=True) as world:
        await world.client.create(PODS, new_pod(f"echo $$$$; {FOR_EVER}"))
        await world.client.create(PODS, new_pod(FOR_EVER, "once", restartPolicy="Never"))
        await world.wait_for_pod("p", is_ready)
        await world.wait_for_pod("once", is_ready)
        pid = int(await world.first_line("p"))
    assert not is_alive(pid)
    async with new_cluster(tmp_path, run_pods=True) as world:
        again = await world.wait_for_pod("p", lambda pod: is_ready(pod) and container_of(pod)["restartCount"] == 1)
        assert container_of(again)["lastState"]["terminated"]["exitCode"] == 137
        assert int(await world.first_line("p")) != pid
        assert int(await world.log("p", previous="true")) == pid
        assert phase(await world.wait_for_pod("once", is_over)) == "Failed"


async def test_pod_deleted_while_kubelet_was_down_ends(tmp_path: Path) -> None:
    held = new_pod(FOR_EVER, restartPolicy="OnFailure")
    held["metadata"]["finalizers"] = ["example.com/counted"]
    async with new_cluster(tmp_path, run_pods=True) as world:
        await world.client.create(PODS, held)
        await world.wait_for_pod("p", is_ready)
    async with new_cluster(tmp_path, simulated=True) as world:  # with another kubelet
        await world.client.delete(PODS, await world.client.get(PODS, "p", "default"))
    async with new_cluster(tmp_path, run_pods=True) as world:
        pod = await world.wait_for_pod("p", is_over)
        assert phase(pod) == "Failed"
        await world.client.patch(PODS, pod, {"metadata": {"finalizers": None}})
        await world.wait_until_gone("p")
