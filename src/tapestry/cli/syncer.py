"""`tapestry syncer`: process that serves one ClusterBinding."""

import os
from pathlib import Path
from typing import Any

from tapestry.cli.help_text import command
from tapestry.cli.node_proxy import serve_node_proxy
from tapestry.cli.process_runner import SWITCH, Flags, run_process, with_options, with_process_flags
from tapestry.syncer.app import run_syncer
from tapestry.syncer.config import SyncerConfig

FLAGS: Flags = {
    "--binding": ("binding", "Name of the ClusterBinding to serve."),
    "--time-zone": ("timeZone", "Time zone of windows without one. [default: UTC]"),
    "--kubelet-address": (
        "kubelet.address",
        "IP:PORT to serve the virtual nodes' kubelet API on; empty disables logs, exec, port-forward and metrics.",
    ),
    "--allow-loopback": ("allowLoopback", "Accept a kubeconfig that points to this machine."),
}


@command(
    "tapestry syncer --binding east", "tapestry syncer --config syncer.yaml", zero="stopped, or the binding was deleted"
)
@with_options(FLAGS, {"allowLoopback": SWITCH})
@with_process_flags
def syncer(**flags: Any) -> None:
    """Lease the nodes of one physical cluster until stopped or until the binding is deleted."""
    run_process(
        SyncerConfig, flags, FLAGS, lambda config: run_syncer(config, os.environ, Path.home(), serve_node_proxy)
    )
