"""`tapestry doctor`: health checks with advice for the clusters and the local world."""

import shutil
from datetime import UTC, datetime

import click
from click.exceptions import Exit

from tapestry.cli.cluster_access import WORLD_FOLDER, open_client, run_async, virtual_access, with_virtual_cluster
from tapestry.cli.help_text import help_epilog
from tapestry.cli.output import print_result, with_output
from tapestry.client.http_transport import HttpTransport
from tapestry.inspect import findings
from tapestry.inspect.doctor import Doctor
from tapestry.inspect.findings import Finding
from tapestry.inspect.queries import Queries
from tapestry.inspect.snapshots import gather_all


@click.command(
    epilog=help_epilog(
        "tapestry doctor",
        "tapestry doctor -o json",
        zero="no problem was found",
        one="a problem was found, with advice",
    )
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
