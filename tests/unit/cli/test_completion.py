"""Shell completion for bash, zsh, fish and kubectl."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tapestry.apis.clusterbindings import CLUSTER_BINDING, CLUSTER_BINDINGS
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.cli.completion import SHELLS
from tapestry.cli.main import COMMANDS, main
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.crds import crd
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import CRDS, NAMESPACES

BASH = 'source <(tapestry completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tapestry_completion tapestry'
Complete = Callable[..., list[str]]


@pytest.fixture
def in_bash(tmp_path: Path) -> Complete:
    """Return the completions of bash for these words, of which the last is incomplete."""
    known = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "_TAPESTRY"))}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    surroundings = {**known, "PATH": path, "HOME": str(tmp_path)}

    def offered(*words: str) -> list[str]:
        script = f'{BASH}; printf "%s\\n" "${{COMPREPLY[@]}}"'
        command = ["bash", "-c", script, "bash", "tapestry", *words]
        done = subprocess.run(
            command, env=surroundings, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stderr == ""
        return done.stdout.split()

    return offered


def kubeconfig_of(address: str, folder: Path) -> Path:
    file = folder / "kubeconfig"
    file.write_text(
        f"current-context: c\nclusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\nusers: []\n"
        "contexts: [{name: c, context: {cluster: c}}]\n"
    )
    return file


@pytest.fixture
async def kubeconfig(tmp_path: Path) -> AsyncIterator[Path]:
    """Kubeconfig of a server with the bindings east and eastern."""
    config = ApiServerConfig(
        backend="memory",
        secure_address="",
        local_address="127.0.0.1:0",
        authn_allow_localhost=True,
        file_rootpath=str(tmp_path / "data"),
        pod_accounts=False,
    )
    async with run_apiserver(config) as served:
        client = Client(InProcessTransport(served.server, APISERVER_USER))
        await client.create(CRDS, crd(CLUSTER_BINDING))
        await wait_for(client, CRDS, CLUSTER_BINDINGS.name, until=lambda obj: obj is not None and established(obj))
        for name in ("east", "eastern", "west"):
            reference = {"name": name, "namespace": "tapestry-system"}
            await client.create(
                CLUSTER_BINDINGS, {**object_named(name), "spec": {"clusterID": name, "secretRef": reference}}
            )
        await client.create(NAMESPACES, object_named("team-a"))
        yield kubeconfig_of(served.addresses["local"], tmp_path)


def established(definition: Object) -> bool:
    return is_condition_true(definition, "Established")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert f"_TAPESTRY_COMPLETE={shell}_complete" in done.output


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shutil.which(shell)])
def test_every_installed_shell_parses_its_script(shell: str) -> None:
    script = CliRunner().invoke(main, ["completion", shell]).output
    read = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True, timeout=30, check=False)
    assert (read.returncode, read.stderr) == (0, "")


def test_fish_keeps_commas_in_help() -> None:
    script = CliRunner().invoke(main, ["completion", "fish"]).output
    assert 'string split --max 1 "," $completion' in script


def test_bash_completes_commands_and_options(in_bash: Complete) -> None:
    assert in_bash("") == list(COMMANDS)
    assert in_bash("st") == ["status"]
    assert in_bash("explain", "") == ["node", "pod", "policy"]
    assert in_bash("status", "--kube") == ["--kubeconfig"]
    assert in_bash("top", "") == ["clusters", "nodes", "pods"]
    assert in_bash("status", "-o", "") == ["table", "wide", "json", "yaml"]


async def test_bash_completes_names_from_cluster(in_bash: Complete, kubeconfig: Path) -> None:
    async def offered(command: str, *words: str) -> list[str]:
        return await asyncio.to_thread(in_bash, command, "--kubeconfig", str(kubeconfig), *words)

    assert await offered("unjoin", "eas") == ["east", "eastern"]
    assert await offered("tree", "--binding", "w") == ["west"]
    assert await offered("pods", "-n", "team") == ["team-a"]


async def test_bash_completes_kinds_then_names(in_bash: Complete, kubeconfig: Path) -> None:
    async def offered(verb: str, *words: str) -> list[str]:
        return await asyncio.to_thread(in_bash, "k", verb, "--kubeconfig", str(kubeconfig), *words)

    assert await offered("get", "namesp") == ["namespaces"]
    assert await offered("describe", "ns", "team") == ["team-a"]
    assert await offered("delete", "clusterbindings", "east", "w") == ["west"]
    assert await offered("wait", "dances", "") == []


def test_completion_is_empty_without_server(in_bash: Complete, tmp_path: Path) -> None:
    nowhere = kubeconfig_of("127.0.0.1:1", tmp_path)
    assert in_bash("unjoin", "--kubeconfig", str(nowhere), "") == []
    assert in_bash("unjoin", "") == []


def test_completion_gives_up_on_silent_server(in_bash: Complete, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        file = kubeconfig_of(f"127.0.0.1:{listener.getsockname()[1]}", tmp_path)
        started = time.monotonic()
        assert in_bash("unjoin", "--kubeconfig", str(file), "") == []
        assert time.monotonic() - started < 20  # other commands wait half a minute
