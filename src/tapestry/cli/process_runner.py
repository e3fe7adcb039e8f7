"""Common flags, configuration and error handling of commands that run a process."""

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
    "--kubeconfig": ("kubeconfig", "Kubeconfig file. [default: KUBECONFIG, ~/.kube/config, or in-cluster]"),
    "--context": ("context", "Context of the kubeconfig. [default: its current context]"),
    "--leader-elect": ("leaderElection.enabled", "Elect a leader among replicas; --leader-elect=false runs without."),
    "--metrics-bind-address": ("metrics.address", "Address to serve /metrics on; empty disables it."),
    "--health-probe-bind-address": ("probes.address", "Address to serve /healthz and /readyz on; empty disables it."),
    "--log-level": ("log.level", "Log level: debug, info, warning or error."),
    "--audit": ("audit", "File to append one line per write to."),
}


def with_process_flags(command: Command) -> Command:
    """Add the common options and --config to a command."""
    return CONFIG(with_options(FLAGS, {"leaderElection.enabled": SWITCH})(command))


def run_process(
    config_type: type[C],
    flags: Mapping[str, Any],
    own: dict[str, Any],
    start: Callable[[C], Coroutine[Any, Any, None]],
) -> None:
    """Run `start(config)` to its end; `own` are settings from the command's own flags."""
    try:
        config = load_config(
            config_type, file=flags["config"], environ=os.environ, flags=settings_from_flags(FLAGS, flags) | own
        )
        configure_process(config, click.get_current_context().info_name or "")
        run_app(lambda: start(config))
    except (ValueError, OSError, TracingUnavailable, ExceptionGroup) as error:
        fault = single_exception(error)  # startup errors: an address in use, a missing file
        if isinstance(fault, ExceptionGroup) or (fault is not error and not isinstance(fault, OSError)):
            raise
        raise click.ClickException(fault_message(fault)) from error


def fault_message(fault: Exception) -> str:
    """Return a one-line message, with advice if the address is in use."""
    if isinstance(fault, OSError) and fault.errno == errno.EADDRINUSE:
        return f"{fault.strerror}: stop the process that listens there, or choose another address (see --help)"
    return str(fault)


def single_exception(error: Exception) -> Exception:
    """Unwrap exception groups with one exception; return larger groups unchanged."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
