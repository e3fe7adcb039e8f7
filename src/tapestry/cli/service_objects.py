"""`tapestry op|project|quota|key|audit`: operations, projects, quotas, access keys and the audit log of the service."""

from typing import TYPE_CHECKING, Any

import click
import msgspec

from tapestry.cli.cluster_access import print_result, with_output
from tapestry.cli.help_text import command
from tapestry.cli.service_access import (
    RESULT_OUTPUT,
    TIMEOUT_OPTION,
    VCLUSTER_NAMESPACE,
    assignments,
    finish_operation,
    print_items,
    print_object,
    service_completer,
    with_service,
)
from tapestry.kube.objects import Object

if TYPE_CHECKING:
    from tapestry.vclusters.client import ServiceClient

OPERATION = click.argument("id", shell_complete=service_completer("ListOperations", "id"))
PROJECT = click.argument("name", shell_complete=service_completer("ListProjects", "name"))
PROJECT_OPTION = click.option(
    "--project", shell_complete=service_completer("ListProjects", "name"), help="Project of the results."
)
KEY = click.argument("id", shell_complete=service_completer("ListAccessKeys", "id"))
ROLES = ("viewer", "operator", "editor", "admin")


def operation_state(operation: Object) -> str:
    if not operation.get("done"):
        return f"{operation.get('progressPercent', 0)}%"
    return "Failed" if "error" in operation else "Done"


OPERATION_COLUMNS = {
    "ID": "id",
    "VERB": "verb",
    "CLUSTER": "vclusterName",
    "STATE": operation_state,
    "namespace": "namespace",
    "user": "requestedBy",
    "created": "createTime",
    "ended": "endTime",
    "ERROR": "error.message",
}
PROJECT_COLUMNS = {
    "NAME": "name",
    "MEMBERS": lambda each: ",".join(
        f"{member.get('name')}:{member.get('role')}" for member in each.get("members", ())
    ),
    "hosts": lambda each: ",".join(each.get("hostClusters", ())),
    "created": "createTime",
    "DESCRIPTION": "description",
}
QUOTA_COLUMNS = {
    "PROJECT": "project",
    "USED/LIMIT": lambda each: ", ".join(
        f"{name} {each.get('used', {}).get(name, 0)}/{limit}" for name, limit in sorted(each.get("limits", {}).items())
    ),
    "EACH-USER": lambda each: ", ".join(
        f"{name} {limit}" for name, limit in sorted(each.get("userLimits", {}).items())
    ),
    "used without limit": lambda each: ", ".join(
        f"{name} {amount}"
        for name, amount in sorted(each.get("used", {}).items())
        if name not in each.get("limits", {})
    ),
}
KEY_COLUMNS = {
    "ID": "id",
    "PRINCIPAL": "principal",
    "SCOPES": lambda each: (
        "*"
        if each.get("platformAdmin")
        else ",".join(f"{scope.get('project')}:{scope.get('role')}" for scope in each.get("scopes", ()))
    ),
    "EXPIRES": "expireTime",
    "used": "lastUsedTime",
    "DESCRIPTION": "description",
}
AUDIT_COLUMNS = {
    "TIME": "time",
    "STAGE": "stage",
    "PRINCIPAL": "principal",
    "METHOD": "method",
    "RESOURCE": "resource",
    "project": "project",
    "address": "sourceIp",
    "operation": "operationId",
    "REASON": "reason",
}


# -- operations


@click.group()
def op() -> None:
    """Show, wait for and cancel operations of virtual clusters."""


@command("tapestry op list", "tapestry op list -n shop --cluster blue -o wide", parent=op, name="list")
@click.option("--cluster", "vcluster_name", help="Virtual cluster of the operations.")
@click.option("--all-namespaces", "-A", is_flag=True, help="List the operations of all namespaces that you may see.")
@PROJECT_OPTION
@RESULT_OUTPUT
@VCLUSTER_NAMESPACE
@with_service
async def list_operations(
    client: "ServiceClient", namespace: str, all_namespaces: bool, output: str, **given: Any
) -> None:
    """List the operations of virtual clusters, newest first."""
    place = {} if all_namespaces or given["project"] else {"namespace": namespace}
    found = [each async for each in client.items("ListOperations", **place, **given)]
    print_items(found, output, OPERATION_COLUMNS, "there are no operations")


