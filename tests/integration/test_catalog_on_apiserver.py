"""The README commands of the catalog example, run on a new server with another port."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import smells

EXAMPLE = Path(__file__).parents[2] / "examples" / "catalog"
START, FILL, LOOK = (block.script for block in smells.command_blocks((EXAMPLE / "README.md").read_text()))

Shell = Callable[[str], str]


@pytest.fixture
def shell(kube_assets: Path, tmp_path: Path) -> Iterator[Shell]:
    """Run commands in a copy of the folder while the server from the README runs there."""
    folder = shutil.copytree(EXAMPLE, tmp_path / "catalog")
    path = f"{Path(sys.executable).parent}:{kube_assets}:{os.environ['PATH']}"
    environ = {**os.environ, "HOME": str(tmp_path), "KUBECONFIG": os.devnull, "PATH": path}
    anywhere = ["--bind-address", "127.0.0.1:0", "--local-address", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*shlex.split(START), *anywhere], cwd=folder, env=environ, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        started = next(line for line in map(json.loads, process.stderr) if line["message"] == "API server started")

        def run(script: str) -> str:
            command = ["bash", "-euc", script.replace("127.0.0.1:6080", started["local"])]
            done = subprocess.run(
                command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        yield run
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_readme_commands_print_the_documented_output(shell: Shell) -> None:
    applied = shell(FILL)
    assert applied.count(" created") == 4 + 1 + 2 + 1 + 1 + 2
    assert shell(FILL).count(" unchanged") == applied.count(" created")

    users, binmetas, plain = (shell(line) for line in LOOK.splitlines())
    head, *rows = (line.split() for line in users.splitlines())
    assert head == ["NAME", "EMAIL", "TEAM", "ROLE", "PHASE", "AGE"]
    assert [row[:3] for row in rows] == [["admin", "admin@example.com", "admin"], ["ann", "ann@example.com", "storage"]]
    assert "redis-migrator   databases   1.4.0     linux/amd64" in binmetas
    (ann,) = json.loads(plain)["items"]
    assert ann["spec"] == {
        "displayName": "Ann",
        "email": "ann@example.com",
        "role": "member",
        "team": "storage",
    }


def test_objects_that_violate_the_schema_are_refused(shell: Shell) -> None:
    shell("kubectl -s http://127.0.0.1:6080 apply -f crds")
    user = {"apiVersion": "catalog.example.com/v1", "kind": "User", "metadata": {"name": "eve"}}
    wrong = json.dumps({**user, "spec": {"email": "eve@example.com", "role": "queen"}})
    apply = "kubectl -s http://127.0.0.1:6080 apply --validate=false -f - 2>&1"
    output = shell(f"{apply} <<< {shlex.quote(wrong)} || true")
    assert 'spec.role: Unsupported value: "queen"' in output
    assert 'supported values: "admin", "member", "guest"' in output
