"""`tapestry phases`: drawings of the PhaseMachines of installed controllers."""

import asyncio
import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import click
from msgspec import structs

from tapestry.cli.controllers import controller_names, load_registry
from tapestry.cli.help_text import command
from tapestry.cli.process_runner import CONFIG
from tapestry.client.transport import Request, Response, Stream
from tapestry.controller.config import ManagerConfig
from tapestry.controller.manager import Manager
from tapestry.controller.phase_table import PhaseTable
from tapestry.controller.registry import Registry
from tapestry.kube.errors import TransportError
from tapestry.process.config import load_config


@command("tapestry phases", "tapestry phases redismigration --output mermaid > phases.mmd")
@click.argument("name", required=False, shell_complete=controller_names)
@click.option(
    "--output",
    "-o",
    type=click.Choice(["tree", "mermaid"]),
    default="tree",
    show_default=True,
    help="Format of the drawing.",
)
@CONFIG
def phases(name: str | None, output: str, config: Path | None) -> None:
    """Draw the phases of the controller NAME, or of every installed controller that is a PhaseMachine.

    In a tree, ■ marks a terminal phase, and ↑ a phase that is drawn above.
    """
    try:
        settings = load_config(ManagerConfig, file=config, environ=os.environ, flags={})
        registry = load_registry()
        names = registry.names() if name is None else [name]
        tables = {key: table for each in names for key, table in asyncio.run(phase_tables(registry, each, settings))}
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if not tables:
        raise click.ClickException(f"controller {name!r} has no phases" if name else "no controller has phases")
    for title, table in tables.items():
        click.echo(mermaid_document(title, table) if output == "mermaid" else f"{title}\n{table.tree()}\n")


def mermaid_document(title: str, table: PhaseTable) -> str:
    return f"---\ntitle: {title}\n---\n{table.mermaid()}\n"


async def phase_tables(registry: Registry, name: str, config: ManagerConfig) -> list[tuple[str, PhaseTable]]:
    """Return the tables of one registered controller.  It is set up without a cluster and does not run."""
    manager = Manager(structs.replace(config, controllers=["*"]), Offline, identity="phases")
    registry.add_to_manager(manager, only=name)
    try:
        manager.setup()
    except Exception as error:
        raise ValueError(f"controller {name!r}: its setup failed: {error!r}; it may need --config") from error
    return list(manager.phase_tables.items())


class Offline:
    """A transport without a cluster."""

    async def send(self, request: Request) -> Response:
        raise TransportError(f"{request}: there is no cluster", maybe_sent=False)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        raise TransportError(f"{request}: there is no cluster", maybe_sent=False)

    def abort(self) -> None:
        """There is nothing to abort."""

    async def close(self) -> None:
        """There is nothing to close."""
