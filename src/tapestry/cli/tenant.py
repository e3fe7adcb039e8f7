"""`tapestry tenant`: planes whose pods run in a host cluster."""

from collections.abc import Callable
from typing import Any

import click

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, is_tenant
from tapestry.apis.planes import PLANES, plane_id
from tapestry.cli.cluster_access import print_result, run_async, with_output
from tapestry.cli.help_text import command
from tapestry.cli.host import TIMEOUT_OPTION, complete_host
from tapestry.cli.management_api import NAME, Connect, with_management_api
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controlplane.app import OPTIONAL_CONTROLLERS, WILDCARD
from tapestry.inspect.tables import fitted_table, resource_text, table
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, name_of, object_named, uid_of, value_at
from tapestry.kube.times import parse_duration
from tapestry.manager.join_steps import JoinError
from tapestry.syncer.drains import DRAINED
from tapestry.tenants.api_service import API_CONDITION
from tapestry.tenants.leftovers import recorded_leftover
from tapestry.tenants.tenant_controller import READY, oldest, plane_of

COLUMNS = ("NAME", "PHASE", "HOST", "WORKLOADS", "NODES", "PODS", "CPU", "MEMORY", "BINDING", "MESSAGE")
SYNC_OPTIONS = {
    "ingresses": "ingresses",
    "network-policies": "networkPolicies",
    "disruption-budgets": "disruptionBudgets",
    "priority-classes": "priorityClasses",
}
"""Switches of `spec.sync` by the values of `--sync`."""
WAIT_OPTION = click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Wait until the tenant is in the requested state."
)


@click.group()
def tenant() -> None:
    """Run the pods of planes in host clusters. A plane with a host cluster is a tenant of it."""


@command(
    "tapestry tenant create pr-42 --host east",
    "tapestry tenant create pr-42 --host east --quota requests.cpu=8 --quota pods=50",
    "tapestry tenant create pr-42 --host east --placement virtual --sync-nodes",
    "tapestry tenant create pr-42 --host east --sync ingresses --sync network-policies",
    parent=tenant,
    name="create",
)
@NAME
@click.option("--host", required=True, shell_complete=complete_host, help="Host cluster of the plane's pods.")
@click.option(
    "--placement",
    type=click.Choice(["host", "virtual"]),
    default="host",
    show_default=True,
    help="Scheduler of the pods: that of the host cluster, or that of the plane on virtual nodes.",
)
@click.option("--sync-nodes", is_flag=True, help="Show all leased nodes in the plane, not only those with its pods.")
@click.option(
    "--sync",
    type=click.Choice(list(SYNC_OPTIONS)),
    multiple=True,
    help="Kind of the plane that is also synced to the host cluster. Repeatable.",
)
@click.option(
    "--isolation",
    type=click.Choice(["full", "lite"]),
    default="full",
    show_default=True,
    help="Isolation of the pods: full has network policies and restricted pods, lite has baseline pods.",
)
@click.option("--quota", multiple=True, help="Limit of the tenant, as NAME=AMOUNT of a ResourceQuota. Repeatable.")
@WAIT_OPTION
@TIMEOUT_OPTION
@with_management_api
def create_tenant(name: str, wait: bool, timeout: str, connect: Connect, **options: Any) -> None:
    """Run the pods of the plane NAME in a host cluster.

    If the plane has the default controllers, it gets those for workloads, services and volumes in addition.
    """
    spec = {
        "hostCluster": options["host"],
        "placement": options["placement"],
        "sync": {"nodes": options["sync_nodes"], **{SYNC_OPTIONS[each]: True for each in options["sync"]}},
        "isolation": {"mode": options["isolation"]},
        "quota": quota_from_options(options["quota"]),
    }
    seconds = parse_duration(timeout, "--timeout").total_seconds()

    async def work() -> None:
        async with connect() as client:
            plane = await client.get(PLANES, name)
            id = plane_id(plane)
            binding = {**object_named(name), "spec": {"clusterID": id, "virtualCluster": id, **spec}}
            await client.create(CLUSTER_BINDINGS, binding)
            click.echo(f"tenant {name} created")
            if value_at(plane, "spec", "controllers") == [WILDCARD]:
                await run_all_controllers(client, plane, seconds)
            if wait:
                await wait_for_condition(client, name, READY, seconds)
                click.echo(f"tenant {name} is ready: pods of the plane run in {options['host']}")
                condition = condition_of(await client.get(CLUSTER_BINDINGS, name), API_CONDITION)
                if condition.get("status") in ("False", "Unknown"):
                    click.echo(f"note: {condition['message']}")

    run_async(work())


