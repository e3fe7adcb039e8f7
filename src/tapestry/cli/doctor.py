"""`tapestry doctor` and `tapestry repair`: health checks with advice, and deletion of garbage."""

import shutil
from datetime import UTC, datetime

import click
from click.exceptions import Exit

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.cli.cluster_access import (
    FORMATS,
    WORLD_FOLDER,
    name_completer,
    open_client,
    print_result,
    run_async,
    virtual_access,
    with_output,
    with_virtual_cluster,
)
from tapestry.cli.help_text import command
from tapestry.client.http_transport import HttpTransport
from tapestry.inspect import findings
from tapestry.inspect.doctor import Doctor
from tapestry.inspect.findings import Finding
from tapestry.inspect.queries import Queries
from tapestry.inspect.repair import repair as repaired
from tapestry.inspect.snapshots import gather_all
from tapestry.inspect.tables import repairs_table


@command(
    "tapestry doctor", "tapestry doctor -o json", zero="no problem was found", one="a problem was found, with advice"
)
@with_output("table", "json", "yaml")
@with_virtual_cluster
def doctor(output: str, kubeconfig: str | None, context: str | None) -> None:
    """Check API server, kinds, manager, syncers, bindings, tokens, clocks, policies and the local world."""

    async def work() -> None:
        found = await diagnosis(kubeconfig, context)
        print_result(found, output, lambda _: findings.findings_text(found))
        if any(each.level == "wrong" for each in found):
            raise Exit(1)

    run_async(work())


async def diagnosis(kubeconfig: str | None, context: str | None) -> list[Finding]:
    world, clusters = await gather_all(world_findings(), cluster_findings(kubeconfig, context))
    return [*world, *clusters]


async def cluster_findings(kubeconfig: str | None, context: str | None) -> list[Finding]:
    """Check the virtual cluster and the physical clusters that it leases."""
    try:
        access = virtual_access(kubeconfig, context)
    except (ValueError, OSError) as error:
        advice = "give --kubeconfig, set KUBECONFIG, or start a local world with `tapestry up`"
        return [Finding("kubeconfig", "wrong", str(error), advice)]
    found = Finding("kubeconfig", "ok", f"leads to {access.server}")
    async with open_client(access) as client:
        questions = Queries(client, HttpTransport, datetime.now(UTC))
        return [found, *await Doctor(questions, lambda: datetime.now(UTC)).findings()]


async def world_findings() -> list[Finding]:
    """Check the local world; return nothing if its folder does not exist."""
    folder = WORLD_FOLDER.absolute()
    if not folder.exists():
        return []
    from tapestry.local.world import World  # slow to import, and rarely needed

    world = World(folder)
    running = world.running_pid() is not None
    unreachable = await world.unreachable_clusters() if running else []
    free = shutil.disk_usage(folder).free
    return list(findings.local_world_findings(folder, is_running=running, free=free, unreachable=unreachable))


@command(
    "tapestry repair --dry-run",
    "tapestry repair east",
    zero="no problem was found, or all were fixed",
    one="a problem was not fixed, or a cluster could not be read",
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
        if unread or not all(each.fixed for each in found):
            raise Exit(1)

    run_async(work())
