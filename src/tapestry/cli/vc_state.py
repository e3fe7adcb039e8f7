"""`tapestry vc suspend|resume|snapshot|snapshots|restore|wait|watch`: the state of virtual clusters."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tapestry.cli.cluster_access import print_result, with_output
from tapestry.cli.help_text import command
from tapestry.cli.service_access import (
    RESULT_OUTPUT,
    TIMEOUT_OPTION,
    VCLUSTER_NAMESPACE,
    WAIT_OPTION,
    finish_operation,
    phase_of,
    print_items,
    service_completer,
    with_service,
)
from tapestry.kube.objects import Object, value_at
from tapestry.kube.times import parse_duration

if TYPE_CHECKING:
    from tapestry.vclusters.client import ServiceClient

NAME = click.argument("name", shell_complete=service_completer("ListVClusters", "name"))
SNAPSHOT_COLUMNS = {
    "ID": "id",
    "NAME": "name",
    "CLUSTER": "vclusterName",
    "STATE": lambda each: each.get("status", "").removeprefix("SNAPSHOT_STATUS_").capitalize(),
    "BYTES": "sizeBytes",
    "created": "createTime",
    "expires": "expireTime",
    "DESCRIPTION": "description",
}
GONE = "deleted"


async def print_cluster(client: "ServiceClient", namespace: str, name: str, output: str) -> None:
    """Print a virtual cluster after a change."""
    found = (await client.call("GetVCluster", namespace=namespace, name=name))["vcluster"]
    endpoint = value_at(found, "status", "apiServerEndpoint", default="")
    text = f"virtual cluster {namespace}/{name} is {phase_of(found)}{f' at {endpoint}' if endpoint else ''}"
    print_result(found, output, lambda _: text)


@command("tapestry vc suspend blue", "tapestry vc suspend blue --create-snapshot --drain-workloads --drain-timeout 60")
@NAME
@click.option("--drain-workloads", is_flag=True, help="End the pods of the cluster within their grace periods.")
@click.option("--drain-timeout", "drain_timeout_seconds", type=click.IntRange(min=1), help="Seconds for pods to end.")
@click.option("--create-snapshot", is_flag=True, help="Create a snapshot before the cluster is suspended.")
@click.option("--snapshot-name", help="Name of the snapshot.")
@WAIT_OPTION
@TIMEOUT_OPTION
@RESULT_OUTPUT
@VCLUSTER_NAMESPACE
@with_service
async def suspend(
    client: "ServiceClient", name: str, namespace: str, wait: bool, timeout: str, output: str, **given: Any
) -> None:
    """Suspend the virtual cluster NAME: it keeps its objects and runs nothing."""
    answer = await client.call("SuspendVCluster", name=name, namespace=namespace, **given)
    await finish_operation(client, answer, wait=wait, timeout=timeout)
    await print_cluster(client, namespace, name, output)


@command("tapestry vc resume blue")
@NAME
@click.option(
    "--workloads/--no-workloads", "reconcile_workloads", default=None, help="Run the pods again that a suspend drained."
)
@WAIT_OPTION
@TIMEOUT_OPTION
@RESULT_OUTPUT
@VCLUSTER_NAMESPACE
@with_service
async def resume(
    client: "ServiceClient", name: str, namespace: str, wait: bool, timeout: str, output: str, **given: Any
) -> None:
    """Resume the suspended virtual cluster NAME."""
    answer = await client.call("ResumeVCluster", name=name, namespace=namespace, **given)
    await finish_operation(client, answer, wait=wait, timeout=timeout)
    await print_cluster(client, namespace, name, output)


@command("tapestry vc snapshot blue", "tapestry vc snapshot blue --snapshot-name before-upgrade --retention-hours 72")
@NAME
@click.option("--snapshot-name", help="Name of the snapshot.")
@click.option("--description", help="Text about the snapshot.")
@click.option("--retention-hours", type=click.IntRange(min=1), help="Hours after which the snapshot is deleted.")
@click.option(
    "--workloads/--no-workloads", "include_workloads", default=None, help="Include pods, and what creates pods."
)
@WAIT_OPTION
@TIMEOUT_OPTION
@RESULT_OUTPUT
@VCLUSTER_NAMESPACE
@with_service
async def snapshot(
    client: "ServiceClient", name: str, namespace: str, wait: bool, timeout: str, output: str, **given: Any
) -> None:
    """Create a snapshot of the virtual cluster NAME."""
    answer = await client.call("SnapshotVCluster", name=name, namespace=namespace, **given)
    operation = await finish_operation(client, answer, wait=wait, timeout=timeout)
    made = answer["snapshot"]
    if id := operation.get("snapshotId"):
        made = (await client.call("GetSnapshot", id=id))["snapshot"]
    print_items([made], output, SNAPSHOT_COLUMNS, "")


@command("tapestry vc snapshots", "tapestry vc snapshots blue")
@click.argument("name", required=False, shell_complete=service_completer("ListVClusters", "name"))
@RESULT_OUTPUT
@VCLUSTER_NAMESPACE
@with_service
async def snapshots(client: "ServiceClient", name: str | None, namespace: str, output: str) -> None:
    """List the snapshots of the virtual cluster NAME, or of all in the namespace."""
    found = [each async for each in client.items("ListSnapshots", namespace=namespace, vcluster_name=name)]
    print_items(found, output, SNAPSHOT_COLUMNS, "there are no snapshots; `tapestry vc snapshot NAME` creates one")


@command(
    "tapestry vc restore blue --snapshot SNAPSHOT-ID",
    "tapestry vc restore blue --snapshot SNAPSHOT-ID --new-name green",
)
@NAME
@click.option(
    "--snapshot",
    "snapshot_id",
    required=True,
    shell_complete=service_completer("ListSnapshots", "id"),
    help="Id of the snapshot; `tapestry vc snapshots` lists them.",
)
@click.option("--new-name", help="Name of a new virtual cluster with the objects. NAME does not change then.")
@click.option("--new-namespace", help="Namespace of the new virtual cluster. [default: that of NAME]")
@click.option(
    "--workloads/--no-workloads", "restore_workloads", default=None, help="Restore pods, too, and what creates pods."
)
@WAIT_OPTION
@TIMEOUT_OPTION
@RESULT_OUTPUT
@VCLUSTER_NAMESPACE
@with_service
async def restore(
    client: "ServiceClient",
    name: str,
    namespace: str,
    new_name: str | None,
    new_namespace: str | None,
    wait: bool,
    timeout: str,
    output: str,
    **given: Any,
) -> None:
    """Replace the objects of the virtual cluster NAME by those of a snapshot, or create a new cluster with them."""
    if new_namespace and not new_name:
        raise click.UsageError("--new-namespace needs --new-name")
    given |= {"create_new": bool(new_name), "new_name": new_name, "new_namespace": new_namespace}
    answer = await client.call("RestoreVCluster", name=name, namespace=namespace, **given)
    await finish_operation(client, answer, wait=wait, timeout=timeout)
    await print_cluster(client, new_namespace or namespace, new_name or name, output)


@command(
    "tapestry vc wait blue", "tapestry vc wait blue --for suspended --timeout 1m", "tapestry vc wait blue --for deleted"
)
@NAME
@click.option(
    "--for",
    "goal",
    type=click.Choice(["running", "suspended", "error", GONE]),
    default="running",
    show_default=True,
    help="Phase to wait for.",
)
@TIMEOUT_OPTION
@VCLUSTER_NAMESPACE
@with_service
async def wait(client: "ServiceClient", name: str, namespace: str, goal: str, timeout: str) -> None:
    """Wait until the virtual cluster NAME has a phase, or is deleted."""
    last = ""
    try:
        async with asyncio.timeout(parse_duration(timeout, "--timeout").total_seconds()):
            async with aclosing(phases(client, namespace, name)) as found:
                async for last in found:
                    if last.lower() in (goal, "error", GONE):
                        break
    except TimeoutError:
        raise click.ClickException(f"virtual cluster {namespace}/{name} is {last} after {timeout}") from None
    if last.lower() != goal:
        advice = f"; `tapestry vc diagnose {name}` says why" if last == "Error" else ""
        raise click.ClickException(f"virtual cluster {namespace}/{name} is {last}{advice}")
    click.echo(f"virtual cluster {namespace}/{name} is {last}")


async def phases(client: "ServiceClient", namespace: str, name: str) -> AsyncGenerator[str, None]:
    """Yield the phase of a virtual cluster whenever it changes, and at last Deleted."""
    from tapestry.vclusters.errors import Code, ServiceError

    try:
        found = (await client.call("GetVCluster", namespace=namespace, name=name))["vcluster"]
    except ServiceError as error:
        if error.code is not Code.NOT_FOUND:
            raise
        yield GONE.capitalize()
        return
    yield phase_of(found)
    events = client.watch(namespace=namespace, name=name, resource_version=found.get("resourceVersion"))
    async with aclosing(events):
        async for event in events:
            yield GONE.capitalize() if event.get("type") == "WATCH_EVENT_TYPE_DELETED" else phase_of(event["vcluster"])


@command("tapestry vc watch", "tapestry vc watch blue -o json", "tapestry vc watch -l team=web")
@click.argument("name", required=False, shell_complete=service_completer("ListVClusters", "name"))
@click.option("--selector", "-l", help="Selector of labels, for example team=web.")
@with_output("table", "json")
@VCLUSTER_NAMESPACE
@with_service
async def watch(client: "ServiceClient", name: str | None, namespace: str, selector: str | None, output: str) -> None:
    """Print the virtual cluster NAME, or all in the namespace, and each change until Ctrl-C.

    Without a table, each line is one event. The watch continues after the service has restarted.
    """
    events = client.watch(namespace=namespace, name=name, label_selector=selector)
    async with aclosing(events):
        async for event in events:
            click.echo(msgspec.json.encode(event).decode() if output == "json" else event_line(event))


def event_line(event: Object) -> str:
    found = event.get("vcluster", {})
    kind = event.get("type", "").removeprefix("WATCH_EVENT_TYPE_")
    message = value_at(found, "status", "message", default="")
    return f"{kind:<10}{found.get('name', ''):<24}{phase_of(found):<14}{message}".rstrip()


COMMANDS = (suspend, resume, snapshot, snapshots, restore, wait, watch)
