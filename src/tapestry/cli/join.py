"""`tapestry join` and `tapestry unjoin`: lease from a physical cluster, and end the lease."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import yaml

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.mount_labels import LEVELS
from tapestry.cli.cluster_access import (
    FILE_PATH,
    name_completer,
    open_client,
    physical_access,
    run_async,
    virtual_access,
    with_virtual_cluster,
)
from tapestry.cli.help_text import command
from tapestry.client.http_transport import HttpTransport
from tapestry.manager.join_steps import Cluster, Step
from tapestry.manager.joining import Plan, worker_values
from tapestry.manager.joining import join as join_clusters
from tapestry.manager.offers import Offer, parse_percent, parse_windows
from tapestry.manager.safeguards import Safeguards
from tapestry.manager.unjoining import unjoin as unjoin_cluster


@command(
    "tapestry join east --cluster-kubeconfig east.yaml --lease 50%",
    'tapestry join east --cluster-kubeconfig east.yaml --window "22:00-06:00 Mon,Tue" --time-zone Asia/Shanghai',
    "tapestry join east --print-worker-values > values.yaml",
    "tapestry join east --cluster-kubeconfig east.yaml --prepared",
)
@click.argument("name", shell_complete=name_completer(CLUSTER_BINDINGS))
@click.option(
    "--cluster-kubeconfig",
    type=FILE_PATH,
    help="Admin kubeconfig of the physical cluster. Required unless --print-worker-values is given.",
)
@click.option("--cluster-context", help="Context of --cluster-kubeconfig. [default: its current context]")
@click.option(
    "--print-worker-values",
    is_flag=True,
    help="Print the values for the owner's chart tapestry-worker, and do nothing else.",
)
@click.option(
    "--prepared",
    is_flag=True,
    help="Create nothing in the physical cluster: its owner has installed the chart tapestry-worker.",
)
@click.option("--cluster-id", help="Prefix of the names of the cluster's virtual nodes. [default: NAME]")
@click.option(
    "--mount-namespace",
    default="",
    help="Namespace of the twins in the physical cluster. [default: tapestry-leased, or another if that is taken]",
)
@click.option("--lease", help="Share of each idle resource to lease. [default: 50%]")
@click.option(
    "--window", multiple=True, help='Lease window: "22:00-06:00 Mon,Tue" or always. Repeatable. [default: always]'
)
@click.option("--time-zone", help="Time zone of the windows, for example Asia/Shanghai. [default: that of the syncer]")
@click.option(
    "--force-reclaim/--no-force-reclaim",
    default=None,
    help="Delete pods that still run when a window and its grace period have ended.",
)
@click.option("--grace", type=click.IntRange(min=0), help="Seconds from the end of a window to reclaim. [default: 0]")
@click.option(
    "--namespace", "-n", help="Namespace of the Secret with the kubeconfig. [default: the namespace of the manager]"
)
@click.option("--taint", is_flag=True, help="Taint virtual nodes: pods must tolerate tapestry.io/vnode.")
@click.option(
    "--pod-security",
    type=click.Choice(LEVELS),
    help="Pod Security level that the mount namespace enforces. An existing stricter level is kept. "
    "[default: baseline]",
)
@click.option("--max-cpu", help='CPU that all pods together may request, as in 16; "none" removes the limit.')
@click.option("--max-memory", help='Memory that all pods together may request, as in 64Gi; "none" removes the limit.')
@click.option("--max-pods", help='Number of twins at the same time; "none" removes the limit.')
@click.option(
    "--network-policy",
    type=click.Choice(["isolate", "none"]),
    help="NetworkPolicy for the twins: isolate them, or none. [default: isolate]",
)
@click.option("--ingress-from", multiple=True, help="Namespace whose pods may connect to the twins. Repeatable.")
@click.option(
    "--exec/--no-exec",
    default=None,
    help="Allow exec, attach and port-forward into the twins. [default: allow]",
)
@click.option(
    "--trust-volumes",
    is_flag=True,
    help="Allow volumes even if the cluster has no admission policies that restrict them.",
)
@with_virtual_cluster
def join(name: str, cluster_kubeconfig: Path | None, cluster_context: str | None, **options: Any) -> None:
    """Join a physical cluster under NAME: its idle capacity becomes virtual nodes.

    Run it again at any time to change the offer or to renew the token.
    """
    if options["print_worker_values"]:
        run_async(print_worker_values(name, options))
        return
    if cluster_kubeconfig is None:
        raise click.UsageError("--cluster-kubeconfig is required: the kubeconfig of the physical cluster")
    if options["prepared"] and (given := [each for each in OWNER_OPTIONS if options[each] not in (None, (), False)]):
        flags = ", ".join(f"--{each.replace('_', '-')}" for each in given)
        raise click.UsageError(f"{flags}: the owner sets this in the values of the chart tapestry-worker")
    run_async(run_join(name, cluster_kubeconfig, cluster_context, options))


OWNER_OPTIONS = (
    *("lease", "window", "time_zone", "force_reclaim", "grace", "pod_security", "max_cpu", "max_memory", "max_pods"),
    *("network_policy", "ingress_from", "trust_volumes", "exec"),
)
"""Options about objects in the physical cluster, which a prepared cluster has already."""


async def print_worker_values(name: str, options: dict[str, Any]) -> None:
    async with open_client(virtual_access(options["kubeconfig"], options["context"])) as virtual:
        uid = await Cluster("virtual", virtual, print_step).identity()
    click.echo(yaml.safe_dump(worker_values(name, uid), sort_keys=False), nl=False)


async def run_join(name: str, file: Path, context: str | None, options: dict[str, Any]) -> None:
    plan = Plan(
        name,
        options["cluster_id"] or name,
        options["mount_namespace"],
        options["taint"],
        offer_from_options(options),
        safeguards_from_options(options),
        namespace=options["namespace"] or "",
        is_prepared=options["prepared"],
    )
    access = physical_access(file, context)
    async with (
        open_client(virtual_access(options["kubeconfig"], options["context"])) as virtual,
        open_client(access) as physical,
    ):
        clusters = Cluster("virtual", virtual, print_step), Cluster("physical", physical, print_step)
        await join_clusters(plan, *clusters, access, connect=HttpTransport, now=datetime.now(UTC))
    click.echo(f"{name} has joined; `tapestry status` shows it when its syncer is running")


def offer_from_options(options: dict[str, Any]) -> Offer:
    """Return the offer in the options; unset fields keep the values of an existing offer."""
    return Offer(
        parse_percent(options["lease"]) if options["lease"] else None,
        parse_windows(options["window"]),
        options["time_zone"],
        options["force_reclaim"],
        options["grace"],
    )


def safeguards_from_options(options: dict[str, Any]) -> Safeguards:
    """Return the safeguards in the options; unset fields keep their existing values."""
    policy = options["network_policy"]
    return Safeguards(
        options["pod_security"],
        options["max_cpu"],
        options["max_memory"],
        options["max_pods"],
        None if policy is None else policy == "isolate",
        options["ingress_from"] or None,
        options["trust_volumes"],
        options["exec"],
    )


def print_step(step: Step) -> None:
    note = f": {step.note}" if step.note else ""
    click.echo(f"{step.result:<10} {step.cluster:<10} {step.subject}{note}")


@command("tapestry unjoin east --cluster-kubeconfig east.yaml", "tapestry unjoin east --force --timeout 60")
@click.argument("name", shell_complete=name_completer(CLUSTER_BINDINGS))
@click.option("--force", is_flag=True, help="Unjoin even if the cluster, its syncer or the manager is gone.")
@click.option("--cluster-kubeconfig", type=FILE_PATH, help="Admin kubeconfig to also clean up the physical cluster.")
@click.option("--cluster-context", help="Context of --cluster-kubeconfig. [default: its current context]")
@click.option("--timeout", type=click.FloatRange(min=1), default=300.0, show_default=True, help="Seconds to wait.")
@with_virtual_cluster
def unjoin(name: str, **options: Any) -> None:
    """Unjoin the physical cluster NAME: delete its pods, its virtual nodes, then the binding."""
    run_async(run_unjoin(name, options))


async def run_unjoin(name: str, options: dict[str, Any]) -> None:
    flags = {"force": options["force"], "timeout": options["timeout"]}
    async with open_client(virtual_access(options["kubeconfig"], options["context"])) as virtual:
        virtual_cluster = Cluster("virtual", virtual, print_step)
        if options["cluster_kubeconfig"] is None:
            await unjoin_cluster(name, virtual_cluster, None, **flags)
        else:
            async with open_client(
                physical_access(options["cluster_kubeconfig"], options["cluster_context"])
            ) as physical:
                await unjoin_cluster(name, virtual_cluster, Cluster("physical", physical, print_step), **flags)
    click.echo(f"{name} has left")
