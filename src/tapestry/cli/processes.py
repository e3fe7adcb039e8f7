"""What every command that runs a process has in common: its flags, its configuration, and errors in one line."""

import os
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from tapestry.controller.app import configure_process, run_app
from tapestry.controller.config import ManagerConfig
from tapestry.process.config import load
from tapestry.process.tracing import TracingUnavailable

C = TypeVar("C", bound=ManagerConfig)

FLAGS: dict[str, tuple[str, str]] = {
    "--kubeconfig": ("kubeconfig", "A kubeconfig file; else KUBECONFIG, ~/.kube/config or the pod's own account."),
    "--context": ("context", "A context of the kubeconfig."),
    "--leader-elect": ("leaderElection.enabled", "One of several replicas works; --leader-elect=false runs alone."),
    "--metrics-bind-address": ("metrics.address", "Where to serve /metrics; empty serves none."),
    "--health-probe-bind-address": ("probes.address", "Where to serve /healthz and /readyz; empty serves none."),
    "--log-level": ("log.level", "debug, info, warning or error."),
    "--audit": ("audit", "A file that gets a line for each write."),
}
"""Options and the settings they stand for; all the others are set in the file or the environment."""


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options above, and --config."""
    for option, (_, text) in reversed(FLAGS.items()):
        kind: dict[str, Any] = (
            {"type": bool, "is_flag": False, "flag_value": True} if option == "--leader-elect" else {}
        )
        command = click.option(option, help=text, **kind)(command)
    file = click.Path(path_type=Path, dir_okay=False)
    return click.option("--config", "-c", type=file, help="A YAML file.")(command)


def run_process(
    config_type: type[C],
    flags: Mapping[str, Any],
    own: Mapping[str, Any],
    start: Callable[[C], Coroutine[Any, Any, None]],
) -> None:
    """Run `start(config)` to its end; `own` are the settings that a command's own flags give."""
    given = {path: flags[option.removeprefix("--").replace("-", "_")] for option, (path, _) in FLAGS.items()}
    try:
        config = load(config_type, file=flags["config"], environ=os.environ, flags={**given, **own})
        configure_process(config)
        run_app(lambda: start(config))
    except (ValueError, OSError, TracingUnavailable, ExceptionGroup) as error:
        fault = lone(error)  # of a manager that could not begin: its address is taken, a file is missing
        if isinstance(fault, ExceptionGroup) or (fault is not error and not isinstance(fault, OSError)):
            raise
        raise click.ClickException(str(fault)) from error


def lone(error: Exception) -> Exception:
    """What went wrong, out of the groups of those who owned the task; the group itself where it was more than that."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
