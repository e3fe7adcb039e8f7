"""`tapestry debug collect`: archive of diagnostic data."""

import asyncio
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import click

from tapestry import __version__
from tapestry.cli.cluster_access import (
    FILE_PATH,
    WORLD_FOLDER,
    open_client,
    run_async,
    virtual_access,
    with_virtual_cluster,
)
from tapestry.cli.doctor import diagnosis
from tapestry.cli.help_text import command
from tapestry.client.http_transport import HttpTransport
from tapestry.inspect.bundle import CollectedData, Collector, MissingItem, bundle_files, pretty_json, tar_archive
from tapestry.inspect.findings import findings_text
from tapestry.inspect.queries import Queries
from tapestry.inspect.tables import plural_text


@click.group()
def debug() -> None:
    """Collect diagnostic data into a file."""


@command("tapestry debug collect", "tapestry debug collect -o trouble.tar.gz --context east", parent=debug)
@click.option("--output", "-o", "file", type=FILE_PATH, help="File to write. [default: tapestry-debug-<time>.tar.gz]")
@with_virtual_cluster
def collect(file: Path | None, kubeconfig: str | None, context: str | None) -> None:
    """Write diagnostic data into one file that only you can read.

    The file contains versions, bindings, policies, nodes, pods and events of both sides, the output of `tapestry
    doctor`, and the logs of the manager, the syncers and the local world.  It does not contain values of environment
    variables, commands, data of Secrets and ConfigMaps, unknown annotations, tokens, kubeconfigs or certificates.  A
    manifest lists everything that could not be read.  Review the file before you share it: a program may have logged a
    secret.
    """
    now = datetime.now(UTC)
    name = f"tapestry-debug-{now:%Y%m%dT%H%M%SZ}"
    file = file or Path(f"{name}.tar.gz")
    collected = CollectedData()
    with new_private_file(file) as out:
        run_async(collect_everything(collected, kubeconfig, context, now))
        versions = {"tapestry": __version__, "python": platform.python_version(), "system": platform.platform()}
        files = bundle_files(collected, versions, now)
        out.write(tar_archive(files, name, now))
    unread = f"; {plural_text(len(collected.missing), 'item')} could not be read" if collected.missing else ""
    click.echo(f"{file}: {plural_text(len(files), 'file')}, {file.stat().st_size / 1024:.0f} KiB{unread}")


@contextmanager
def new_private_file(file: Path) -> Iterator[IO[bytes]]:
    """Create a private file; delete it again if the block fails."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise click.ClickException(f"{file} already exists; choose another name with -o") from error
    except OSError as error:
        raise click.ClickException(str(error)) from error
    with open(descriptor, "wb") as out:
        try:
            yield out
        except BaseException:
            file.unlink()
            raise


async def collect_everything(
    collected: CollectedData, kubeconfig: str | None, context: str | None, now: datetime
) -> None:
    started = time.monotonic()
    collector = Collector(
        collected, lambda what: click.echo(f"  {time.monotonic() - started:5.1f} s  {what}", err=True)
    )
    await collector.run_step("doctor", collect_diagnosis(collected, kubeconfig, context))
    await collector.run_step("local world", asyncio.to_thread(collector.collect_world, WORLD_FOLDER.absolute()))
    try:
        access = virtual_access(kubeconfig, context)
    except (ValueError, OSError) as error:
        collected.missing.append(MissingItem(what="the virtual cluster", why=str(error)))
        return
    async with open_client(access) as client:
        await collector.collect_clusters(Queries(client, HttpTransport, now, namespace=access.namespace))


async def collect_diagnosis(collected: CollectedData, kubeconfig: str | None, context: str | None) -> None:
    found = await diagnosis(kubeconfig, context)
    collected.texts["doctor.txt"] = findings_text(found) + "\n"
    collected.texts["doctor.json"] = pretty_json(found)