@command("tapestry op get OPERATION-ID -o yaml", parent=op, name="get")
@OPERATION
@RESULT_OUTPUT
@with_service
async def get_operation(client: "ServiceClient", id: str, output: str) -> None:
    """Show the operation ID; -o yaml prints its steps."""
    print_object(await client.call("GetOperation", id=id), output, OPERATION_COLUMNS)


@command("tapestry op wait OPERATION-ID --timeout 1m", parent=op, name="wait")
@OPERATION
@TIMEOUT_OPTION
@with_service
async def wait_for_operation(client: "ServiceClient", id: str, timeout: str) -> None:
    """Show the steps of the operation ID until it has ended. The exit code is 1 if it fails."""
    await finish_operation(client, {"operationId": id}, wait=True, timeout=timeout)
    click.echo(f"operation {id} is done")


@command("tapestry op cancel OPERATION-ID", parent=op, name="cancel")
@OPERATION
@with_service
async def cancel_operation(client: "ServiceClient", id: str) -> None:
    """Cancel the operation ID at its next step, and undo what it did."""
    await client.call("CancelOperation", id=id)
    click.echo(f"operation {id} is being cancelled")


@command("tapestry op delete OPERATION-ID", parent=op, name="delete")
@OPERATION
@with_service
async def delete_operation(client: "ServiceClient", id: str) -> None:
    """Delete the record of the operation ID, which has ended."""
    await client.call("DeleteOperation", id=id)
    click.echo(f"operation {id} deleted")


# -- projects


@click.group()
def project() -> None:
    """Create, change and delete projects, which own namespaces and have members."""


PROJECT_OPTIONS = (
    click.option(
        "--member",
        "members",
        multiple=True,
        metavar="[group:]NAME=ROLE",
        callback=assignments,
        help=f"Member with a role: {', '.join(ROLES)}. An empty role removes the member. Repeatable.",
    ),
    click.option("--display-name", help="Name of the project for people."),
    click.option("--description", help="Text about the project."),
    click.option("--host", "host_clusters", multiple=True, help="Host cluster that the project may use. Repeatable."),
    RESULT_OUTPUT,
)


def with_project_fields(function: Any) -> Any:
    for option in reversed(PROJECT_OPTIONS):
        function = option(function)
    return function


def project_fields(before: Object, members: dict[str, str], **given: Any) -> Object:
    """Return the fields of a project that the options change."""
    fields: Object = {name: value for name, value in given.items() if value}
    if "host_clusters" in fields:
        fields["host_clusters"] = list(fields["host_clusters"])
    if members:
        roles = {
            (each.get("kind", "User"), each.get("name", "")): each.get("role") for each in before.get("members", ())
        }
        for text, role in members.items():
            kind, _, name = text.rpartition(":")
            if role not in (*ROLES, ""):
                raise click.UsageError(f"--member: {role!r} is none of {', '.join(ROLES)}")
            roles["Group" if kind == "group" else "User", name] = role
        fields["members"] = [{"kind": kind, "name": name, "role": role} for (kind, name), role in roles.items() if role]
    return fields


@command("tapestry project create shop --member ada=admin --member group:web=editor", parent=project, name="create")
@PROJECT
@with_project_fields
@with_service
async def create_project(client: "ServiceClient", name: str, output: str, **given: Any) -> None:
    """Create the project NAME, to which namespaces and virtual clusters belong."""
    made = await client.call("CreateProject", project={"name": name, **project_fields({}, **given)})
    print_object(made, output, PROJECT_COLUMNS)


@command("tapestry project list", parent=project, name="list")
@RESULT_OUTPUT
@with_service
async def list_projects(client: "ServiceClient", output: str) -> None:
    """List the projects that you may see."""
    found = [each async for each in client.items("ListProjects")]
    print_items(found, output, PROJECT_COLUMNS, "there are no projects; `tapestry project create NAME` creates one")


