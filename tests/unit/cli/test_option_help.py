"""The help text of each command and option stands alone."""

import re
from collections.abc import Iterator

import click

from tapestry.cli.main import main

DEPENDENT = re.compile(r"(Its|Their|Of|Also|Likewise|The same|What|Whether|How|Where|Who|Which|And|Or)\b")
MIN_WORDS = 2


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands(child, f"{path} {name}")


def is_standing_alone(text: str) -> bool:
    return len(text.split()) >= MIN_WORDS and not DEPENDENT.match(text)


def test_the_help_of_each_option_stands_alone() -> None:
    found = [
        f"{path} {option.opts[0]}: {option.help!r}"
        for path, command in commands(main, "tapestry")
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden and not is_standing_alone(option.help or "")
    ]
    assert found == []


def test_the_help_of_each_command_stands_alone() -> None:
    found = [
        path for path, command in commands(main, "tapestry") if not is_standing_alone(command.get_short_help_str(200))
    ]
    assert found == []
