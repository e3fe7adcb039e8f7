"""`tapestry host`: clusters in which the pods of planes run."""

from datetime import UTC, datetime
from typing import Any

import click

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.cli.cluster_access import FILE_PATH, open_client, physical_access, print_result, run_async, with_output
from tapestry.cli.help_text import command
from tapestry.cli.join import offer_from_options, print_step
from tapestry.cli.management_api import Connect, completer_of, with_management_api
from tapestry.cli.service_access import assignments, run_with_service
from tapestry.cli.service_hosts import COMMANDS, list_hosts_of_service
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.watch import wait_for
from tapestry.inspect.tables import fitted_table, table
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, is_deleting, name_of, object_named, value_at
from tapestry.kube.times import parse_duration
from tapestry.manager.join_steps import Cluster, JoinError
from tapestry.tenants.host_clusters import REACHABLE, is_tenant_of
from tapestry.tenants.host_registration import AddedHost, HostPlan, add_host, remove_registration, wait_for_host
from tapestry.tenants.leftovers import recorded_leftovers

complete_host = completer_of(HOST_CLUSTERS)
NAME = click.argument("name", shell_complete=complete_host)
TIMEOUT_OPTION = click.option(
    "--timeout", default="60s", show_default=True, help="Time to wait, for example 30s or 5m."
)
COLUMNS = ("NAME", "REACHABLE", "NODES", "OPEN", "TENANTS", "VERSION", "LAST-SEEN", "MESSAGE")
SPEC_OPTIONS = {
    "allow_loopback": "allowLoopback",
    "api_address": "apiAddress",
    "dns_address": "dnsAddress",
    "ingress_class": "ingressClass",
    "ingress_domain": "ingressDomain",
    "ingress_namespace": "ingressNamespace",
    "api_ingress_domain": "apiIngressDomain",
}
"""Fields of the HostCluster by the options of `tapestry host add`."""


@click.group()
def host() -> None:
    """Add, list and remove host clusters, in which the pods of planes run.

    add and remove use the management API of planes; create, get, update and delete a lifecycle service; list either.
    """


for each in COMMANDS:
    host.add_command(each)


@command(
    "tapestry host add east --cluster-kubeconfig east.yaml --api-address 192.0.2.10",
    'tapestry host add east --cluster-kubeconfig east.yaml --window "22:00-06:00" --time-zone Asia/Shanghai',
    "tapestry host add east --cluster-kubeconfig east.yaml --storage-class standard --storage-class fast=ssd",
    "tapestry host add east --cluster-kubeconfig east.yaml --no-policy",
    parent=host,
    name="add",
)
@NAME
@click.option(
    "--cluster-kubeconfig",
    type=FILE_PATH,
    required=True,
    help="Admin kubeconfig of the host cluster. It is not stored.",
)
@click.option("--cluster-context", help="Context of --cluster-kubeconfig. [default: its current context]")
@click.option(
    "--policy/--no-policy",
    default=True,
    show_default=True,
    help="Write a policy that offers the whole host cluster. Without any policy, tenants get no nodes.",
)
@click.option(
    "--owner-policy", is_flag=True, help="Write the policy to the host cluster, where its owner may change it."
)
@click.option(
    "--window",
    multiple=True,
    help='Window in which the policy offers the nodes: "22:00-06:00 Mon,Tue" or always. Repeatable. [default: always]',
)
@click.option("--time-zone", help="Time zone of the windows, for example Asia/Shanghai. [default: UTC]")
@click.option(
    "--force-reclaim/--no-force-reclaim",
    default=None,
    help="Delete pods that still run when a window and its grace period have ended.",
)
@click.option("--grace", type=click.IntRange(min=0), help="Seconds from the end of a window to reclaim. [default: 0]")
@click.option("--api-address", help="Address at which pods of the host cluster reach this machine's planes.")
@click.option("--dns-address", help="Address at which pods reach the DNS resolver. [default: --api-address]")
@click.option("--ingress-class", help="IngressClass of the host cluster for Ingresses of tenants.")
@click.option("--ingress-domain", help="Domain of the host names in Ingresses of tenants.")
@click.option(
    "--ingress-namespace", help="Namespace of the ingress controller, which connects from there to isolated tenants."
)
@click.option(
    "--api-ingress-domain", help="Domain of the host names at which an ingress controller passes TLS to planes."
)
@click.option(
    "--api-ingress-annotation",
    multiple=True,
    callback=assignments,
    metavar="NAME=VALUE",
    help="Annotation by which that controller passes TLS through, for example"
    " nginx.ingress.kubernetes.io/ssl-passthrough=true. Repeatable.",
)
@click.option(
    "--service-account",
    multiple=True,
    help="Name of a ServiceAccount that tenants may give to their pods. Each tenant gets its own one, without rights."
    " Repeatable.",
)
@click.option(
    "--priority-class",
    multiple=True,
    help="PriorityClass of the host cluster for priorities of tenants' pods. Repeatable, from the lowest one on.",
)
@click.option(
    "--storage-class",
    multiple=True,
    metavar="NAME[=HOST-NAME]",
    help="Storage class of the host cluster that tenants may use, under another name if two are given. Repeatable.",
)
@click.option(
    "--allow-loopback/--no-allow-loopback",
    default=None,
    help="Allow a kubeconfig that leads to the machine of the planes.",
)
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Wait until a process of planes has connected to it."
)
@TIMEOUT_OPTION
@with_management_api
def add(name: str, connect: Connect, **options: Any) -> None:
    """Add a cluster as the host cluster NAME, in which pods of planes may run.

    Administrator access to the cluster is needed to create an account with limited rights, which the planes use. Run it
    again at any time to change the options or to renew the token of that account.
    """
    given = [each for each in POLICY_OPTIONS if options[each] not in (None, (), False)]
    if given and not options["policy"]:
        raise click.UsageError(f"--no-policy excludes --{given[0].replace('_', '-')}, which is about the policy")
    run_async(run_add(name, connect, options))


