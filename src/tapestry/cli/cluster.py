"""`tapestry cluster`: a whole cluster in one process."""

import gc
from pathlib import Path

import click
import uvloop

from tapestry.apiserver.storage.log import LogError
from tapestry.local.cluster import ClusterPlan, run_cluster
from tapestry.process import logs


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="The folder of everything that lasts; its name is that of the cluster.",
)
@click.option("--nodes", type=click.IntRange(min=0), default=0, show_default=True, help="Simulated nodes.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, show_default=True, help="Of each simulated node.")
@click.option("--process-node", is_flag=True, help="Have a node that runs Tapestry's own pods as processes.")
@click.option("--run-pods", is_flag=True, help="Let that node run any pod's commands, as you.")
def cluster(data: Path, nodes: int, gpus: int, process_node: bool, run_pods: bool) -> None:
    """Run a cluster until told to stop: API server, controllers, scheduler, simulated nodes.

    Its kubeconfig is in the folder.
    """
    plan = ClusterPlan(data.absolute(), nodes, gpus=gpus, process_node=process_node, run_pods=run_pods)
    logs.configure("info", "json")
    gc.set_threshold(50_000, 20, 50)
    try:
        uvloop.run(run_cluster(plan))
    except (ValueError, OSError, LogError) as error:
        raise click.ClickException(str(error)) from error