async def run_all_controllers(client: Client, plane: Object, timeout: float) -> None:
    """Let a plane run the controllers that only clusters with nodes need, and wait until it does."""
    spec, name = {"controllers": [WILDCARD, *OPTIONAL_CONTROLLERS]}, name_of(plane)
    changed = await client.patch(PLANES, object_named(name), {"spec": spec})
    click.echo(f"plane {name} gets the controllers for workloads, services and volumes")
    generation = changed["metadata"]["generation"]

    def is_observed(each: Object | None) -> bool:
        return each is None or value_at(each, "status", "observedGeneration", default=0) >= generation

    await wait_for(client, PLANES, name, until=is_observed, timeout=timeout)


def quota_from_options(texts: tuple[str, ...]) -> dict[str, str]:
    """Return the limits by their names. Raise UsageError."""
    quota = {}
    for text in texts:
        name, separator, amount = text.partition("=")
        if not (name and separator and amount):
            raise click.UsageError(f"--quota: {text!r} is not NAME=AMOUNT, as requests.cpu=8")
        quota[name] = amount
    return quota


@command("tapestry tenant list", "tapestry tenant list -o wide", parent=tenant, name="list")
@with_output("table", "wide", "json", "yaml")
@with_management_api
def list_tenants(output: str, connect: Connect) -> None:
    """List the tenants with their host clusters and what they use."""

    async def work() -> None:
        async with connect() as client:
            found = [each for each in await client.list(CLUSTER_BINDINGS) if is_tenant(each)]
            planes = {plane_id(each): name_of(each) for each in await client.list(PLANES)}
        print_result(found, output, lambda wide: tenants_table(found, planes, wide=wide))

    run_async(work())


def tenants_table(found: list[Object], planes: dict[str, str], *, wide: bool) -> str:
    if not found:
        return "there are no tenants; `tapestry tenant create PLANE --host NAME` creates one"
    rows = [tenant_row(each, planes.get(plane_of(each), "")) for each in found]
    if wide:
        return table(COLUMNS, rows)
    return fitted_table(COLUMNS, rows, ("BINDING", "MEMORY", "CPU", "NODES", "WORKLOADS"), "MESSAGE")


def tenant_row(binding: Object, plane: str) -> tuple[object, ...]:
    """Return the cells of a tenant; `plane` is the name of its plane, or empty if that does not exist."""
    spec, status = binding["spec"], binding.get("status") or {}
    used = status.get("used") or {}
    ready = find_condition(status.get("conditions"), READY) or {}
    return (
        *(plane or name_of(binding), status.get("phase"), spec["hostCluster"], spec.get("workloads", "Run")),
        *(status.get("nodes"), status.get("pods"), resource_text(used, "cpu"), resource_text(used, "memory")),
        *(name_of(binding), ready.get("message")),
    )


@command("tapestry tenant drain pr-42", "tapestry tenant drain pr-42 --grace 10 --timeout 5m", parent=tenant)
@NAME
@click.option(
    "--grace",
    type=click.IntRange(0, 86400),
    help="Seconds that pods may take to terminate. [default: 60, or the value of the last drain]",
)
@WAIT_OPTION
@TIMEOUT_OPTION
@with_management_api
def drain(name: str, grace: int | None, wait: bool, timeout: str, connect: Connect) -> None:
    """Stop all pods of the plane NAME. They stay Pending in the plane, and run again after `tapestry tenant run`."""
    seconds = {"drainTimeoutSeconds": grace} if grace is not None else {}
    change(connect, name, {"workloads": DRAINED, **seconds}, is_drained=True, timeout=timeout if wait else "")
    click.echo(f"tenant {name} drained" if wait else f"tenant {name} is being drained")


@command("tapestry tenant run pr-42", parent=tenant, name="run")
@NAME
@WAIT_OPTION
@TIMEOUT_OPTION
@with_management_api
def run_workloads(name: str, wait: bool, timeout: str, connect: Connect) -> None:
    """Run the pods of the plane NAME again after a drain."""
    change(connect, name, {"workloads": "Run"}, is_drained=False, timeout=timeout if wait else "")
    click.echo(f"tenant {name} runs its pods")


