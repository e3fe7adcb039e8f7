"""`tapestry planes kubeconfig|credentials|revoke|rotate-ca|rotate-signing-key`: credentials of planes."""

from typing import Any

import click

from tapestry.cli.cluster_access import print_result, run_async, with_output
from tapestry.cli.help_text import command
from tapestry.cli.management_api import NAME, Connect, call_plane, with_management_api
from tapestry.inspect.tables import table
from tapestry.kube.times import parse_duration

OVERLAP_OPTION = click.option(
    "--overlap",
    default="24h",
    show_default=True,
    help="Time for which the replaced CA or key stays valid, for example 90m. 0s invalidates it at once.",
)


@command(
    "tapestry planes kubeconfig pr-42 > pr-42.kubeconfig",
    "tapestry planes kubeconfig pr-42 --user ada --group developers --ttl 12h",
    "tapestry planes kubeconfig pr-42 --client-certificate --ttl 720h",
)
@NAME
@click.option("--user", default="admin", show_default=True, help="User name in the plane.")
@click.option(
    "--group", "groups", multiple=True, help="Group of the user. Repeatable. [default: system:masters for admin]"
)
@click.option("--ttl", default="1h", show_default=True, help="Lifetime of the credentials, from 1m to 8760h.")
@click.option("--client-certificate", is_flag=True, help="Issue a client certificate instead of a token.")
@click.option("--by-path", is_flag=True, help="Select the plane by URL path, for clients without TLS server names.")
@click.option("--own-port", is_flag=True, help="Select the plane by its own port, for the same clients.")
@with_management_api
def kubeconfig(
    name: str,
    user: str,
    groups: tuple[str, ...],
    ttl: str,
    client_certificate: bool,
    by_path: bool,
    own_port: bool,
    connect: Connect,
) -> None:
    """Print a kubeconfig of the plane NAME with new credentials, which expire.

    The id by which they can be revoked is printed to stderr.
    """
    arguments: dict[str, Any] = {
        "user": user,
        "groups": list(groups) or (["system:masters"] if user == "admin" else []),
        "seconds": seconds(ttl, "--ttl"),
        "clientCertificate": client_certificate,
        "byPath": by_path,
        "ownPort": own_port,
    }

    async def work() -> None:
        async with connect() as client:
            issued = await call_plane(client, "POST", name, "kubeconfig", arguments)
        click.echo(issued["kubeconfig"], nl=False)
        kind = "certificate" if client_certificate else "token"
        click.echo(f"{kind} {issued['id']} of {user} expires at {issued['expires']}", err=True)

    run_async(work())


@command("tapestry planes credentials pr-42", "tapestry planes credentials pr-42 -o json")
@NAME
@with_output("table", "json", "yaml")
@with_management_api
def credentials(name: str, output: str, connect: Connect) -> None:
    """List the valid tokens of the plane NAME, and its revoked client certificates.

    Client certificates are not stored, so valid ones are not listed.
    """

    async def work() -> None:
        async with connect() as client:
            found = await call_plane(client, "GET", name, "credentials")
        print_result(found, output, lambda _: credentials_table(found))

    run_async(work())


def credentials_table(found: dict[str, list[dict[str, Any]]]) -> str:
    rows = [
        ("token", each["id"], each["user"], ",".join(each.get("groups", ())) or "<none>", f"until {each['expires']}")
        for each in found["tokens"]
    ]
    rows += [
        ("certificate", each.get("serial", "<all>"), each.get("user", "<any>"), "", f"revoked at {each['revoked']}")
        for each in found["revokedCertificates"]
    ]
    return table(("KIND", "ID", "USER", "GROUPS", "VALID"), rows)


@command(
    "tapestry planes revoke pr-42 --token 1f0c9a7b3e",
    "tapestry planes revoke pr-42 --serial 5F3B0C52A1",
    "tapestry planes revoke pr-42 --user ada",
)
@NAME
@click.option("--token", help="ID of a token.")
@click.option("--serial", help="Serial number of a client certificate, in hexadecimal.")
@click.option("--user", help="User whose tokens and client certificates until now are revoked.")
@with_management_api
def revoke(name: str, token: str | None, serial: str | None, user: str | None, connect: Connect) -> None:
    """Revoke credentials of the plane NAME at once: a token, a client certificate, or all that a user has.

    New credentials of the user are valid.
    """
    given = {key: value for key, value in (("token", token), ("serial", serial), ("user", user)) if value is not None}
    if len(given) != 1:
        raise click.UsageError("give one of --token, --serial and --user")

    async def work() -> None:
        async with connect() as client:
            await call_plane(client, "POST", name, "revoke", given)
        [(kind, value)] = given.items()
        what = {"token": "token {}", "serial": "certificate {}", "user": "all credentials of {}"}[kind].format(value)
        click.echo(f"{what} in plane {name} {'are' if kind == 'user' else 'is'} revoked")

    run_async(work())


@command("tapestry planes rotate-ca pr-42 --overlap 48h", name="rotate-ca")
@NAME
@OVERLAP_OPTION
@with_management_api
def rotate_ca(name: str, overlap: str, connect: Connect) -> None:
    """Replace the CA of the plane NAME, which may be open, asleep or suspended.

    During the overlap, both CAs are trusted and published, and clients verify the plane with either of them. Give
    clients new kubeconfigs until the overlap ends.
    """
    rotate(connect, name, "rotate-ca", overlap, "the CA of plane {plane} is {new}")


@command("tapestry planes rotate-signing-key pr-42", name="rotate-signing-key")
@NAME
@OVERLAP_OPTION
@with_management_api
def rotate_signing_key(name: str, overlap: str, connect: Connect) -> None:
    """Replace the key that signs the service account tokens of the plane NAME.

    During the overlap, tokens of the old key stay valid.
    """
    rotate(connect, name, "rotate-signing-key", overlap, "tokens of plane {plane} are signed with the key {new}")


def rotate(connect: Connect, name: str, interface: str, overlap: str, message: str) -> None:
    arguments = {"overlapSeconds": seconds(overlap, "--overlap")}

    async def work() -> None:
        async with connect() as client:
            result = await call_plane(client, "POST", name, interface, arguments)
        click.echo(message.format(plane=name, new=result["name"]))

    run_async(work())


def seconds(text: str, option: str) -> int:
    try:
        return int(parse_duration(text, option).total_seconds())
    except ValueError as error:
        raise click.UsageError(str(error)) from error


COMMANDS = (kubeconfig, credentials, revoke, rotate_ca, rotate_signing_key)
