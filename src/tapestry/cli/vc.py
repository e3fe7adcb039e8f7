"""`tapestry vc`: virtual clusters of a lifecycle service."""

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from tapestry.cli import vc_connect, vc_diagnose, vc_state
from tapestry.cli.help_text import command
from tapestry.cli.kubeconfig_file import change_file, context_name, user_kubeconfig, without_context
from tapestry.cli.service_access import (
    RESULT_OUTPUT,
    TIMEOUT_OPTION,
    VCLUSTER_NAMESPACE,
    WAIT_OPTION,
    assignments,
    finish_operation,
    phase_of,
    print_items,
    print_object,
    service_completer,
    with_service,
)
from tapestry.cli.vc_connect import connect_context
from tapestry.cli.vc_state import NAME, print_cluster
from tapestry.kube.objects import Object, value_at, with_value

if TYPE_CHECKING:
    from tapestry.vclusters.client import ServiceClient

COLUMNS = {
    "NAMESPACE": "namespace",
    "NAME": "name",
    "PHASE": phase_of,
    "HOST": "hostCluster",
    "project": "project",
    "owner": "owner",
    "created": "createTime",
    "expires": "expireTime",
    "endpoint": "status.apiServerEndpoint",
    "MESSAGE": "status.message",
}
NONE = "there are no virtual clusters; `tapestry vc create NAME` creates one"
REQUEST_FIELDS = {
    "project": "project",
    "engine": "engine",
    "hostCluster": "host_cluster",
    "expireTime": "expire_time",
    "deletionProtection": "deletion_protection",
}
"""Fields of a request that are in the spec of a VCluster in a file."""
DESIRED = ("spec", "labels", "annotations", "project", "hostCluster", "engine", "expireTime", "deletionProtection")
"""Fields of a virtual cluster that a request may change, which `--dry-run` compares."""
PHASES = ("pending", "creating", "running", "suspending", "suspended", "resuming", "scaling", "updating",
          "snapshotting", "restoring", "deleting", "error")  # fmt: skip


@click.group()
def vc() -> None:
    """Create, change, connect to and delete virtual clusters by a lifecycle service."""


FILE_OPTION = click.option(
    "--file",
    "-f",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="File with one VCluster, as `kubectl apply` takes it; - is standard input.",
)
SPEC_OPTIONS = (
    FILE_OPTION,
    click.option(
        "--set",
        "fields",
        multiple=True,
        callback=assignments,
        metavar="FIELD=VALUE",
        help="Field of the spec, for example resources.cpuLimit=2 or kubernetesVersion=1.34. Repeatable.",
    ),
    click.option(
        "--label", "labels", multiple=True, callback=assignments, metavar="NAME=VALUE", help="Label to set. Repeatable."
    ),
    click.option(
        "--annotation",
        "annotations",
        multiple=True,
        callback=assignments,
        metavar="NAME=VALUE",
        help="Annotation to set. Repeatable.",
    ),
    click.option("--expire-time", help="Time at which the service deletes the cluster: 2031-05-01T12:00:00Z."),
    click.option(
        "--deletion-protection/--no-deletion-protection",
        default=None,
        help="Reject deletions until the protection is removed.",
    ),
    click.option("--dry-run", is_flag=True, help="Check the request, and print what it would change."),
)


def with_spec(function: Any) -> Any:
    for option in reversed(SPEC_OPTIONS):
        function = option(function)
    return function


def request_fields(file: Object, fields: dict[str, str], **given: Any) -> Object:
    """Return the fields of a request from a file and options. Options override the file."""
    spec = dict(file.get("spec") or {})
    request = {field: spec.pop(name) for name, field in REQUEST_FIELDS.items() if name in spec}
    for path, text in fields.items():
        spec = with_value(spec, tuple(path.split(".")), field_value(text))
    for name in ("labels", "annotations"):
        merged = {**(value_at(file, "metadata", name) or {}), **given.pop(name)}
        request |= {name: merged} if merged else {}
    request |= {name: value for name, value in given.items() if value is not None}
    return {**request, "spec": spec} if spec else request


def field_value(text: str) -> Any:
    """Return the value in an option: a boolean, list or mapping of YAML, or else the text, also of a number.

    Quantities and versions are strings, and the service accepts numbers as strings.
    """
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return found if isinstance(found, bool | list | dict) else text


