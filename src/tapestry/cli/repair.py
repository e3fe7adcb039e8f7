"""`tapestry repair`: find and fix inconsistencies between virtual and physical clusters."""

from datetime import UTC, datetime

import click
from click.exceptions import Exit

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.cli.cluster_access import open_client, run_async, virtual_access, with_virtual_cluster
from tapestry.cli.help_text import help_epilog
from tapestry.cli.name_completion import name_completer
from tapestry.cli.output import FORMATS, print_result, with_output
from tapestry.client.http_transport import HttpTransport
from tapestry.inspect.queries import Queries
from tapestry.inspect.repair import repair as repaired
from tapestry.inspect.tables import repairs_table


@click.command(
    epilog=help_epilog(
        "tapestry repair --dry-run",
        "tapestry repair east",
        zero="no problem was found, or all were fixed",
        one="a problem was not fixed, or a cluster could not be read",
    )
)
@click.argument("binding", required=False, shell_complete=name_completer(CLUSTER_BINDINGS))
@click.option("--dry-run", is_flag=True, help="Report problems without deleting anything.")
@with_output(*FORMATS)
@with_virtual_cluster
def repair(binding: str | None, dry_run: bool, output: str, kubeconfig: str | None, context: str | None) -> None:
    """Find inconsistencies between both sides of BINDING, or of all bindings, and delete garbage.

    All objects are read twice from the API servers, some seconds apart.  The syncer fixes the remaining problems.
    """

    async def work() -> None:
        async with open_client(virtual_access(kubeconfig, context)) as client:
            queries = Queries(client, HttpTransport, datetime.now(UTC))
            found, unread = await repaired(queries, binding, dry_run=dry_run)
        for sentence in unread:
            click.echo(sentence, err=True)
        print_result(found, output, lambda wide: repairs_table(found, wide=wide))
        if unread or not all(each.mended for each in found):
            raise Exit(1)

    run_async(work())
