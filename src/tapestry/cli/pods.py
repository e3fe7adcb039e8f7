"""`tapestry pods`: pods on leased nodes, their twins, and pods that wait."""

import click

from tapestry.cli.cluster_access import (
    ALL_NAMESPACES_OPTION,
    BINDING_OPTION,
    NAMESPACE_OPTION,
    QueryOutput,
    query_command,
)
from tapestry.cli.help_text import help_epilog
from tapestry.cli.output import FORMATS
from tapestry.inspect.queries import Queries
from tapestry.inspect.tables import pods_table


@click.command(
    epilog=help_epilog("tapestry pods", "tapestry pods -A -o wide", "tapestry pods -n team-a --binding east")
)
@NAMESPACE_OPTION
@ALL_NAMESPACES_OPTION
@BINDING_OPTION
@query_command(*FORMATS)
async def pods(queries: Queries, namespace: str | None, everywhere: bool, binding: str | None) -> QueryOutput:
    """Show pods on virtual nodes and pods without a node, with their twins and why they wait or ended."""
    chosen = None if everywhere else namespace or queries.namespace
    found = await queries.pods(chosen, binding)
    return found, lambda wide: pods_table(found, queries.now, wide=wide)
