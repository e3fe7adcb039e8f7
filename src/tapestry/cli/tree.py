"""`tapestry tree`: bindings, nodes, pods and twins as a tree."""

import click

from tapestry.cli.cluster_access import BINDING_OPTION, QueryOutput, query_command
from tapestry.cli.help_text import help_epilog
from tapestry.inspect.queries import Queries
from tapestry.inspect.tables import tree_text


@click.command(epilog=help_epilog("tapestry tree", "tapestry tree --binding east -o json"))
@BINDING_OPTION
@query_command("text", "json", "yaml")
async def tree(queries: Queries, binding: str | None) -> QueryOutput:
    """Show the virtual cluster as a tree: bindings, their nodes, and pods with their twins."""
    found = await queries.tree(binding)
    return found, lambda _: tree_text(found)
