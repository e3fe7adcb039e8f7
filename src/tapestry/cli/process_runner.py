"""What every command that runs a process has in common: its flags, its configuration, and errors in one line."""

import errno
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import click

from tapestry.cli.settings import CONFIG, SWITCH, Command, Flags, settings_from_flags, with_options
from tapestry.controller.app import configure_process, run_app
from tapestry.controller.config import ManagerConfig
from tapestry.process.config import load_config
from tapestry.process.tracing import TracingUnavailable

C = TypeVar("C", bound=ManagerConfig)

FLAGS: Flags = {
    "--kubeconfig": ("kubeconfig", "A kubeconfig file; else KUBECONFIG, ~/.kube/config or the pod's own account."),
    "--context": ("context", "A context of the kubeconfig."),
    "--leader-elect": ("leaderElection.enabled", "One of several replicas works; --leader-elect=false runs alone."),
    "--metrics-bind-address": ("metrics.address", "Where to serve /metrics; empty serves none."),
    "--health-probe-bind-address": ("probes.address", "Where to serve /healthz and /readyz; empty serves none."),
    "--log-level": ("log.level", "debug, info, warning or error."),
    "--audit": ("audit", "A file that gets a line for each write."),
}


def with_process_flags(command: Command) -> Command:
    """Give a command the options above, and --config."""
    return CONFIG(with_options(FLAGS, {"leaderElection.enabled": SWITCH})(command))


def run_process(
    config_type: type[C],
    flags: Mapping[str, Any],
    own: dict[str, Any],
    start: Callable[[C], Coroutine[Any, Any, None]],
) -> None:
    """Run `start(config)` to its end; `own` are the settings that a command's own flags give."""
    try:
        config = load_config(
            config_type, file=flags["config"], environ=os.environ, flags=settings_from_flags(FLAGS, flags) | own
        )
        configure_process(config, click.get_current_context().info_name or "")
        run_app(lambda: start(config))
    except (ValueError, OSError, TracingUnavailable, ExceptionGroup) as error:
        fault = single_exception(error)  # of a manager that could not begin: its address is taken, a file is missing
        if isinstance(fault, ExceptionGroup) or (fault is not error and not isinstance(fault, OSError)):
            raise
        raise click.ClickException(fault_message(fault)) from error


def fault_message(fault: Exception) -> str:
    """What went wrong, in one line; of an address that is taken, what to do."""
    if isinstance(fault, OSError) and fault.errno == errno.EADDRINUSE:
        return f"{fault.strerror}: end the process that listens there, or choose another address (see --help)"
    return str(fault)


def single_exception(error: Exception) -> Exception:
    """What went wrong, out of the groups of those who owned the task; the group itself where it was more than that."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
