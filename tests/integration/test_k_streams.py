"""`tapestry k` exec, attach, cp and port-forward through kube-apiserver to pods of the process kubelet."""

import asyncio
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tapestry.client.watch import wait_for
from tapestry.kube.objects import Object, value_at
from tapestry.kube.pods import DEFAULT_CONTAINER_ANNOTATION
from tapestry.kube.resources import PODS

from .test_kubelet_streams import (
    SECONDS,
    SERVER,
    Cluster,
    cluster,  # noqa: F401  a fixture
    errors_of_forwarding,
    is_ready,
    namespace,  # noqa: F401  a fixture
    start_pod,
    terminal_size,
)


@pytest.fixture
def k(cluster: Cluster, tmp_path: Path) -> Cluster:  # noqa: F811
    """The cluster, with `tapestry k` in place of kubectl."""
    program = tmp_path / "k"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from tapestry.cli.main import main; main()" k "$@"\n')
    program.chmod(0o700)
    return replace(cluster, kubectl=program)


async def test_commands_copies_and_forwarded_ports_work(k: Cluster, namespace: str, tmp_path: Path) -> None:  # noqa: F811
    await start_pod(k, namespace, "web", command=["python3", "-c", SERVER])
    data = os.urandom(1 << 20)
    script = "cat; echo problem >&2; exit 42"
    code, output, errors = await k.run(
        "exec", "-i", "-n", namespace, "web", "--", "sh", "-c", script, websockets=True, stdin=data
    )
    assert (code, output == data, errors) == (42, True, b"problem\n")
    code, _, errors = await k.run("exec", "-n", namespace, "web", "-c", "x", "--", "true", websockets=True)
    assert code == 1
    assert b"container x" in errors
    assert await terminal_size(k, namespace, websockets=True) == "33 101"
    await copy_folder(k, namespace, tmp_path, data)
    await forward_ports(k, namespace)


async def copy_folder(k: Cluster, namespace: str, folder: Path, data: bytes) -> None:  # noqa: F811
    (folder / "there").mkdir()
    (folder / "there" / "file").write_bytes(data)
    inside = f"{namespace}/web:/tmp/{namespace}"
    for source, target in ((str(folder / "there"), inside), (inside, str(folder / "back"))):
        code, _, errors = await k.run("cp", source, target, websockets=True)
        assert code == 0, errors
    assert (folder / "back" / "file").read_bytes() == data
    code, _, errors = await k.run("cp", f"{namespace}/web:/nowhere", str(folder / "x"), websockets=True)
    assert code == 1
    assert b"No such file" in errors


async def forward_ports(k: Cluster, namespace: str) -> None:  # noqa: F811
    environment = {**k.environment(websockets=True), "PYTHONUNBUFFERED": "1"}
    command = (k.kubectl, "port-forward", "-n", namespace, "web", ":8080")
    assert await errors_of_forwarding(*command, environment=environment) == b""


async def test_attach_sends_input_and_shows_output(k: Cluster, namespace: str) -> None:  # noqa: F811
    await start_pod(k, namespace, "reader", command=["cat"], stdin=True, stdinOnce=True)
    code, output, errors = await k.run("attach", "-i", "-n", namespace, "reader", websockets=True, stdin=b"hello\n")
    assert (code, output) == (0, b"hello\n"), errors


async def start_pair(k: Cluster, namespace: str, name: str, **annotations: str) -> None:  # noqa: F811
    """Start a pod with two containers, which write their names and end when the file `/e/end` exists."""
    script = "echo $NAME; until [ -e /e/end ]; do sleep 0.1; done; echo end of $NAME"
    containers = [
        {
            "name": each,
            "image": "none",
            "command": ["sh", "-c", script],
            "env": [{"name": "NAME", "value": each}],
            "volumeMounts": [{"name": "e", "mountPath": "/e"}],
        }
        for each in ("first", "second")
    ]
    spec = {
        "nodeName": "streams",
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "volumes": [{"name": "e", "emptyDir": {}}],
        "containers": containers,
    }
    metadata = {"name": name, "namespace": namespace, "annotations": annotations}
    await k.client.create(PODS, {"metadata": metadata, "spec": spec})
    assert await wait_for(k.client, PODS, name, namespace, until=is_ready, timeout=SECONDS)


