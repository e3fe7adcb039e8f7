"""`tapestry apiserver backup|restore|check|export`: what can be done with a server's data folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from tapestry.apiserver.storage import archive
from tapestry.apiserver.storage.log import Entry, StorageError
from tapestry.cli.help_text import help_epilog
from tapestry.kube.objects import Object

FOLDER_OPTION = click.option(
    "--file-rootpath",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default="tapestry-data",
    show_default=True,
    help="The data folder.",
)
SERVER_METADATA = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink")
"""Metadata that a server gives."""


@contextmanager
def report_file_errors() -> Iterator[None]:
    """What goes wrong with files, as one line."""
    try:
        yield
    except (StorageError, OSError) as error:
        raise click.ClickException(str(error)) from error


@click.command(epilog=help_epilog("tapestry apiserver backup --file-rootpath ./data backup.tar"))
@FOLDER_OPTION
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def backup(folder: Path, file: Path) -> None:
    """Write everything into FILE, as it is at one moment; the server may be running.

    FILE holds the server's private keys as well: keep it as safe as these.  Data in etcd are etcd's to back up.
    """
    with report_file_errors():
        revision = archive.back_up(folder, file.absolute())
    click.echo(f"{file}: everything up to revision {revision}")


@click.command(epilog=help_epilog("tapestry apiserver restore --file-rootpath ./data backup.tar"))
@FOLDER_OPTION
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
def restore(folder: Path, file: Path) -> None:
    """Have everything as FILE has it; the server must not be running.

    What was in the data folder is kept beside it, under another name.  Revisions go on far beyond those in FILE, so
    that clients that have seen newer ones notice.
    """
    with report_file_errors():
        revision = archive.restore(file, folder)
    click.echo(f"{folder}: restored; it goes on from revision {revision}")


@click.command(
    epilog=help_epilog(
        "tapestry apiserver check --file-rootpath ./data",
        "tapestry apiserver check --repair",
        zero="all objects are as they were written",
        one="some are not, or it failed",
    )
)
@FOLDER_OPTION
@click.option("--repair", is_flag=True, help="Take what cannot be read out of the way; the server must not be running.")
def check(folder: Path, repair: bool) -> None:
    """Look whether all objects are as they were written."""
    with report_file_errors():
        if repair:
            for key in archive.repair(folder):
                click.echo(f"removed {key.resource} {key.namespace}/{key.name}")
        found = archive.check_folder(folder)
    for each in found:
        click.echo(str(each))
    if found:
        raise click.exceptions.Exit(1)
    click.echo(f"{folder}: everything is as it was written")


@click.command(
    epilog=help_epilog(
        "tapestry apiserver export pods deployments.apps", "tapestry apiserver export --full -o ./everything"
    )
)
@FOLDER_OPTION
@click.option("--output", "-o", type=click.Path(path_type=Path, file_okay=False), help="A folder: one file an object.")
@click.option("--full", is_flag=True, help="With status and everything that the server gave.")
@click.argument("resources", nargs=-1)
def export(folder: Path, output: Path | None, full: bool, resources: tuple[str, ...]) -> None:
    """Print objects as YAML that can be applied elsewhere: of RESOURCES (`pods`, `deployments.apps`), or all."""
    shown: Callable[[Object], Object] = (lambda obj: obj) if full else without_server_fields
    with report_file_errors():
        for entry in archive.read_entries(folder, resources):
            text = yaml.dump(shown(msgspec.json.decode(entry.raw or b"")), Dumper=yaml.CSafeDumper, sort_keys=False)
            if output is None:
                click.echo(f"---\n{text}", nl=False)
            else:
                write_object(output, entry, text)


def write_object(folder: Path, entry: Entry, text: str) -> None:
    resource, namespace, name = entry.key
    path = folder / resource / namespace / f"{name.replace('/', '%2F')}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)  # it may be a Secret
    path.write_text(text)


def without_server_fields(obj: Object) -> Object:
    metadata: dict[str, Any] = {key: value for key, value in obj["metadata"].items() if key not in SERVER_METADATA}
    return {key: value for key, value in {**obj, "metadata": metadata}.items() if key != "status"}


COMMANDS = (backup, restore, check, export)
