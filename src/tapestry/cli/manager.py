"""`tapestry manager`: the process that runs a syncer for every ClusterBinding."""

import os
from pathlib import Path
from typing import Any

import click

from tapestry.cli.help_text import STOPPED, help_epilog
from tapestry.cli.process_runner import run_process, with_process_flags
from tapestry.cli.settings import SWITCH
from tapestry.manager.app import run_manager
from tapestry.manager.config import BindingsConfig


@click.command(
    epilog=help_epilog("tapestry manager --leader-elect=false", "tapestry manager --config manager.yaml", zero=STOPPED)
)
@click.option("--kubeconfig-namespace", multiple=True, help="One more namespace that kubeconfigs are read from.")
@click.option("--allow-loopback", help="Accept kubeconfigs of clusters on this machine.", **SWITCH)
@click.option("--deploy-kubeconfig", help="The cluster that syncers run in, where it is another one.")
@click.option("--template-dir", help="A folder with templates of your own.")
@click.option("--syncer-image", help="The image of the syncers.")
@with_process_flags
def manager(
    kubeconfig_namespace: tuple[str, ...],
    allow_loopback: bool | None,
    deploy_kubeconfig: str | None,
    template_dir: str | None,
    syncer_image: str | None,
    **flags: Any,
) -> None:
    """Run a syncer for every ClusterBinding, until told to stop."""
    own = {
        "kubeconfigNamespaces": list(kubeconfig_namespace) or None,
        "allowLoopback": allow_loopback,
        "deployKubeconfig": deploy_kubeconfig,
        "templateDir": template_dir,
        "syncer.image": syncer_image,
    }
    run_process(BindingsConfig, flags, own, lambda config: run_manager(config, os.environ, Path.home()))
