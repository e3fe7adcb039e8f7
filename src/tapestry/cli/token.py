"""`tapestry token`: expiring tokens for users of `tapestry apiserver`."""

from datetime import UTC, datetime
from pathlib import Path

import click

from tapestry.apiserver.access import ephemeral_tokens
from tapestry.apiserver.core.private_files import check_keys_are_local
from tapestry.cli.help_text import command
from tapestry.inspect.tables import table
from tapestry.kube.times import parse_duration, timestamp

FOLDER_OPTION = click.option(
    "--file-rootpath",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("tapestry-data"),
    show_default=True,
    help="Data folder of the API server.",
)


@click.group()
def token() -> None:
    """Create, list and revoke expiring tokens; a running server applies changes at once."""


@command("tapestry token create --user ada --group admins --ttl 12h", parent=token)
@FOLDER_OPTION
@click.option("--user", required=True, help="User name that the token authenticates.")
@click.option("--group", "groups", multiple=True, help="Group of the user. Repeatable.")
@click.option("--ttl", default="1h", show_default=True, help="Lifetime of the token, for example 30m or 12h.")
def create(folder: Path, user: str, groups: tuple[str, ...], ttl: str) -> None:
    """Print a new token.  It cannot be shown again: the server stores only its hash."""
    try:
        check_keys_are_local(folder, "tapestry planes kubeconfig NAME")
        _, text = ephemeral_tokens.create_token(folder, user, groups, parse_duration(ttl, "--ttl"), datetime.now(UTC))
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(text)


@command("tapestry token list", parent=token, name="list")
@FOLDER_OPTION
def show(folder: Path) -> None:
    """List the valid tokens without their secrets."""
    try:
        tokens = ephemeral_tokens.load_tokens(folder / ephemeral_tokens.TOKENS_FILE)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    now = datetime.now(UTC)
    rows = [
        (each.id, each.user, ",".join(each.groups) or "<none>", timestamp(each.expires))
        for each in sorted(tokens.values(), key=lambda token: token.expires)
        if each.expires > now
    ]
    click.echo(table(["ID", "USER", "GROUPS", "EXPIRES"], rows))


@command("tapestry token revoke k3x9", parent=token)
@FOLDER_OPTION
@click.argument("id")
def revoke(folder: Path, id: str) -> None:
    """Revoke the token ID immediately."""
    try:
        check_keys_are_local(folder, "tapestry planes revoke NAME --token ID")
        revoked = ephemeral_tokens.revoke_token(folder, id, datetime.now(UTC))
    except KeyError:
        raise click.ClickException(
            f"{id}: there is no such token; `tapestry token list` shows the existing ones"
        ) from None
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"token {revoked.id} of {revoked.user} is revoked")
