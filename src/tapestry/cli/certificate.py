"""`tapestry certificate`: client certificates for users of `tapestry apiserver`."""

from datetime import UTC, datetime
from pathlib import Path

import click

from tapestry.apiserver.access import revocations
from tapestry.apiserver.access.user_certificates import create_certificate
from tapestry.apiserver.core.private_files import KEYS_FOLDER, check_keys_are_local
from tapestry.cli.help_text import command
from tapestry.cli.token import FOLDER_OPTION
from tapestry.inspect.tables import table
from tapestry.kube.times import parse_duration, timestamp


@click.group()
def certificate() -> None:
    """Create and revoke client certificates; a running server applies changes at once."""


@command("tapestry certificate create --user ada --group admins --ttl 12h > ada.pem", parent=certificate, name="create")
@FOLDER_OPTION
@click.option("--user", required=True, help="User name that the certificate authenticates.")
@click.option("--group", "groups", multiple=True, help="Group of the user. Repeatable.")
@click.option("--ttl", default="1h", show_default=True, help="Lifetime of the certificate, for example 30m or 12h.")
def create_user_certificate(folder: Path, user: str, groups: tuple[str, ...], ttl: str) -> None:
    """Print a new client certificate and its private key as PEM.  The server does not store them."""
    try:
        check_keys_are_local(folder, "tapestry planes kubeconfig NAME --client-certificate")
        issued = create_certificate(folder, user, groups, parse_duration(ttl, "--ttl"), datetime.now(UTC))
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(issued.certificate_pem + issued.key_pem, nl=False)
    click.echo(f"certificate {issued.serial} of {user} expires at {timestamp(issued.expires)}", err=True)


@command("tapestry certificate list", parent=certificate, name="list")
@FOLDER_OPTION
def list_revocations(folder: Path) -> None:
    """List revoked certificates, and the users whose certificates are revoked."""
    try:
        revoked = revocations.load_revocations(folder / KEYS_FOLDER / revocations.REVOCATIONS_FILE)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    rows = [(time, serial, "<any>") for serial, time in revoked.serials.items()]
    rows += [(time, "<all>", user) for user, time in revoked.users.items()]
    lines = [(serial, user, timestamp(time)) for time, serial, user in sorted(rows)]
    click.echo(table(["SERIAL", "USER", "REVOKED"], lines))


@command(
    "tapestry certificate revoke --serial 5F3B0C52A1",
    "tapestry certificate revoke --user ada",
    parent=certificate,
    name="revoke",
)
@FOLDER_OPTION
@click.option("--serial", help="Serial number of one certificate, in hexadecimal.")
@click.option("--user", help="User whose certificates until now are revoked.")
def revoke_user_certificate(folder: Path, serial: str | None, user: str | None) -> None:
    """Revoke one certificate, or all certificates that a user has.  New certificates of the user are valid."""
    if (serial is None) == (user is None):
        raise click.UsageError("give either --serial or --user")
    now = datetime.now(UTC)
    try:
        check_keys_are_local(folder, "tapestry planes revoke NAME")
        if serial is not None:
            revocations.revoke_certificate(folder, serial, now)
        elif user is not None:
            revocations.revoke_user_certificates(folder, user, now)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"certificate {serial} is revoked" if serial else f"all certificates of {user} are revoked")
