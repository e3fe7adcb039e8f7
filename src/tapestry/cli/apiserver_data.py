"""`tapestry apiserver backup|restore|check|export|rotate-ca|rotate-signing-key|envtest-assets`: commands on files."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from tapestry.apiserver.access.rotation import rotate_ca, rotate_signing_key
from tapestry.apiserver.core.private_files import check_keys_are_local
from tapestry.apiserver.core.store import StorageError
from tapestry.apiserver.storage import archive
from tapestry.apiserver.storage.log import Entry
from tapestry.cli.help_text import command
from tapestry.kube.objects import Object
from tapestry.kube.times import parse_duration, timestamp
from tapestry.local.envtest import write_assets
from tapestry.local.kubernetes import assets_folder

FOLDER_OPTION = click.option(
    "--file-rootpath",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default="tapestry-data",
    show_default=True,
    help="Data folder of the API server.",
)
OVERLAP_OPTION = click.option(
    "--overlap",
    default="24h",
    show_default=True,
    help="Time for which the replaced CA or key stays valid, for example 90m. 0s invalidates it at once.",
)
SERVER_METADATA = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink")
"""Metadata fields that the server sets."""


@contextmanager
def report_file_errors() -> Iterator[None]:
    try:
        yield
    except (StorageError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error


@command("tapestry apiserver backup --file-rootpath ./data backup.tar")
@FOLDER_OPTION
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def backup(folder: Path, file: Path) -> None:
    """Write a consistent snapshot of all data into FILE; the server may be running.

    FILE also contains the server's private keys: keep it safe.  Back up data in etcd with etcd's own tools.
    """
    with report_file_errors():
        revision = archive.back_up(folder, file.absolute())
    click.echo(f"{file}: everything up to revision {revision}")


@command("tapestry apiserver restore --file-rootpath ./data backup.tar")
@FOLDER_OPTION
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
def restore(folder: Path, file: Path) -> None:
    """Replace all data with the contents of FILE; the server must not be running.

    The previous data folder is kept under another name.  Revisions continue far beyond those in FILE, so that clients
    with newer ones notice.
    """
    with report_file_errors():
        revision = archive.restore(file, folder)
    click.echo(f"{folder}: restored; continues at revision {revision}")


@command(
    "tapestry apiserver check --file-rootpath ./data",
    "tapestry apiserver check --repair",
    zero="all objects are intact",
    one="some objects are damaged, or the check failed",
)
@FOLDER_OPTION
@click.option("--repair", is_flag=True, help="Remove unreadable objects; the server must not be running.")
def check(folder: Path, repair: bool) -> None:
    """Check that all stored objects are intact."""
    with report_file_errors():
        if repair:
            for key in archive.repair(folder):
                click.echo(f"removed {key.resource} {key.namespace}/{key.name}")
        found = archive.check_folder(folder)
    for each in found:
        click.echo(str(each))
    if found:
        raise click.exceptions.Exit(1)
    click.echo(f"{folder}: all objects are intact")


@command("tapestry apiserver export pods deployments.apps", "tapestry apiserver export --full -o ./everything")
@FOLDER_OPTION
@click.option("--output", "-o", type=click.Path(path_type=Path, file_okay=False), help="Output folder for YAML files.")
@click.option("--full", is_flag=True, help="Include status and the fields that the server sets.")
@click.argument("resources", nargs=-1)
def export(folder: Path, output: Path | None, full: bool, resources: tuple[str, ...]) -> None:
    """Print objects as YAML that can be applied elsewhere: those of RESOURCES (`pods`, `deployments.apps`), or all."""
    exported: Callable[[Object], Object] = (lambda obj: obj) if full else without_server_fields
    with report_file_errors():
        for entry in archive.read_entries(folder, resources):
            text = yaml.dump(exported(msgspec.json.decode(entry.raw or b"")), Dumper=yaml.CSafeDumper, sort_keys=False)
            if output is None:
                click.echo(f"---\n{text}", nl=False)
            else:
                write_object(output, entry, text)


def write_object(folder: Path, entry: Entry, text: str) -> None:
    resource, namespace, name = entry.key
    path = folder / resource / namespace / f"{name.replace('/', '%2F')}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)  # the object may be a Secret
    path.write_text(text)


def without_server_fields(obj: Object) -> Object:
    metadata: dict[str, Any] = {key: value for key, value in obj["metadata"].items() if key not in SERVER_METADATA}
    return {key: value for key, value in {**obj, "metadata": metadata}.items() if key != "status"}


@command("tapestry apiserver rotate-ca --file-rootpath ./data --overlap 48h", name="rotate-ca")
@FOLDER_OPTION
@OVERLAP_OPTION
def rotate_ca_command(folder: Path, overlap: str) -> None:
    """Replace the CA; the server may be running.

    During the overlap, both CAs are trusted and published, and the server keeps its certificate of the old CA.  Give
    clients the new content of pki/ca.crt until the overlap ends.
    """
    now = datetime.now(UTC)
    with report_file_errors():
        check_keys_are_local(folder, "tapestry planes rotate-ca NAME")
        certificate = rotate_ca(folder, period := parse_duration(overlap, "--overlap"), now)
    click.echo(f"{folder}: the CA is {certificate.subject.rfc4514_string()}")
    click.echo(f"earlier CAs are trusted until {timestamp(now + period)}" if period else "earlier CAs are not trusted")


@command("tapestry apiserver rotate-signing-key --file-rootpath ./data", name="rotate-signing-key")
@FOLDER_OPTION
@OVERLAP_OPTION
def rotate_signing_key_command(folder: Path, overlap: str) -> None:
    """Replace the key that signs service account tokens; the server may be running.

    During the overlap, tokens of the old key stay valid.
    """
    now = datetime.now(UTC)
    with report_file_errors():
        check_keys_are_local(folder, "tapestry planes rotate-signing-key NAME")
        key_id = rotate_signing_key(folder, period := parse_duration(overlap, "--overlap"), now)
    click.echo(f"{folder}: tokens are signed with the key {key_id}")
    click.echo(f"earlier tokens are valid until {timestamp(now + period)}" if period else "earlier tokens are invalid")


@command("tapestry apiserver envtest-assets ./bin", name="envtest-assets")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def envtest_assets(folder: Path) -> None:
    """Write programs into FOLDER that start this server for the tests of kubebuilder projects (KUBEBUILDER_ASSETS)."""
    with report_file_errors():
        kubectl = shutil.which("kubectl") or shutil.which("kubectl", path=assets_folder(os.environ))
        written = write_assets(folder.absolute(), Path(kubectl) if kubectl else None)
    click.echo(f"{folder}: {', '.join(each.name for each in written)}")
    click.echo(f"export KUBEBUILDER_ASSETS={folder.absolute()}")


COMMANDS = (backup, restore, check, export, rotate_ca_command, rotate_signing_key_command, envtest_assets)
