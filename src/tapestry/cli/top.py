"""`tapestry top`: leased, requested and used resources."""

from pathlib import Path

import click

from tapestry.apis.permissions import IDENTITY_NAMESPACE
from tapestry.cli.cluster_access import (
    ALL_NAMESPACES_OPTION,
    BINDING_OPTION,
    FORMATS,
    NAMESPACE_OPTION,
    WORLD_FOLDER,
    QueryOutput,
    open_client,
    physical_access,
    query_command,
)
from tapestry.cli.help_text import command
from tapestry.client.access import Access
from tapestry.client.credentials import Credentials
from tapestry.client.errors import KubeconfigError
from tapestry.client.tls import KeyPair, Pem, ServerVerification, TlsContextSource
from tapestry.inspect.metrics import KubeletAccess, UsageReader
from tapestry.inspect.queries import Queries
from tapestry.inspect.top import Order, loads_table, sorted_loads
from tapestry.inspect.top import usage_report as usage_report
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import uid_of
from tapestry.kube.resources import NAMESPACES

SUBJECTS = ("clusters", "nodes", "pods")
KUBELET_CLIENT = "apiserver-kubelet-client"
"""Name of the certificate in `tapestry.local.control_planes`, repeated here because that module is slow to import."""


@command("tapestry top", "tapestry top nodes --sort-by memory", "tapestry top pods -A -o wide")
@click.argument("what", type=click.Choice(SUBJECTS), default=SUBJECTS[0])
@click.option(
    "--sort-by",
    "order",
    type=click.Choice(["cpu", "memory", "name"]),
    default="cpu",
    show_default=True,
    help="Sort key; cpu and memory sort the largest first.",
)
@BINDING_OPTION
@NAMESPACE_OPTION
@ALL_NAMESPACES_OPTION
@query_command(*FORMATS)
async def top(
    queries: Queries, what: str, order: Order, binding: str | None, namespace: str | None, everywhere: bool
) -> QueryOutput:
    """Show leased, requested and used resources of clusters, virtual nodes or pods.

    Usage is read from the metrics API of either cluster or, in a local world, from its kubelets.  Without any metrics,
    a message is printed and the list is sorted by requests.
    """
    if (namespace or everywhere) and what != "pods":
        raise click.UsageError(f"-n and -A select pods; {what} have no namespace")
    usage = UsageReader(queries.client, queries.connect, await kubelets_by_cluster(cluster_folders(WORLD_FOLDER)))
    found = await usage_report(queries, usage, binding)
    for sentence in found.missing_usage_messages():
        click.echo(sentence, err=True)
    chosen = None if everywhere else namespace or queries.namespace
    loads = found.clusters() if what == "clusters" else found.nodes() if what == "nodes" else found.pods(chosen)
    rows = sorted_loads(loads, order)
    return rows, lambda wide: loads_table(rows, wide=wide)


def cluster_folders(world: Path) -> list[Path]:
    """Return the folders of a world's clusters whose kubelets can be called."""
    return sorted(each.parents[1] for each in world.glob("*/kubelets/ca.crt"))


async def kubelets_by_cluster(clusters: list[Path]) -> dict[str, KubeletAccess]:
    """Return access to the kubelets of reachable clusters, by cluster UID."""
    found = {}
    for folder in clusters:
        try:
            async with open_client(physical_access(folder / "kubeconfig", None)) as client:
                found[uid_of(await client.get(NAMESPACES, IDENTITY_NAMESPACE))] = kubelet_access(folder)
        except (KubeError, KubeconfigError):  # not running, or not yet
            continue
    return found


def kubelet_access(cluster: Path) -> KubeletAccess:
    """Return access with the API server's client certificate."""
    trust = ServerVerification(Pem("kubelets", cluster / "kubelets" / "ca.crt"))
    pems = [Pem("API server", cluster / "pki" / f"{KUBELET_CLIENT}.{part}") for part in ("crt", "key")]
    credentials = Credentials(tls=TlsContextSource(trust, KeyPair(*pems)))
    return lambda url: Access(url, credentials, verification=trust, tls_server_name="localhost")
