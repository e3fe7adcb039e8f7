"""`tapestry status`, `tapestry nodes` and `tapestry policies`: what is lent, in tables."""

from datetime import UTC, datetime

import click

from tapestry.cli.clusters import asking, finished, with_virtual_cluster, with_zone
from tapestry.cli.output import FORMATS, printed, with_output
from tapestry.inspect.tables import bindings_table, nodes_table, policies_table


@click.command()
@with_output(*FORMATS)
@with_virtual_cluster
def status(output: str, kubeconfig: str | None, context: str | None) -> None:
    """Show the clusters that have joined, what they lend, and what is wrong with them."""

    async def show() -> None:
        now = datetime.now(UTC)
        async with asking(kubeconfig, context, now) as questions:
            found = await questions.bindings()
        printed(found, output, lambda wide: bindings_table(found, now, wide=wide))

    finished(show())


@click.command()
@with_output(*FORMATS)
@with_virtual_cluster
def nodes(output: str, kubeconfig: str | None, context: str | None) -> None:
    """Show the virtual nodes: what each lends, what is used of it, and until when."""

    async def show() -> None:
        now = datetime.now(UTC)
        async with asking(kubeconfig, context, now) as questions:
            found = await questions.nodes()
        printed(found, output, lambda wide: nodes_table(found, now, wide=wide))

    finished(show())


@click.command()
@with_output(*FORMATS)
@with_zone
@with_virtual_cluster
def policies(output: str, time_zone: str, kubeconfig: str | None, context: str | None) -> None:
    """Show the policies of both sides; an owner's, where the binding's kubeconfig may be read and works."""

    async def show() -> None:
        now = datetime.now(UTC)
        async with asking(kubeconfig, context, now, time_zone) as questions:
            found, unseen = await questions.policies()
        printed(found, output, lambda wide: policies_table(found, now, wide=wide))
        for sentence in unseen:
            click.echo(sentence, err=True)

    finished(show())
