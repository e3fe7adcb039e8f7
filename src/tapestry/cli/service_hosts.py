"""`tapestry host create|get|update|delete`: host clusters by the lifecycle service, without its management API."""

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tapestry.cli.cluster_access import FILE_PATH
from tapestry.cli.help_text import command
from tapestry.cli.service_access import (
    RESULT_OUTPUT,
    assignments,
    print_items,
    print_object,
    service_completer,
    with_service,
)
from tapestry.kube.objects import Object

if TYPE_CHECKING:
    from tapestry.vclusters.client import ServiceClient

HOST = click.argument("name", shell_complete=service_completer("ListHostClusters", "name"))


def host_state(host: Object) -> str:
    found = [each.get("status", "") for each in host.get("conditions", ()) if each.get("type") == "Reachable"]
    return found[0] if found else "Unknown"


COLUMNS = {
    "NAME": "name",
    "REACHABLE": host_state,
    "NODES": "nodes",
    "OPEN": "openNodes",
    "TENANTS": "tenants",
    "labels": lambda each: ",".join(f"{name}={value}" for name, value in each.get("labels", {}).items()),
    "VERSION": "version",
}
HOST_OPTIONS = (
    click.option(
        "--label",
        "labels",
        multiple=True,
        callback=assignments,
        metavar="NAME=VALUE",
        help="Label of the host cluster. Repeatable.",
    ),
    click.option("--ingress-class", help="IngressClass of the host cluster for Ingresses of tenants."),
    click.option("--ingress-domain", help="Domain of the host names in Ingresses of tenants."),
    RESULT_OUTPUT,
)


def with_host_fields(function: Any) -> Any:
    for option in reversed(HOST_OPTIONS):
        function = option(function)
    return function


def encoded_file(file: Path | None) -> str | None:
    return base64.b64encode(file.read_bytes()).decode() if file else None


@command("tapestry host create east --host-kubeconfig tenants.yaml --label region=east", name="create")
@HOST
@click.option(
    "--host-kubeconfig",
    type=FILE_PATH,
    required=True,
    help="Kubeconfig of the account that the planes use in the host cluster. The service stores it.",
)
@with_host_fields
@with_service
async def create_host(client: "ServiceClient", name: str, host_kubeconfig: Path, output: str, **given: Any) -> None:
    """Add a cluster as the host cluster NAME by the lifecycle service, with the kubeconfig of an account in it.

    `tapestry host add` creates such an account, and needs the management API for that.
    """
    fields = {field: value for field, value in given.items() if value}
    made = await client.call(
        "CreateHostCluster", host_cluster={"name": name, **fields}, kubeconfig=encoded_file(host_kubeconfig)
    )
    print_object(made, output, COLUMNS)


async def list_hosts_of_service(client: "ServiceClient", output: str) -> None:
    found = [each async for each in client.items("ListHostClusters")]
    print_items(found, output, COLUMNS, "there are no host clusters; `tapestry host create NAME` adds one")


@command("tapestry host get east -o yaml", name="get")
@HOST
@RESULT_OUTPUT
@with_service
async def get_host(client: "ServiceClient", name: str, output: str) -> None:
    """Show the host cluster NAME by the lifecycle service."""
    print_object(await client.call("GetHostCluster", name=name), output, COLUMNS)


@command("tapestry host update east --label region=east --ingress-domain east.example.org", name="update")
@HOST
@click.option("--host-kubeconfig", type=FILE_PATH, help="Kubeconfig that replaces the stored one.")
@with_host_fields
@with_service
async def update_host(
    client: "ServiceClient", name: str, host_kubeconfig: Path | None, output: str, **given: Any
) -> None:
    """Change the host cluster NAME by the lifecycle service. Labels that no option names stay."""
    fields = {field: value for field, value in given.items() if value}
    if not fields and host_kubeconfig is None:
        raise click.UsageError("give a field to change, for example --label region=east")
    before = await client.call("GetHostCluster", name=name)
    if "labels" in fields:
        fields["labels"] = {**before.get("labels", {}), **fields["labels"]}
    names = {"ingress_class": "ingressClass", "ingress_domain": "ingressDomain"}
    changed = await client.call(
        "UpdateHostCluster",
        host_cluster={"name": name, **fields},
        update_mask=",".join(names.get(each, each) for each in fields) or None,
        kubeconfig=encoded_file(host_kubeconfig),
    )
    print_object(changed, output, COLUMNS)


@command("tapestry host delete east", name="delete")
@HOST
@click.option("--force", is_flag=True, help="Delete the host cluster also if it does not answer.")
@with_service
async def delete_host(client: "ServiceClient", name: str, force: bool) -> None:
    """Delete the host cluster NAME by the lifecycle service. It must not have tenants."""
    await client.call("DeleteHostCluster", name=name, force=force or None)
    click.echo(f"host cluster {name} deleted")


COMMANDS = (create_host, get_host, update_host, delete_host)
