"""`tapestry completion`: shell completion for `tapestry` and for the kubectl plugin."""

import sys

import click
from click.shell_completion import ShellComplete, get_completion_class

from tapestry.cli.help_text import command
from tapestry.cli.main import main

SHELLS = ("bash", "zsh", "fish")
FISH_COMMA_FIX = ('string split "," $completion', 'string split --max 1 "," $completion')
"""Fix for click's fish script, which cuts a command's help at the first comma."""
DIRECTIVE_NO_FILES, DIRECTIVE_FILES = ":4", ":0"
"""Last line of the completion output for kubectl: without or with file names."""


@command(
    "source <(tapestry completion bash)",
    "tapestry completion zsh > ~/.zfunc/_tapestry",
    "tapestry completion fish > ~/.config/fish/completions/tapestry.fish",
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that makes SHELL complete commands, options and names of objects."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(main, {}, "tapestry", "_TAPESTRY_COMPLETE").source()
    click.echo(script.replace(*FISH_COMMA_FIX))


def kubectl_completion() -> None:
    """Complete `kubectl_complete-tapestry WORDS...` for kubectl; the last word is incomplete."""
    *words, incomplete = sys.argv[1:] or [""]
    found = ShellComplete(main, {}, "kubectl tapestry", "").get_completions(words, incomplete)
    plain = [each for each in found if each.type == "plain"]
    for each in plain:
        click.echo(f"{each.value}\t{each.help}" if each.help else each.value)
    click.echo(DIRECTIVE_NO_FILES if len(plain) == len(found) else DIRECTIVE_FILES)
