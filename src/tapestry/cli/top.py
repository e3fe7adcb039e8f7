"""`tapestry top`: what is leased, requested and used."""

from pathlib import Path

import click

from tapestry.apis.permissions import IDENTITY_NAMESPACE
from tapestry.cli.cluster_access import (
    ALL_NAMESPACES_OPTION,
    BINDING_OPTION,
    NAMESPACE_OPTION,
    WORLD_FOLDER,
    QueryOutput,
    open_client,
    physical_access,
    query_command,
)
from tapestry.cli.help_text import help_epilog
from tapestry.cli.output import FORMATS
from tapestry.client.access import Access
from tapestry.client.credentials import Credentials
from tapestry.client.errors import KubeconfigError
from tapestry.client.tls import KeyPair, Pem, ServerVerification, TlsContextSource
from tapestry.inspect.metrics import KubeletAccess, UsageReader
from tapestry.inspect.queries import Queries
from tapestry.inspect.top import Order, loads_table, sorted_loads
from tapestry.inspect.top import usage_report as whole
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import uid_of
from tapestry.kube.resources import NAMESPACES

SUBJECTS = ("clusters", "nodes", "pods")
KUBELET_CLIENT = "apiserver-kubelet-client"
"""As `tapestry.local.control_planes` names the certificate; to import that takes as long as all the rest."""


@click.command(
    epilog=help_epilog("tapestry top", "tapestry top nodes --sort-by memory", "tapestry top pods -A -o wide")
)
@click.argument("what", type=click.Choice(SUBJECTS), default=SUBJECTS[0])
@click.option(
    "--sort-by",
    "order",
    type=click.Choice(["cpu", "memory", "name"]),
    default="cpu",
    show_default=True,
    help="The largest first.",
)
@BINDING_OPTION
@NAMESPACE_OPTION
@ALL_NAMESPACES_OPTION
@query_command(*FORMATS)
async def top(
    queries: Queries, what: str, order: Order, binding: str | None, namespace: str | None, everywhere: bool
) -> QueryOutput:
    """Show what is leased, what pods request of it, and what they use: of clusters, virtual nodes or pods.

    What is used is what the metrics API of either cluster says or, in a world here, its kubelets.  Where nobody
    measures, there is a sentence that says so, and requests decide the order.
    """
    if (namespace or everywhere) and what != "pods":
        raise click.UsageError(f"-n and -A choose pods; {what} have no namespace")
    gauges = UsageReader(queries.client, queries.connect, await kubelets_by_cluster(cluster_folders(WORLD_FOLDER)))
    found = await whole(queries, gauges, binding)
    for sentence in found.missing_usage_messages():
        click.echo(sentence, err=True)
    chosen = None if everywhere else namespace or queries.namespace
    loads = found.clusters() if what == "clusters" else found.nodes() if what == "nodes" else found.pods(chosen)
    shown = sorted_loads(loads, order)
    return shown, lambda wide: loads_table(shown, wide=wide)


def cluster_folders(world: Path) -> list[Path]:
    """The folders of the clusters of a world whose kubelets can be called."""
    return sorted(each.parents[1] for each in world.glob("*/kubelets/ca.crt"))


async def kubelets_by_cluster(clusters: list[Path]) -> dict[str, KubeletAccess]:
    """How to call the kubelets of those clusters that answer, by the identity of the cluster."""
    found = {}
    for folder in clusters:
        try:
            async with open_client(physical_access(folder / "kubeconfig", None)) as client:
                found[uid_of(await client.get(NAMESPACES, IDENTITY_NAMESPACE))] = kubelet_access(folder)
        except (KubeError, KubeconfigError):  # it is not at work, or not yet
            continue
    return found


def kubelet_access(cluster: Path) -> KubeletAccess:
    """As the API server of the cluster calls them."""
    trust = ServerVerification(Pem("kubelets", cluster / "kubelets" / "ca.crt"))
    ours = [Pem("API server", cluster / "pki" / f"{KUBELET_CLIENT}.{part}") for part in ("crt", "key")]
    credentials = Credentials(tls=TlsContextSource(trust, KeyPair(*ours)))
    return lambda url: Access(url, credentials, verification=trust, tls_server_name="localhost")
