"""`tapestry repair`: what is not as it should be between both sides."""

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
        zero="nothing is wrong, or all of it was mended",
        one="something is wrong and not mended, or a cluster could not be looked into",
    )
)
@click.argument("binding", required=False, shell_complete=name_completer(CLUSTER_BINDINGS))
@click.option("--dry-run", is_flag=True, help="Only tell.")
@with_output(*FORMATS)
@with_virtual_cluster
def repair(binding: str | None, dry_run: bool, output: str, kubeconfig: str | None, context: str | None) -> None:
    """Check that both sides of a BINDING, or of all, are as they should be, and remove what is garbage.

    Everything is read live and looked at twice, some seconds apart.  What is left is for the syncer to mend.
    """

    async def work() -> None:
        async with open_client(virtual_access(kubeconfig, context)) as client:
            questions = Queries(client, HttpTransport, datetime.now(UTC))
            found, unseen = await repaired(questions, binding, dry_run=dry_run)
        for sentence in unseen:
            click.echo(sentence, err=True)
        print_result(found, output, lambda wide: repairs_table(found, wide=wide))
        if unseen or not all(each.mended for each in found):
            raise Exit(1)

    run_async(work())