async def test_container_is_chosen_as_by_kubectl(
    cluster: Cluster,  # noqa: F811
    k: Cluster,
    namespace: str,  # noqa: F811
) -> None:
    await start_pair(k, namespace, "plain")
    await start_pair(k, namespace, "annotated", **{DEFAULT_CONTAINER_ANNOTATION: "second"})
    for pod, chosen, note in (
        ("plain", b"first\n", b'Defaulted container "first" out of: first, second\n'),
        ("annotated", b"second\n", b""),
    ):
        for arguments in (("logs", pod), ("exec", pod, "--", "sh", "-c", "echo $NAME")):
            for each in (k, cluster):
                found = await each.run(arguments[0], "-n", namespace, *arguments[1:], websockets=True)
                assert found == (0, chosen, note)


async def test_logs_of_all_containers_are_read_and_followed(
    cluster: Cluster,  # noqa: F811
    k: Cluster,
    namespace: str,  # noqa: F811
) -> None:
    await start_pair(k, namespace, "pair")
    logs = ("logs", "-n", namespace, "pair", "--all-containers")
    assert await k.run(*logs, websockets=True) == (0, b"first\nsecond\n", b"")
    async with asyncio.TaskGroup() as group:
        following = [group.create_task(each.run(*logs, "-f", websockets=True)) for each in (k, cluster)]
        await k.run("exec", "-n", namespace, "pair", "-c", "first", "--", "touch", "/e/end", websockets=True)
    for each in following:
        code, output, errors = each.result()
        assert (code, errors) == (0, b"")
        assert sorted(output.splitlines()) == [b"end of first", b"end of second", b"first", b"second"]


async def start_restarted_pod(k: Cluster, namespace: str, name: str) -> None:  # noqa: F811
    """Start a pod whose container has ended once; then it writes ten lines."""
    script = "[ -e /e/again ] || { touch /e/again; echo before; exit 1; }; seq 10; sleep 1000"
    container = {"name": "c", "image": "none", "command": ["sh", "-c", script]}
    spec = {
        "nodeName": "streams",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "e", "emptyDir": {}}],
        "containers": [{**container, "volumeMounts": [{"name": "e", "mountPath": "/e"}]}],
    }
    await k.client.create(PODS, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})
    assert await wait_for(k.client, PODS, name, namespace, until=is_restarted, timeout=SECONDS)


def is_restarted(pod: Object | None) -> bool:
    return is_ready(pod) and value_at(pod, "status", "containerStatuses", 0, "restartCount") == 1


async def test_options_of_logs_are_those_of_kubectl(
    cluster: Cluster,  # noqa: F811
    k: Cluster,
    namespace: str,  # noqa: F811
) -> None:
    async def log(client: Cluster, *options: str) -> bytes:
        code, output, errors = await client.run("logs", "-n", namespace, "twice", *options, websockets=True)
        assert (code, errors) == (0, b"")
        return output

    await start_restarted_pod(k, namespace, "twice")
    lines = b"".join(b"%d\n" % each for each in range(1, 11))
    for client in (k, cluster):
        async with asyncio.timeout(SECONDS):
            while await log(client, "--tail=1") != b"10\n":
                pass
        assert await log(client, "--previous") == b"before\n"
        assert await log(client, "--since=1h") == lines
        assert await log(client, "--tail=2") == b"9\n10\n"
        assert await log(client, "--tail=0") == b""
        assert await log(client, "--limit-bytes=3") == b"1\n2"
        async with asyncio.timeout(SECONDS):
            while await log(client, "--since=1s"):
                pass
    stamped = await log(k, "--timestamps", "--tail=1")
    assert re.fullmatch(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z 10\n", stamped)
    assert stamped == await log(cluster, "--timestamps", "--tail=1")
