"""`tapestry top`: what is leased, requested and used."""

from pathlib import Path

import click

from tapestry.apis.rights import IDENTITY_NAMESPACE
from tapestry.cli.clusters import BINDING, EVERYWHERE, HERE, NAMESPACE, Answer, opened, physical_access, question
from tapestry.cli.manual import manual
from tapestry.cli.output import FORMATS
from tapestry.client.access import Access
from tapestry.client.credentials import Credentials
from tapestry.client.errors import KubeconfigError
from tapestry.client.tls import KeyPair, Pem, Tls, Trust
from tapestry.inspect.metrics import Gauges, KubeletAccess
from tapestry.inspect.questions import Questions
from tapestry.inspect.top import Order, busiest_first, loads_table
from tapestry.inspect.top import top as whole
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import uid_of
from tapestry.kube.resources import NAMESPACES

WHAT = ("clusters", "nodes", "pods")
SERVER_TO_KUBELET = "apiserver-kubelet-client"
"""As `tapestry.local.control_planes` names the certificate; to import that takes as long as all the rest."""


@click.command(epilog=manual("tapestry top", "tapestry top nodes --sort-by memory", "tapestry top pods -A -o wide"))
@click.argument("what", type=click.Choice(WHAT), default=WHAT[0])
@click.option(
    "--sort-by",
    "order",
    type=click.Choice(["cpu", "memory", "name"]),
    default="cpu",
    show_default=True,
    help="The largest first.",
)
@BINDING
@NAMESPACE
@EVERYWHERE
@question(*FORMATS)
async def top(
    questions: Questions, what: str, order: Order, binding: str | None, namespace: str | None, everywhere: bool
) -> Answer:
    """Show what is leased, what pods request of it, and what they use: of clusters, virtual nodes or pods.

    What is used is what the metrics API of either cluster says or, in a world here, its kubelets.  Where nobody
    measures, there is a sentence that says so, and requests decide the order.
    """
    if (namespace or everywhere) and what != "pods":
        raise click.UsageError(f"-n and -A choose pods; {what} have no namespace")
    gauges = Gauges(questions.client, questions.connect, await kubelets_of(clusters_in(HERE)))
    found = await whole(questions, gauges, binding)
    for sentence in found.unmeasured():
        click.echo(sentence, err=True)
    chosen = None if everywhere else namespace or questions.namespace
    loads = found.clusters() if what == "clusters" else found.nodes() if what == "nodes" else found.pods(chosen)
    shown = busiest_first(loads, order)
    return shown, lambda wide: loads_table(shown, wide=wide)


def clusters_in(world: Path) -> list[Path]:
    """The folders of the clusters of a world whose kubelets can be called."""
    return sorted(each.parents[1] for each in world.glob("*/kubelets/ca.crt"))


async def kubelets_of(clusters: list[Path]) -> dict[str, KubeletAccess]:
    """How to call the kubelets of those clusters that answer, by the identity of the cluster."""
    found = {}
    for folder in clusters:
        try:
            async with opened(physical_access(folder / "kubeconfig", None)) as client:
                found[uid_of(await client.get(NAMESPACES, IDENTITY_NAMESPACE))] = door(folder)
        except (KubeError, KubeconfigError):  # it is not at work, or not yet
            continue
    return found


def door(cluster: Path) -> KubeletAccess:
    """As the API server of the cluster calls them."""
    trust = Trust(Pem("kubelets", cluster / "kubelets" / "ca.crt"))
    ours = [Pem("API server", cluster / "pki" / f"{SERVER_TO_KUBELET}.{part}") for part in ("crt", "key")]
    credentials = Credentials(tls=Tls(trust, KeyPair(*ours)))
    return lambda url: Access(url, credentials, trust=trust, tls_server_name="localhost")
