"""`tapestry manager`: process that runs a syncer for every ClusterBinding."""

import os
from pathlib import Path
from typing import Any

from tapestry.cli.help_text import STOPPED, command
from tapestry.cli.process_runner import SWITCH, Flags, run_process, with_options, with_process_flags
from tapestry.manager.app import run_manager
from tapestry.manager.config import BindingsConfig

FLAGS: Flags = {
    "--kubeconfig-namespace": ("kubeconfigNamespaces", "Another namespace to read kubeconfig Secrets from."),
    "--allow-loopback": ("allowLoopback", "Accept kubeconfigs that point to this machine."),
    "--deploy-kubeconfig": (
        "deployKubeconfig",
        "Kubeconfig of the cluster for syncer pods. [default: the virtual cluster]",
    ),
    "--template-dir": ("templateDir", "Folder with templates that replace the built-in ones."),
    "--syncer-image": ("syncer.image", "Container image of the syncers."),
}


@command("tapestry manager --leader-elect=false", "tapestry manager --config manager.yaml", zero=STOPPED)
@with_options(FLAGS, {"kubeconfigNamespaces": {"multiple": True}, "allowLoopback": SWITCH})
@with_process_flags
def manager(**flags: Any) -> None:
    """Run a syncer for every ClusterBinding until stopped."""
    run_process(BindingsConfig, flags, FLAGS, lambda config: run_manager(config, os.environ, Path.home()))
