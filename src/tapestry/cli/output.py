"""Output formats of commands: tables, JSON and YAML."""

from collections.abc import Callable
from typing import Any

import click
import msgspec

FORMATS = ("table", "wide", "json", "yaml")


def with_output(*formats: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the option `-o` with these formats."""
    return click.option(
        "--output",
        "-o",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Format of the output.",
    )


def print_result(values: Any, output: str, text: Callable[[bool], str]) -> None:
    """Print `values`; `text` renders the table, and its argument selects the wide one."""
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(values), indent=2).decode())
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(msgspec.to_builtins(values), sort_keys=False, allow_unicode=True), nl=False)
    else:
        click.echo(text(output == "wide"))
