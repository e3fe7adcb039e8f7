"""`tapestry status`, `nodes`, `pods`, `policies` and `tree`: tables of leased capacity and its pods."""

import click

from tapestry.cli.cluster_access import (
    ALL_NAMESPACES_OPTION,
    BINDING_OPTION,
    FORMATS,
    NAMESPACE_OPTION,
    QueryOutput,
    query_command,
)
from tapestry.cli.help_text import command
from tapestry.inspect.queries import Queries
from tapestry.inspect.tables import bindings_table, nodes_table, pods_table, policies_table, tree_text


@command("tapestry status", "tapestry status -o wide", "tapestry status --context compute -o json")
@query_command(*FORMATS)
async def status(queries: Queries) -> QueryOutput:
    """Show the joined clusters, their leased capacity and their problems."""
    found = await queries.bindings()
    return found, lambda wide: bindings_table(found, queries.now, wide=wide)


@command("tapestry nodes", "tapestry nodes -o wide")
@query_command(*FORMATS)
async def nodes(queries: Queries) -> QueryOutput:
    """Show the virtual nodes: capacity, usage and end of the window."""
    found = await queries.nodes()
    return found, lambda wide: nodes_table(found, queries.now, wide=wide)


@command("tapestry policies", "tapestry policies -o wide --time-zone Asia/Shanghai")
@query_command(*FORMATS, with_time_zone=True)
async def policies(queries: Queries) -> QueryOutput:
    """Show the lease policies of both sides; an owner's only if the binding's kubeconfig is readable and works."""
    found, unread = await queries.policies()
    for sentence in unread:
        click.echo(sentence, err=True)
    return found, lambda wide: policies_table(found, queries.now, wide=wide)


@command("tapestry tree", "tapestry tree --binding east -o json")
@BINDING_OPTION
@query_command("text", "json", "yaml")
async def tree(queries: Queries, binding: str | None) -> QueryOutput:
    """Show the virtual cluster as a tree: bindings, their nodes, and pods with their twins."""
    found = await queries.tree(binding)
    return found, lambda _: tree_text(found)


@command("tapestry pods", "tapestry pods -A -o wide", "tapestry pods -n team-a --binding east")
@NAMESPACE_OPTION
@ALL_NAMESPACES_OPTION
@BINDING_OPTION
@query_command(*FORMATS)
async def pods(queries: Queries, namespace: str | None, everywhere: bool, binding: str | None) -> QueryOutput:
    """Show pods on virtual nodes and pods without a node, with their twins and why they wait or ended."""
    chosen = None if everywhere else namespace or queries.namespace
    found = await queries.pods(chosen, binding)
    return found, lambda wide: pods_table(found, queries.now, wide=wide)
