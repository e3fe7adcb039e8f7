"""`tapestry run`, `tapestry hub` and `tapestry crd`: controllers of installed packages and their kinds."""

import os
from pathlib import Path
from typing import Any

import click
import yaml

from tapestry.cli.help_text import STOPPED, command
from tapestry.cli.process_runner import run_process, with_process_flags
from tapestry.controller.app import App, manager_for
from tapestry.controller.config import ManagerConfig
from tapestry.controller.registry import Registry
from tapestry.kube.crds import crd as definition_of


def load_registry() -> Registry:
    registry = Registry()
    registry.load_entry_points()
    return registry


def controller_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in load_registry().names() if name.startswith(incomplete)]


@command("tapestry run at --kubeconfig kubeconfig", "tapestry run at --config at.yaml", zero=STOPPED)
@click.argument("name", shell_complete=controller_names)
@with_process_flags
def run(name: str, **flags: Any) -> None:
    """Run the controller NAME until stopped."""
    run_process(ManagerConfig, flags, {}, lambda config: run_controllers(config, name))


@command("tapestry hub --config hub.yaml --leader-elect", zero=STOPPED)
@with_process_flags
def hub(**flags: Any) -> None:
    """Run every installed controller that the configuration enables."""
    run_process(ManagerConfig, flags, {}, lambda config: run_controllers(config, None))


async def run_controllers(config: ManagerConfig, name: str | None) -> None:
    manager = manager_for(config, os.environ, Path.home())
    load_registry().add_to_manager(manager, only=name)
    manager.setup()
    await App(manager).run()


@command("tapestry crd | kubectl apply -f -")
def crd() -> None:
    """Print the CustomResourceDefinition of every registered kind, for `kubectl apply -f -`."""
    for kind in load_registry().kinds:
        click.echo("---")
        click.echo(yaml.safe_dump(definition_of(kind), sort_keys=False, allow_unicode=True), nl=False)
