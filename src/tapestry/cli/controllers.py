"""`tapestry run` and `tapestry hub`: controllers in a process of their own."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tapestry.cli.registry import the_registry
from tapestry.controller.app import App, configure_process, manager_of, run_app
from tapestry.controller.config import ManagerConfig
from tapestry.process.config import load
from tapestry.process.tracing import TracingUnavailable

CONFIG = click.option("--config", "-c", type=click.Path(path_type=Path, dir_okay=False), help="A YAML file.")
FLAGS: dict[str, tuple[str, str]] = {
    "--kubeconfig": ("kubeconfig", "A kubeconfig file; else KUBECONFIG, ~/.kube/config or the pod's own account."),
    "--context": ("context", "A context of the kubeconfig."),
    "--metrics-address": ("metrics.address", "Where to serve /metrics; empty serves none."),
    "--probes-address": ("probes.address", "Where to serve /healthz and /readyz; empty serves none."),
    "--log-level": ("log.level", "debug, info, warning or error."),
    "--audit": ("audit", "A file that gets a line for each write."),
}
"""Options and the settings they stand for; all the others are set in the file or the environment."""


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    for option, (_, text) in reversed(FLAGS.items()):
        command = click.option(option, help=text)(command)
    return CONFIG(command)


@click.command()
@click.argument("name")
@with_flags
def run(name: str, config: Path | None, **flags: Any) -> None:
    """Run the controller NAME until it is told to stop."""
    serve(config, flags, only=name)


@click.command()
@with_flags
def hub(config: Path | None, **flags: Any) -> None:
    """Run every controller that is installed and that the configuration enables."""
    serve(config, flags, only=None)


def serve(file: Path | None, flags: dict[str, Any], *, only: str | None) -> None:
    given = {path: flags[option.removeprefix("--").replace("-", "_")] for option, (path, _) in FLAGS.items()}
    try:
        config = load(ManagerConfig, file=file, environ=os.environ, flags=given)
        configure_process(config)
        run_app(lambda: run_controllers(config, only))
    except (ValueError, OSError, TracingUnavailable) as error:
        raise click.ClickException(str(error)) from error
    except ExceptionGroup as group:
        match group.exceptions:
            case [OSError() as fault]:  # of a manager that could not begin: its address is taken, a file is missing
                raise click.ClickException(str(fault)) from fault
        raise


async def run_controllers(config: ManagerConfig, only: str | None) -> None:
    manager = manager_of(config, os.environ, Path.home())
    the_registry().add_to_manager(manager, only=only)
    manager.setup()
    await App(manager).run()