@command(
    "tapestry vc create blue",
    "tapestry vc create blue -n shop --set resources.cpuLimit=2 --label team=web --connect",
    "tapestry vc create -f vcluster.yaml --dry-run",
    parent=vc,
    name="create",
)
@click.argument("name", required=False)
@with_spec
@click.option("--project", help="Project of the cluster. [default: that of the namespace]")
@click.option("--host", "host_cluster", help="Host cluster in which the pods run. [default: the placement decides]")
@click.option("--engine", help="Implementation of the cluster. [default: native]")
@click.option("--connect", is_flag=True, help="Make the cluster the current context of the kubeconfig.")
@WAIT_OPTION
@TIMEOUT_OPTION
@RESULT_OUTPUT
@VCLUSTER_NAMESPACE
@with_service
async def create_cluster(
    client: "ServiceClient",
    name: str | None,
    namespace: str,
    dry_run: bool,
    connect: bool,
    wait: bool,
    timeout: str,
    output: str,
    **given: Any,
) -> None:
    """Create the virtual cluster NAME, or the one in a file, and wait until it runs."""
    name = name or value_at(given["file"], "metadata", "name")
    if not name:
        raise click.UsageError("give NAME, or a file with --file")
    if connect and not wait:
        raise click.UsageError("--connect needs --wait")
    request = {"name": name, "namespace": namespace, **request_fields(**given)}
    if dry_run:
        await print_changes(client, "CreateVCluster", {}, request)
        return
    created = await client.call("CreateVCluster", **request)
    await finish_operation(client, created, wait=wait, timeout=timeout)
    await print_cluster(client, namespace, name, output)
    if connect:
        await connect_context(client, namespace, name)


async def print_changes(client: "ServiceClient", method: str, before: Object, request: Object) -> None:
    """Print what a request would change. Raises ServiceError with the fields that must not change."""
    answer = await client.call(method, **request, validate_only=True)
    after = answer.get("vcluster", {})
    name = f"{request['namespace']}/{request['name']}"
    names = f"{name} now", f"{name} after"
    lines = difflib.unified_diff(desired_lines(before), desired_lines(after), *names, lineterm="")
    click.echo("\n".join(lines) or f"nothing would change in {name}")


def desired_lines(vcluster: Object) -> list[str]:
    """Return the fields that a request may change as lines of YAML."""
    found = {each: vcluster[each] for each in DESIRED if each in vcluster}
    return yaml.safe_dump(found, sort_keys=True).splitlines() if found else []


@command(
    "tapestry vc list",
    "tapestry vc list -A -o wide",
    "tapestry vc list -l team=web --phase error",
    parent=vc,
    name="list",
)
@click.option("--all-namespaces", "-A", is_flag=True, help="List the clusters of all namespaces that you may see.")
@click.option("--selector", "-l", help="Selector of labels, for example team=web.")
@click.option("--phase", "phases", multiple=True, type=click.Choice(PHASES), help="Phase of the clusters. Repeatable.")
@click.option("--owner", help="User who created the clusters.")
@click.option("--project", help="Project of the clusters.", shell_complete=service_completer("ListProjects", "name"))
@RESULT_OUTPUT
@VCLUSTER_NAMESPACE
@with_service
async def list_clusters(
    client: "ServiceClient",
    all_namespaces: bool,
    namespace: str,
    selector: str | None,
    phases: tuple[str, ...],
    output: str,
    **given: Any,
) -> None:
    """List virtual clusters with their phases."""
    fields = {**given, "label_selector": selector, "phases": [f"PHASE_{each.upper()}" for each in phases] or None}
    if not all_namespaces:
        fields["namespace"] = namespace
    found = [each async for each in client.items("ListVClusters", **fields)]
    print_items(found, output, COLUMNS, NONE)


@command("tapestry vc get blue", "tapestry vc get blue -o yaml", parent=vc, name="get")
@NAME
@RESULT_OUTPUT
@VCLUSTER_NAMESPACE
@with_service
async def get(client: "ServiceClient", name: str, namespace: str, output: str) -> None:
    """Show the virtual cluster NAME."""
    found = (await client.call("GetVCluster", name=name, namespace=namespace))["vcluster"]
    print_object(found, output, COLUMNS)


