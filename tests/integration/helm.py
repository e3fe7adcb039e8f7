"""Helm on the charts of this repository: releases, and renders as objects by kind, namespace and name."""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import yaml

from tapestry.kube.objects import Object, name_of, namespace_of

ROOT = Path(__file__).parents[2]
IMAGE = "--set=image.repository=registry.example/tapestry,image.tag=v1"
REUSE = "--reset-then-reuse-values"
"""Keep the values of the release, and take the defaults of the new chart for values that it does not know."""
Objects = dict[tuple[str, str, str], Object]
"""Objects by kind, namespace and name."""


def run(helm: Path, *arguments: str, kubeconfig: Path | None = None, check: bool = True) -> str:
    environ = {**os.environ, **({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {})}
    done = subprocess.run([helm, *arguments], capture_output=True, text=True, env=environ, cwd=ROOT, check=False)
    assert (done.returncode == 0) == check, done.stderr
    return done.stdout if check else done.stderr


def rendered(helm: Path, chart: str, *options: str, version: str = "1.34") -> Objects:
    """Return the objects of a release by kind, namespace and name."""
    text = run(
        helm,
        "template",
        "t",
        f"charts/{chart}",
        f"--kube-version={version}",
        "--namespace=tapestry-system",
        *options,
    )
    return by_key(each for each in yaml.safe_load_all(text) if each)


def by_key(objects: Iterable[Object]) -> Objects:
    return {(each["kind"], namespace_of(each) or "", name_of(each)): each for each in objects}
