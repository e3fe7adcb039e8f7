"""Run third-party programs against a server and check that they succeed."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., str]


def programs(kube_assets: Path, kubeconfig: Path, folder: Path) -> Run:
    """Return `run`: `run("kubectl", "get", "pods")` returns the output.  Programs store their own files in `folder`."""
    places = {f"HELM_{each}_HOME": str(folder / each.lower()) for each in ("CACHE", "CONFIG", "DATA")}
    environ = {**os.environ, **places, "KUBECONFIG": str(kubeconfig), "HOME": str(folder)}

    def run(program: str, *arguments: str, input: str | None = None) -> str:
        done = subprocess.run(
            [kube_assets / program, *arguments],
            input=input,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
            env=environ,
            cwd=folder,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
