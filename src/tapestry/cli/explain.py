"""`tapestry explain`: why a node or a policy lends what it lends."""

from datetime import UTC, datetime

import click

from tapestry.cli.clusters import asking, finished, with_virtual_cluster, with_zone
from tapestry.cli.output import printed, with_output
from tapestry.inspect.tables import node_text, policy_text

FORMATS = ("text", "json", "yaml")


@click.group()
def explain() -> None:
    """Say why a node or a policy lends what it lends.

    The physical cluster is looked into with the kubeconfig of its binding, where that may be read.
    """


@explain.command()
@click.argument("name")
@with_output(*FORMATS)
@with_zone
@with_virtual_cluster
def node(name: str, output: str, time_zone: str, kubeconfig: str | None, context: str | None) -> None:
    """Explain a node, by the name of the virtual or of the physical one."""

    async def show() -> None:
        now = datetime.now(UTC)
        async with asking(kubeconfig, context, now, time_zone) as questions:
            found = await questions.node(name)
        printed(found, output, lambda _: "\n\n".join(node_text(each, now) for each in found))

    finished(show())


@explain.command()
@click.argument("name")
@with_output(*FORMATS)
@with_zone
@with_virtual_cluster
def policy(name: str, output: str, time_zone: str, kubeconfig: str | None, context: str | None) -> None:
    """Explain a policy, by its name; owner/NAME or operator/NAME where both sides have one."""

    async def show() -> None:
        now = datetime.now(UTC)
        async with asking(kubeconfig, context, now, time_zone) as questions:
            found = await questions.policy(name)
        printed(found, output, lambda _: "\n\n".join(policy_text(each, now) for each in found))

    finished(show())
