"""`tapestry cluster`: a complete cluster in one process."""

import errno
import gc
from pathlib import Path

import click
import uvloop

from tapestry.apiserver.core.store import StorageError
from tapestry.cli.help_text import STOPPED, command
from tapestry.cli.mounted_apiext import installed_apiext_handlers
from tapestry.cli.process_runner import single_exception
from tapestry.controller.app import GC_THRESHOLDS
from tapestry.local.cluster import MAX_NODES, ClusterPlan, run_cluster
from tapestry.local.kubernetes import AssetsMissing, ControlPlaneFailed
from tapestry.process import logs
from tapestry.process.system import return_large_blocks_to_system

EXPECTED_ERRORS = (ValueError, OSError, StorageError, AssetsMissing, ControlPlaneFailed)


@command("tapestry cluster --data ./east --nodes 10", "tapestry cluster --data ./gpu --nodes 4 --gpus 8", zero=STOPPED)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Data folder of the cluster; its name is the name of the cluster.",
)
@click.option(
    "--nodes",
    type=click.IntRange(min=0, max=MAX_NODES),
    default=0,
    show_default=True,
    help="Number of simulated nodes.",
)
@click.option("--gpus", type=click.IntRange(min=0), default=0, show_default=True, help="GPUs of each simulated node.")
@click.option("--process-node", is_flag=True, help="Add a node that runs Tapestry's own pods as processes.")
@click.option("--run-pods", is_flag=True, help="Add a node that runs the commands of all pods as processes of yours.")
@click.option("--real-kubernetes", is_flag=True, help="Use kube-apiserver, etcd and Kubernetes' own controllers.")
def cluster(data: Path, nodes: int, gpus: int, process_node: bool, run_pods: bool, real_kubernetes: bool) -> None:
    """Run a cluster until stopped: API server, controllers, scheduler and simulated nodes.

    Its kubeconfig is written to the data folder.
    """
    plan = ClusterPlan(
        data.absolute(),
        nodes,
        gpus=gpus,
        process_node=process_node or run_pods,
        run_pods=run_pods,
        real_kubernetes=real_kubernetes,
    )
    logs.configure("info")
    gc.set_threshold(*GC_THRESHOLDS)
    return_large_blocks_to_system()
    try:
        uvloop.run(run_cluster(plan, installed_apiext_handlers()))
    except (*EXPECTED_ERRORS, ExceptionGroup) as error:
        raise click.ClickException(cluster_error_message(error, plan.folder)) from error


def cluster_error_message(error: Exception, folder: Path) -> str:
    """Return a one-line message with advice; raise `error` again if it is unexpected."""
    found = single_exception(error)
    if not isinstance(found, EXPECTED_ERRORS):
        raise error
    if isinstance(found, OSError) and found.errno == errno.EADDRINUSE:
        return f"{found.strerror}; stop the process that uses it, or delete {folder / 'cluster.json'} for another port"
    return str(found)
