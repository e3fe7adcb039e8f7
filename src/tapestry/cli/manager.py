"""`tapestry manager`: the process that runs a syncer for every ClusterBinding."""

import os
from pathlib import Path
from typing import Any

import click

from tapestry.controller.app import configure_process, run_app
from tapestry.manager.app import run_manager
from tapestry.manager.config import BindingsConfig
from tapestry.process.config import load
from tapestry.process.tracing import TracingUnavailable


@click.command()
@click.option("--config", "-c", type=click.Path(path_type=Path, dir_okay=False), help="A YAML file.")
@click.option("--kubeconfig", help="The virtual cluster; else KUBECONFIG, ~/.kube/config or the pod's own account.")
@click.option("--context", help="A context of the kubeconfig.")
@click.option("--kubeconfig-namespace", multiple=True, help="One more namespace that kubeconfigs are read from.")
@click.option("--deploy-kubeconfig", help="The cluster that syncers run in, where it is another one.")
@click.option("--template-dir", help="A folder with templates of your own.")
@click.option("--syncer-image", help="The image of the syncers.")
@click.option("--leader-elect/--no-leader-elect", default=None, help="One of several replicas works. [default: on]")
@click.option("--metrics-bind-address", help="Where to serve /metrics; empty serves none.")
@click.option("--health-probe-bind-address", help="Where to serve /healthz and /readyz; empty serves none.")
@click.option("--log-level", help="debug, info, warning or error.")
@click.option("--audit", help="A file that gets a line for each write.")
def manager(config: Path | None, **flags: Any) -> None:
    """Run a syncer for every ClusterBinding, until told to stop."""
    given = {
        "kubeconfig": flags["kubeconfig"],
        "context": flags["context"],
        "kubeconfigNamespaces": list(flags["kubeconfig_namespace"]) or None,
        "deployKubeconfig": flags["deploy_kubeconfig"],
        "templateDir": flags["template_dir"],
        "syncer.image": flags["syncer_image"],
        "leaderElection.enabled": flags["leader_elect"],
        "metrics.address": flags["metrics_bind_address"],
        "probes.address": flags["health_probe_bind_address"],
        "log.level": flags["log_level"],
        "audit": flags["audit"],
    }
    try:
        settings = load(BindingsConfig, file=config, environ=os.environ, flags=given)
        configure_process(settings)
        run_app(lambda: run_manager(settings, os.environ, Path.home()))
    except (ValueError, OSError, TracingUnavailable) as error:
        raise click.ClickException(str(error)) from error
