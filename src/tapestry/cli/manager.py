"""`tapestry manager`: process that runs a syncer for every ClusterBinding."""

import os
from pathlib import Path
from typing import Any

import click

from tapestry.cli.help_text import STOPPED, command
from tapestry.cli.process_runner import SWITCH, run_process, with_process_flags
from tapestry.manager.app import run_manager
from tapestry.manager.config import BindingsConfig


@command("tapestry manager --leader-elect=false", "tapestry manager --config manager.yaml", zero=STOPPED)
@click.option("--kubeconfig-namespace", multiple=True, help="Another namespace to read kubeconfig Secrets from.")
@click.option("--allow-loopback", help="Accept kubeconfigs that point to this machine.", **SWITCH)
@click.option("--deploy-kubeconfig", help="Kubeconfig of the cluster for syncer pods. [default: the virtual cluster]")
@click.option("--template-dir", help="Folder with templates that replace the built-in ones.")
@click.option("--syncer-image", help="Container image of the syncers.")
@with_process_flags
def manager(
    kubeconfig_namespace: tuple[str, ...],
    allow_loopback: bool | None,
    deploy_kubeconfig: str | None,
    template_dir: str | None,
    syncer_image: str | None,
    **flags: Any,
) -> None:
    """Run a syncer for every ClusterBinding until stopped."""
    own = {
        "kubeconfigNamespaces": list(kubeconfig_namespace) or None,
        "allowLoopback": allow_loopback,
        "deployKubeconfig": deploy_kubeconfig,
        "templateDir": template_dir,
        "syncer.image": syncer_image,
    }
    run_process(BindingsConfig, flags, own, lambda config: run_manager(config, os.environ, Path.home()))