@command(
    "tapestry vc update blue --set kubernetesVersion=1.34 --dry-run",
    "tapestry vc update blue --label team=web --no-deletion-protection",
    "tapestry vc update blue -f vcluster.yaml",
    parent=vc,
    name="update",
)
@NAME
@with_spec
@WAIT_OPTION
@TIMEOUT_OPTION
@RESULT_OUTPUT
@VCLUSTER_NAMESPACE
@with_service
async def update(
    client: "ServiceClient",
    name: str,
    namespace: str,
    dry_run: bool,
    wait: bool,
    timeout: str,
    output: str,
    **given: Any,
) -> None:
    """Change fields of the virtual cluster NAME. All other fields, labels and annotations stay."""
    before = (await client.call("GetVCluster", name=name, namespace=namespace))["vcluster"]
    changes = without_immutable(request_fields(**given), before)
    mask = update_mask(changes, given["fields"])
    if not mask:
        raise click.UsageError("give a field to change, for example --set resources.cpuLimit=2")
    request = {"name": name, "namespace": namespace, **changes, "update_mask": ",".join(mask)}
    for field in {"labels", "annotations"} & changes.keys():
        request |= {field: {**before.get(field, {}), **changes[field]}, "etag": before["etag"]}
    if dry_run:
        await print_changes(client, "UpdateVCluster", before, request)
        return
    updated = await client.call("UpdateVCluster", **request)
    await finish_operation(client, updated, wait=wait, timeout=timeout)
    await print_cluster(client, namespace, name, output)


def without_immutable(changes: Object, before: Object) -> Object:
    """Return the changes without fields that a request cannot change. Raises ClickException if they differ."""
    immutable = {"project": "project", "engine": "engine", "host_cluster": "hostCluster"}
    different = [name for field, name in immutable.items() if changes.get(field, before.get(name)) != before.get(name)]
    if different:
        raise click.ClickException(f"immutable: {', '.join(f'spec.{each}' for each in different)} cannot change")
    return {field: value for field, value in changes.items() if field not in immutable}


def update_mask(changes: Object, fields: dict[str, str]) -> list[str]:
    """Return the paths of the fields to change: those of options, and the first level of the spec in a file."""
    names = {"expire_time": "expireTime", "deletion_protection": "deletionProtection"}
    paths = {f"spec.{each}" for each in fields}
    tops = {each.partition(".")[0] for each in fields}
    paths |= {f"spec.{each}" for each in changes.get("spec", {}) if each not in tops}
    return sorted(paths | {names.get(each, each) for each in changes if each != "spec"})


@command("tapestry vc scale blue --cpu-limit 2 --memory-limit 1Gi", parent=vc)
@NAME
@click.option("--cpu-request", help="CPU that counts for the quota of the project, for example 500m.")
@click.option("--cpu-limit", help="CPU limit of the control plane, for example 2.")
@click.option("--memory-request", help="Memory that counts for the quota of the project, for example 512Mi.")
@click.option("--memory-limit", help="Memory limit of the control plane, for example 1Gi.")
@click.option("--replicas", type=click.IntRange(min=1), help="Number of processes that hold the control plane.")
@WAIT_OPTION
@TIMEOUT_OPTION
@RESULT_OUTPUT
@VCLUSTER_NAMESPACE
@with_service
async def scale(
    client: "ServiceClient",
    name: str,
    namespace: str,
    replicas: int | None,
    wait: bool,
    timeout: str,
    output: str,
    **limits: str | None,
) -> None:
    """Change the resources of the virtual cluster NAME."""
    resources = {field: value for field, value in limits.items() if value is not None}
    if not resources and replicas is None:
        raise click.UsageError("give at least one resource, for example --cpu-limit 2")
    fields = {"resources": resources or None, "replicas": replicas}
    scaled = await client.call("ScaleVCluster", name=name, namespace=namespace, **fields)
    await finish_operation(client, scaled, wait=wait, timeout=timeout)
    await print_cluster(client, namespace, name, output)


@command(
    "tapestry vc delete blue", "tapestry vc delete blue --force --delete-snapshots --no-wait", parent=vc, name="delete"
)
@NAME
@click.option("--force", is_flag=True, help="Delete the cluster also if its host cluster does not answer.")
@click.option("--delete-snapshots", is_flag=True, help="Delete the snapshots of the cluster, too.")
@click.option("--grace-period", "grace_period_seconds", type=click.IntRange(min=0), help="Seconds for pods to end.")
@WAIT_OPTION
@TIMEOUT_OPTION
@VCLUSTER_NAMESPACE
@with_service
async def delete_cluster(
    client: "ServiceClient", name: str, namespace: str, wait: bool, timeout: str, **given: Any
) -> None:
    """Delete the virtual cluster NAME with all its objects, and its context in the kubeconfig."""
    deleted = await client.call("DeleteVCluster", name=name, namespace=namespace, **given)
    await finish_operation(client, deleted, wait=wait, timeout=timeout)
    file = user_kubeconfig(os.environ, Path.home())
    if file.exists():
        change_file(file, lambda before: without_context(before, context_name(namespace, name)))
    click.echo(f"virtual cluster {namespace}/{name} {'deleted' if wait else 'is being deleted'}")


for each in (*vc_state.COMMANDS, *vc_diagnose.COMMANDS, *vc_connect.COMMANDS):
    vc.add_command(each)
