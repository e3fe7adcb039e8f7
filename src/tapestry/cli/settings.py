"""Options that stand for settings of a process; all other settings are in the file or the environment."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from tapestry.kube.objects import EMPTY_MAPPING

Flags = dict[str, tuple[str, str]]
"""By option, the setting that it stands for, and what the option's help says."""
CONFIG = click.option("--config", "-c", type=click.Path(path_type=Path, dir_okay=False), help="A YAML file.")
SWITCH: dict[str, Any] = {"type": bool, "is_flag": False, "flag_value": True}
"""`--option` means yes, and `--option=false` no: where nothing is said, the file or the environment may."""

Command = Callable[..., Any]


def with_options(flags: Flags, kinds: Mapping[str, Mapping[str, Any]] = EMPTY_MAPPING) -> Callable[[Command], Command]:
    """Give a command the options of a table; `kinds` has what click is told of those settings that are no texts."""

    def given(command: Command) -> Command:
        for option, (path, text) in reversed(flags.items()):
            command = click.option(option, help=text, **kinds.get(path, {}))(command)
        return command

    return given


def settings_from_flags(flags: Flags, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a command was given, by setting; None where an option was not used."""
    return {path: values[option.removeprefix("--").replace("-", "_")] for option, (path, _) in flags.items()}


def split_commas(text: str | None) -> list[str] | None:
    """Several texts with commas between them."""
    return text.split(",") if text else None