def change(connect: Connect, name: str, spec: Object, *, is_drained: bool, timeout: str) -> None:
    """Patch the spec of a tenant, and wait for its condition Drained unless `timeout` is empty."""
    seconds = parse_duration(timeout, "--timeout").total_seconds() if timeout else 0

    async def work() -> None:
        async with connect() as client:
            binding = await find_tenant(client, name)
            await client.patch(CLUSTER_BINDINGS, object_named(name_of(binding)), {"spec": spec})
            if not seconds:
                return
            was_drained = find_condition(value_at(binding, "status", "conditions"), DRAINED) is not None
            if is_drained or was_drained:
                await wait_for_condition(client, name_of(binding), DRAINED, seconds, status=str(is_drained))

    run_async(work())


@command("tapestry tenant delete pr-42", "tapestry tenant delete pr-42 --force", parent=tenant, name="delete")
@NAME
@click.option(
    "--force",
    is_flag=True,
    help="Delete the tenant even if its host cluster is unreachable. Its objects are removed when that answers again.",
)
@WAIT_OPTION
@TIMEOUT_OPTION
@with_management_api
def delete_tenant(name: str, force: bool, wait: bool, timeout: str, connect: Connect) -> None:
    """Delete all that the plane NAME has in its host cluster. The plane and its objects stay."""
    seconds = parse_duration(timeout, "--timeout").total_seconds()

    async def work() -> None:
        async with connect() as client:
            binding = await find_tenant(client, name)
            target = object_named(name_of(binding))
            if force:
                patch = {"metadata": {"annotations": {keys.FORCE_UNBIND: "true"}}}
                await client.patch(CLUSTER_BINDINGS, target, patch)
            await client.delete(CLUSTER_BINDINGS, target)
            if wait:
                await wait_for_state(client, name_of(binding), "deleted", lambda found: found is None, seconds)
                if (left := await recorded_leftover(client, uid_of(binding))) is not None:
                    click.echo(f"left: {left}; it is removed when the host cluster answers")
        click.echo(f"tenant {name} deleted" if wait else f"tenant {name} is being deleted")

    run_async(work())


# -- waiting


async def find_tenant(client: Client, name: str) -> Object:
    """Return the binding of a plane by the name of the plane, or of the binding if the plane does not exist.

    Raise JoinError.
    """
    plane = await client.find(PLANES, name)
    tenants = [each for each in await client.list(CLUSTER_BINDINGS) if is_tenant(each)]
    if plane is not None:
        found = oldest(each for each in tenants if plane_of(each) == plane_id(plane))
    else:
        found = next((each for each in tenants if name_of(each) == name), None)
    if found is None:
        reason = "has no host cluster" if plane is not None else "does not exist"
        raise JoinError(f"plane {name} {reason}; `tapestry tenant list` shows the tenants")
    return found


async def wait_for_condition(client: Client, name: str, type: str, timeout: float, status: str = "True") -> None:
    """Wait until a binding has a condition for its newest spec. Raise JoinError with the reason."""

    def is_reached(binding: Object | None) -> bool:
        condition = condition_of(binding, type)
        generation = value_at(binding, "metadata", "generation", default=0)
        return condition.get("status") == status and condition.get("observedGeneration") == generation

    await wait_for_state(client, name, type if status == "True" else f"not {type}", is_reached, timeout, type)


async def wait_for_state(
    client: Client,
    name: str,
    state: str,
    is_reached: Callable[[Object | None], bool],
    timeout: float,
    type: str = READY,
) -> None:
    """Wait for a state of a binding, and print each new message of a condition. Raise JoinError with the last one."""
    last = ""

    def until(binding: Object | None) -> bool:
        nonlocal last
        if is_reached(binding):
            return True
        if binding is None:
            raise JoinError(f"the tenant {name} was deleted meanwhile")
        message = condition_of(binding, type).get("message") or ""
        if message and message != last:
            click.echo(f"waiting: {message}")
        last = message
        return False

    try:
        await wait_for(client, CLUSTER_BINDINGS, name, until=until, timeout=timeout)
    except TimeoutError:
        reason = last or "no process of `tapestry planes run` takes care of it"
        raise JoinError(f"tenant {name} is not {state} after {timeout:g} s: {reason}") from None


def condition_of(binding: Object | None, type: str) -> Object:
    return find_condition(value_at(binding, "status", "conditions"), type) or {}
