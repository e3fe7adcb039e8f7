"""`tapestry run` and `tapestry hub`: processes that run controllers."""

import os
from pathlib import Path
from typing import Any

import click

from tapestry.cli.help_text import STOPPED, help_epilog
from tapestry.cli.process_runner import run_process, with_process_flags
from tapestry.cli.registry import load_registry
from tapestry.controller.app import App, manager_for
from tapestry.controller.config import ManagerConfig


def controller_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in load_registry().names() if name.startswith(incomplete)]


@click.command(
    epilog=help_epilog("tapestry run at --kubeconfig kubeconfig", "tapestry run at --config at.yaml", zero=STOPPED)
)
@click.argument("name", shell_complete=controller_names)
@with_process_flags
def run(name: str, **flags: Any) -> None:
    """Run the controller NAME until stopped."""
    run_process(ManagerConfig, flags, {}, lambda config: run_controllers(config, name))


@click.command(epilog=help_epilog("tapestry hub --config hub.yaml --leader-elect", zero=STOPPED))
@with_process_flags
def hub(**flags: Any) -> None:
    """Run every installed controller that the configuration enables."""
    run_process(ManagerConfig, flags, {}, lambda config: run_controllers(config, None))


async def run_controllers(config: ManagerConfig, name: str | None) -> None:
    manager = manager_for(config, os.environ, Path.home())
    load_registry().add_to_manager(manager, only=name)
    manager.setup()
    await App(manager).run()