@command("tapestry project get shop -o yaml", parent=project, name="get")
@PROJECT
@RESULT_OUTPUT
@with_service
async def get_project(client: "ServiceClient", name: str, output: str) -> None:
    """Show the project NAME with its members."""
    print_object(await client.call("GetProject", name=name), output, PROJECT_COLUMNS)


@command("tapestry project update shop --member ben=viewer --member ada=", parent=project, name="update")
@PROJECT
@with_project_fields
@with_service
async def update_project(client: "ServiceClient", name: str, output: str, **given: Any) -> None:
    """Change the project NAME. Members that no option names stay."""
    before = await client.call("GetProject", name=name)
    fields = project_fields(before, **given)
    if not fields:
        raise click.UsageError("give a field to change, for example --member ada=editor")
    names = {"host_clusters": "hostClusters", "display_name": "displayName"}
    mask = ",".join(names.get(each, each) for each in fields)
    changed = await client.call(
        "UpdateProject", project={"name": name, **fields}, update_mask=mask, etag=before.get("etag")
    )
    print_object(changed, output, PROJECT_COLUMNS)


@command("tapestry project delete shop", parent=project, name="delete")
@PROJECT
@with_service
async def delete_project(client: "ServiceClient", name: str) -> None:
    """Delete the project NAME, which must not have virtual clusters."""
    await client.call("DeleteProject", name=name)
    click.echo(f"project {name} deleted")


# -- quotas


@click.group()
def quota() -> None:
    """Show and set the limits of projects."""


@command("tapestry quota list", parent=quota, name="list")
@RESULT_OUTPUT
@with_service
async def list_quotas(client: "ServiceClient", output: str) -> None:
    """List the quotas of projects with their usage."""
    print_items([each async for each in client.items("ListQuotas")], output, QUOTA_COLUMNS, "there are no quotas")


@command("tapestry quota get shop", parent=quota, name="get")
@PROJECT
@RESULT_OUTPUT
@with_service
async def get_quota(client: "ServiceClient", name: str, output: str) -> None:
    """Show the quota of the project NAME with its usage."""
    print_object(await client.call("GetQuota", project=name), output, QUOTA_COLUMNS)


@command("tapestry quota set shop --limit vclusters=10 --user-limit vclusters=2", parent=quota, name="set")
@PROJECT
@click.option(
    "--limit",
    "limits",
    multiple=True,
    callback=assignments,
    metavar="RESOURCE=AMOUNT",
    help="Limit of the project, for example vclusters=10. An empty amount removes it. Repeatable.",
)
@click.option(
    "--user-limit",
    "user_limits",
    multiple=True,
    callback=assignments,
    metavar="RESOURCE=AMOUNT",
    help="Limit of each owner in the project, for example vclusters=2. An empty amount removes it. Repeatable.",
)
@RESULT_OUTPUT
@with_service
async def set_quota(client: "ServiceClient", name: str, output: str, **limits: dict[str, str]) -> None:
    """Set limits of the project NAME. Limits that no option names stay."""
    given = {field: value for field, value in limits.items() if value}
    if not given:
        raise click.UsageError("give a limit, for example --limit vclusters=10")
    before = await client.call("GetQuota", project=name)
    fields: Object = {"project": name}
    names = {"limits": "limits", "user_limits": "userLimits"}
    for field, value in given.items():
        merged = {**before.get(names[field], {}), **value}
        fields[field] = {resource: amount for resource, amount in merged.items() if amount}
    mask = ",".join(names[each] for each in given)
    changed = await client.call("UpdateQuota", quota=fields, update_mask=mask, etag=before.get("etag"))
    print_object(changed, output, QUOTA_COLUMNS)


# -- access keys


@click.group()
def key() -> None:
    """Create, list and delete access keys of the lifecycle service."""


