"""Command line options that set configuration values."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from tapestry.kube.objects import EMPTY_MAPPING

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
    """Return the given values by setting; None for unused options."""
    return {path: values[option.removeprefix("--").replace("-", "_")] for option, (path, _) in flags.items()}


def split_commas(text: str | None) -> list[str] | None:
    return text.split(",") if text else None