POLICY_OPTIONS = ("owner_policy", "window", "time_zone", "force_reclaim", "grace")


def storage_class_from_option(text: str) -> Object:
    name, _, host_name = text.partition("=")
    if not name:
        raise click.UsageError(f"--storage-class: {text!r} is not NAME or NAME=HOST-NAME")
    return {"name": name, "hostName": host_name}


async def run_add(name: str, connect: Connect, options: dict[str, Any]) -> None:
    spec = {field: options[option] for option, field in SPEC_OPTIONS.items() if options[option] is not None}
    if options["storage_class"]:
        spec["storageClasses"] = [storage_class_from_option(each) for each in options["storage_class"]]
    if options["api_ingress_annotation"]:
        spec["apiIngressAnnotations"] = options["api_ingress_annotation"]
    if options["service_account"]:
        spec["serviceAccounts"] = list(options["service_account"])
    if options["priority_class"]:
        spec["priorityRange"] = {"classes": list(options["priority_class"])}
    plan = HostPlan(
        name,
        spec,
        has_policy=options["policy"],
        offer=offer_from_options({"lease": None, **options}),
        is_owners_policy=options["owner_policy"],
    )
    timeout = parse_duration(options["timeout"], "--timeout").total_seconds()
    access = physical_access(options["cluster_kubeconfig"], options["cluster_context"])
    async with connect() as management, open_client(access) as host_client:
        clusters = AddedHost(
            Cluster("management", management, print_step),
            Cluster("host", host_client, print_step),
            access,
            HttpTransport,
        )
        await add_host(plan, clusters, datetime.now(UTC))
        if options["wait"]:
            await wait_for_host(name, management, timeout)
    click.echo(f"host {name} added; `tapestry tenant create PLANE --host {name}` runs the pods of a plane there")


@command(
    "tapestry host list",
    "tapestry host list -o wide",
    "tapestry host list --server https://vclusters.example.org:8088",
    parent=host,
    name="list",
)
@click.option("--server", help="URL of a lifecycle service to use instead of the management API.")
@with_output("table", "wide", "json", "yaml")
@with_management_api
def list_hosts(server: str | None, output: str, connect: Connect) -> None:
    """List the host clusters with their nodes and tenants."""
    if server:
        run_async(run_with_service(list_hosts_of_service, None, server, {"output": output}))
        return

    async def work() -> None:
        async with connect() as client:
            found = await client.list(HOST_CLUSTERS)
        print_result(found, output, lambda wide: hosts_table(found, wide=wide))

    run_async(work())


def hosts_table(found: list[Object], *, wide: bool) -> str:
    if not found:
        return "there are no host clusters; `tapestry host add NAME` adds one"
    rows = [host_row(each) for each in found]
    if wide:
        return table(COLUMNS, rows)
    return fitted_table(COLUMNS, rows, ("LAST-SEEN", "VERSION"), "MESSAGE")


def host_row(each: Object) -> tuple[object, ...]:
    condition = find_condition(value_at(each, "status", "conditions"), REACHABLE) or {}
    fields = (value_at(each, "status", field) for field in ("nodes", "openNodes", "tenants", "version", "lastSeen"))
    message = "it is being deleted" if is_deleting(each) else condition.get("message", "")
    return name_of(each), condition.get("status", "Unknown"), *fields, message


@command("tapestry host remove east", parent=host)
@NAME
@TIMEOUT_OPTION
@with_management_api
def remove(name: str, timeout: str, connect: Connect) -> None:
    """Remove the host cluster NAME from the management API. It must not have tenants.

    Objects that `tapestry host add` created in the cluster stay there; without the token, nobody uses them.
    """
    run_async(run_remove(name, connect, parse_duration(timeout, "--timeout").total_seconds()))


async def run_remove(name: str, connect: Connect, timeout: float) -> None:
    async with connect() as client:
        found = await client.get(HOST_CLUSTERS, name)
        await check_unused(client, name)
        for each in await recorded_leftovers(client, found):
            click.echo(f"left: {each}; nothing removes it without the host cluster, so delete it there")
        await client.delete(HOST_CLUSTERS, object_named(name))
        await wait_for(client, HOST_CLUSTERS, name, until=lambda found: found is None, timeout=timeout)
        await remove_registration(name, Cluster("management", client, print_step))
    click.echo(f"host {name} removed")


async def check_unused(client: Client, name: str) -> None:
    """Raise JoinError with the names of the tenants of a host cluster, if it has some."""
    tenants = [name_of(each) for each in await client.list(CLUSTER_BINDINGS) if is_tenant_of(each, name)]
    if tenants:
        raise JoinError(
            f"HostCluster {name} has the tenants {', '.join(sorted(tenants))}; delete them first with "
            f"`tapestry tenant delete NAME`"
        )