@command(
    "tapestry key create --principal ci --scope shop=editor --expire-time 2031-05-01T12:00:00Z",
    parent=key,
    name="create",
)
@click.option("--principal", help="User whom the key authenticates. [default: you]")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    callback=assignments,
    metavar="PROJECT=ROLE",
    help=f"Greatest role of the key in a project: {', '.join(ROLES)}. Repeatable. [default: the roles of the user]",
)
@click.option("--platform-admin", is_flag=True, help="Make the key that of a platform admin.")
@click.option("--expire-time", help="Time from which the key is not valid: 2031-05-01T12:00:00Z.")
@click.option("--description", help="Text about the key.")
@with_output("table", "json", "yaml")
@with_service
async def create_key(client: "ServiceClient", scopes: dict[str, str], output: str, **given: Any) -> None:
    """Create an access key and print it. It is stored nowhere, so it cannot be printed again."""
    fields = {name: value for name, value in given.items() if value}
    if scopes:
        fields["scopes"] = [{"project": name, "role": role} for name, role in scopes.items()]
    made = await client.call("CreateAccessKey", access_key=fields)
    print_result(made, output, lambda _: str(made["key"]))


@command("tapestry key list", parent=key, name="list")
@click.option("--principal", help="User of the keys.")
@RESULT_OUTPUT
@with_service
async def list_keys(client: "ServiceClient", output: str, principal: str | None) -> None:
    """List the access keys that you may see. The keys themselves are stored nowhere."""
    found = [each async for each in client.items("ListAccessKeys", principal=principal)]
    print_items(found, output, KEY_COLUMNS, "there are no access keys")


@command("tapestry key get KEY-ID", parent=key, name="get")
@KEY
@RESULT_OUTPUT
@with_service
async def get_key(client: "ServiceClient", id: str, output: str) -> None:
    """Show the access key ID."""
    print_object(await client.call("GetAccessKey", id=id), output, KEY_COLUMNS)


@command("tapestry key delete KEY-ID", parent=key, name="delete")
@KEY
@with_service
async def delete_key(client: "ServiceClient", id: str) -> None:
    """Delete the access key ID, which is not valid any more at once."""
    await client.call("DeleteAccessKey", id=id)
    click.echo(f"access key {id} deleted")


# -- audit log


@click.group()
def audit() -> None:
    """Query, export and verify the audit log of the lifecycle service."""


START_TIME = click.option("--start-time", help="Time of the oldest record: 2031-05-01T00:00:00Z.")
END_TIME = click.option("--end-time", help="Time of the newest record: 2031-05-02T00:00:00Z.")


@command("tapestry audit list --principal ada --limit 20", parent=audit, name="list")
@PROJECT_OPTION
@click.option("--principal", help="User who sent the requests.")
@click.option("--method", help="Name of the RPC, for example DeleteVCluster.")
@START_TIME
@END_TIME
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Maximum number of records.")
@RESULT_OUTPUT
@with_service
async def list_records(client: "ServiceClient", limit: int, output: str, **given: Any) -> None:
    """List audit records, newest first."""
    found: list[Object] = []
    async for each in client.items("ListAuditRecords", **given):
        found.append(each)
        if len(found) == limit:
            break
    print_items(found, output, AUDIT_COLUMNS, "there are no such records")


@command("tapestry audit export --start-time 2031-05-01T00:00:00Z > audit.jsonl", parent=audit, name="export")
@PROJECT_OPTION
@START_TIME
@END_TIME
@with_service
async def export_records(client: "ServiceClient", **given: Any) -> None:
    """Print all audit records as lines of JSON."""
    async for each in client.stream("ExportAuditRecords", **given):
        click.echo(msgspec.json.encode(each).decode())


@command(
    "tapestry audit verify",
    parent=audit,
    name="verify",
    zero="the log is complete",
    one="records are missing or changed, or error with a one-line message",
)
@with_output("table", "json", "yaml")
@with_service
async def verify_records(client: "ServiceClient", output: str) -> None:
    """Check that no audit record is missing or changed."""
    found = await client.call("VerifyAuditRecords")
    gaps = [
        f"{each.get('instance')} from record {each.get('sequence', 0)}: {each.get('message', '')}"
        for each in found.get("gaps", ())
    ]
    text = "\n".join(gaps) or f"{found.get('records', 0)} records are complete"
    print_result(found, output, lambda _: text)
    if gaps or not found.get("isComplete"):
        raise click.exceptions.Exit(1)
