"""Options that set configuration values, and running a process with them."""

import errno
import os
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from tapestry.controller.app import configure_process, run_app
from tapestry.controller.config import ManagerConfig
from tapestry.kube.objects import EMPTY_MAPPING
from tapestry.process.config import load_config
from tapestry.process.tracing import TracingUnavailable

Flags = dict[str, tuple[str, str]]
"""Setting and help text, by option."""
CONFIG = click.option(
    "--config", "-c", type=click.Path(path_type=Path, dir_okay=False), help="YAML configuration file."
)
SWITCH: dict[str, Any] = {"type": bool, "is_flag": False, "flag_value": True}
"""Boolean flag: `--option` is true, `--option=false` is false; if absent, the setting is unchanged."""

Command = Callable[..., Any]


def with_options(flags: Flags, kinds: Mapping[str, Mapping[str, Any]] = EMPTY_MAPPING) -> Callable[[Command], Command]:
    """Add the options of a table to a command; `kinds` has click arguments by setting."""

    def add_options(command: Command) -> Command:
        for option, (path, text) in reversed(flags.items()):
            command = click.option(option, help=text, **kinds.get(path, {}))(command)
        return command

    return add_options


def settings_from_flags(flags: Flags, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given values by setting; None for unused options, a list for repeatable ones."""
    given = {path: values[option.removeprefix("--").replace("-", "_")] for option, (path, _) in flags.items()}
    return {path: list(value) or None if isinstance(value, tuple) else value for path, value in given.items()}


def split_commas(text: str | None) -> list[str] | None:
    return text.split(",") if text else None


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
ZAP_LEVELS = {"debug": "debug", "info": "info", "error": "error", "panic": "error"}


def parse_zap_level(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """Parse a level as controller-runtime does: a name, or a verbosity from 1 on, each of which includes debug."""
    if text is None:
        return None
    if text in ZAP_LEVELS:
        return ZAP_LEVELS[text]
    if text.isdecimal() and text.strip("0"):
        return "debug"
    raise click.BadParameter(f"{text!r} is neither a number above 0 nor one of {', '.join(ZAP_LEVELS)}")


ZAP_LEVEL_OPTION = click.option(
    "--zap-log-level",
    callback=parse_zap_level,
    metavar="LEVEL",
    help="Log level as controller-runtime names it: debug, info, error, panic, or a verbosity from 1 on (debug).",
)


def with_process_flags(command: Command) -> Command:
    """Add the common options and --config to a command."""
    return CONFIG(with_options(FLAGS, {"leaderElection.enabled": SWITCH})(ZAP_LEVEL_OPTION(command)))


def run_process(
    config_type: type[C],
    flags: Mapping[str, Any],
    own: Flags,
    start: Callable[[C], Coroutine[Any, Any, None]],
) -> None:
    """Run `start(config)` to its end; `own` are the command's own options."""
    try:
        given = settings_from_flags(FLAGS | own, flags)
        given["log.level"] = given["log.level"] or flags["zap_log_level"]
        config = load_config(config_type, file=flags["config"], environ=os.environ, flags=given)
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
