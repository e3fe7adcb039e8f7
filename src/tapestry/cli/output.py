"""What commands print: a table for people, or every field as JSON or YAML."""

from collections.abc import Callable
from typing import Any

import click
import msgspec

FORMATS = ("table", "wide", "json", "yaml")


def with_output(*formats: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The option `-o`, with the formats that a command knows."""
    return click.option(
        "--output", "-o", type=click.Choice(formats), default=formats[0], show_default=True, help="How to print it."
    )


def print_result(values: Any, output: str, text: Callable[[bool], str]) -> None:
    """Print `values`; `text` makes the table, a wide one where it is told so."""
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(values), indent=2).decode())
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(msgspec.to_builtins(values), sort_keys=False, allow_unicode=True), nl=False)
    else:
        click.echo(text(output == "wide"))
