"""`tapestry syncer`: the process that works for one ClusterBinding."""

import os
from pathlib import Path
from typing import Any

import click

from tapestry.controller.app import configure_process, run_app
from tapestry.process.config import load
from tapestry.process.tracing import TracingUnavailable
from tapestry.syncer.app import NoBinding, run_syncer
from tapestry.syncer.config import SyncerConfig


@click.command()
@click.option("--binding", help="The ClusterBinding to work for.")
@click.option("--config", "-c", type=click.Path(path_type=Path, dir_okay=False), help="A YAML file.")
@click.option("--kubeconfig", help="The virtual cluster; else KUBECONFIG, ~/.kube/config or the pod's own account.")
@click.option("--context", help="A context of the kubeconfig.")
@click.option("--leader-elect/--no-leader-elect", default=None, help="One of several replicas works. [default: on]")
@click.option("--metrics-bind-address", help="Where to serve /metrics; empty serves none.")
@click.option("--health-probe-bind-address", help="Where to serve /healthz and /readyz; empty serves none.")
@click.option("--time-zone", help="Of windows that name none. [default: UTC]")
@click.option("--log-level", help="debug, info, warning or error.")
@click.option("--audit", help="A file that gets a line for each write.")
def syncer(config: Path | None, **flags: Any) -> None:
    """Lease the nodes of one physical cluster, until told to stop or unbound."""
    given = {
        "binding": flags["binding"],
        "kubeconfig": flags["kubeconfig"],
        "context": flags["context"],
        "leaderElection.enabled": flags["leader_elect"],
        "metrics.address": flags["metrics_bind_address"],
        "probes.address": flags["health_probe_bind_address"],
        "timeZone": flags["time_zone"],
        "log.level": flags["log_level"],
        "audit": flags["audit"],
    }
    try:
        settings = load(SyncerConfig, file=config, environ=os.environ, flags=given)
        if not settings.binding:
            raise click.UsageError("name a ClusterBinding with --binding")
        configure_process(settings)
        run_app(lambda: run_syncer(settings, os.environ, Path.home()))
    except (ValueError, OSError, NoBinding, TracingUnavailable) as error:
        raise click.ClickException(str(error)) from error
