"""`tapestry status`, `tapestry nodes` and `tapestry policies`: tables of leased capacity."""

import click

from tapestry.cli.cluster_access import QueryOutput, query_command
from tapestry.cli.help_text import help_epilog
from tapestry.cli.output import FORMATS
from tapestry.inspect.queries import Queries
from tapestry.inspect.tables import bindings_table, nodes_table, policies_table


@click.command(
    epilog=help_epilog("tapestry status", "tapestry status -o wide", "tapestry status --context compute -o json")
)
@query_command(*FORMATS)
async def status(queries: Queries) -> QueryOutput:
    """Show the joined clusters, their leased capacity and their problems."""
    found = await queries.bindings()
    return found, lambda wide: bindings_table(found, queries.now, wide=wide)


@click.command(epilog=help_epilog("tapestry nodes", "tapestry nodes -o wide"))
@query_command(*FORMATS)
async def nodes(queries: Queries) -> QueryOutput:
    """Show the virtual nodes: capacity, usage and end of the window."""
    found = await queries.nodes()
    return found, lambda wide: nodes_table(found, queries.now, wide=wide)


@click.command(epilog=help_epilog("tapestry policies", "tapestry policies -o wide --time-zone Asia/Shanghai"))
@query_command(*FORMATS, with_time_zone=True)
async def policies(queries: Queries) -> QueryOutput:
    """Show the lease policies of both sides; an owner's only if the binding's kubeconfig is readable and works."""
    found, unread = await queries.policies()
    for sentence in unread:
        click.echo(sentence, err=True)
    return found, lambda wide: policies_table(found, queries.now, wide=wide)
