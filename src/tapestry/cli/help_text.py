"""Commands whose `--help` ends with examples and exit codes."""

from collections.abc import Callable
from typing import Any

import click

DONE = "success"
FAILED = "error, with a one-line message"
STOPPED = "stopped by SIGTERM or SIGINT"
USAGE_ERROR = 2
INTERRUPTED = 130
"""Exit code of shells after Ctrl-C."""


def command(
    *examples: str, zero: str = DONE, one: str = FAILED, parent: click.Group | None = None, name: str | None = None
) -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a command, or a subcommand of `parent`; `zero` and `one` are its meanings of these exit codes."""
    return (parent or click).command(name, epilog=help_epilog(*examples, zero=zero, one=one))


def help_epilog(*examples: str, zero: str = DONE, one: str = FAILED) -> str:
    lines = "\n".join(f"  {example}" for example in examples)
    return f"\b\nExamples:\n{lines}\n\n{exit_codes(zero, one)}"


def exit_codes(zero: str = DONE, one: str = FAILED) -> str:
    return f"Exit codes: 0, {zero}; 1, {one}; {USAGE_ERROR}, usage error; {INTERRUPTED}, interrupted by Ctrl-C."
