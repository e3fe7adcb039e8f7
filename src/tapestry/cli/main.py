"""The command line: a table of commands, each imported only when it is called, so that `tapestry version` is quick.

It is also a plugin of kubectl: `kubectl tapestry status` is `tapestry status`.
"""

import gc
import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tapestry import __version__
from tapestry.cli.help_text import INTERRUPTED, exit_codes, help_epilog

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Entry(NamedTuple):
    module: str
    summary: str


GROUPS = {
    "A world here": {
        "up": Entry("tapestry.cli.up", "Run a world here: a virtual cluster, and those that it leases."),
        "down": Entry("tapestry.cli.up", "Stop that world, or forget it."),
        "add": Entry("tapestry.cli.add", "Start one more cluster in that world, for you to join."),
        "remove": Entry("tapestry.cli.add", "Stop and delete a cluster that was added to that world."),
        "demo": Entry("tapestry.cli.demo", "Play a story in a world of its own: join, lend, take back."),
    },
    "Clusters that lend": {
        "manifests": Entry("tapestry.cli.manifests", "Print what a cluster needs before bindings can be made in it."),
        "join": Entry("tapestry.cli.join", "Join a physical cluster: what is idle there is lent."),
        "unjoin": Entry("tapestry.cli.join", "Take a physical cluster out again."),
        "repair": Entry("tapestry.cli.repair", "Find what is wrong between both sides, and remove garbage."),
    },
    "See and explain": {
        "status": Entry("tapestry.cli.status", "Show the clusters that have joined, and what they lend."),
        "nodes": Entry("tapestry.cli.status", "Show the virtual nodes."),
        "pods": Entry("tapestry.cli.pods", "Show pods on virtual nodes, their twins, and why they wait."),
        "policies": Entry("tapestry.cli.status", "Show the policies of both sides."),
        "tree": Entry("tapestry.cli.tree", "Show bindings, their nodes, and pods with their twins as a tree."),
        "top": Entry("tapestry.cli.top", "Show what is leased, requested and used of it."),
        "explain": Entry("tapestry.cli.explain", "Say why a node or a policy lends what it lends, or a pod waits."),
        "doctor": Entry("tapestry.cli.doctor", "Check the world that is seen from here; say what to do."),
        "debug": Entry("tapestry.cli.debug", "Collect what somebody needs who is asked for help."),
        "k": Entry("tapestry.cli.k", "Show, make and end objects of any kind, without kubectl."),
    },
    "Servers and processes": {
        "apiserver": Entry("tapestry.cli.apiserver", "Serve Kubernetes' API where there is no Kubernetes."),
        "token": Entry("tapestry.cli.token", "Make, show and revoke tokens that expire, for `apiserver`."),
        "apiext": Entry("tapestry.cli.apiext", "Serve plain REST over the kinds of a Kubernetes API."),
        "cluster": Entry("tapestry.cli.cluster", "Run a whole cluster in one process, its nodes simulated."),
        "manager": Entry("tapestry.cli.manager", "Run a syncer for every ClusterBinding."),
        "syncer": Entry("tapestry.cli.syncer", "Lease the nodes of one physical cluster."),
        "run": Entry("tapestry.cli.controllers", "Run one controller."),
        "hub": Entry("tapestry.cli.controllers", "Run every controller that is installed."),
    },
    "Other": {
        "crd": Entry("tapestry.cli.crd", "Print the CustomResourceDefinition of every registered kind."),
        "completion": Entry("tapestry.cli.completion", "Print what makes a shell complete these commands."),
        "version": Entry("tapestry.cli.main", "Print the version."),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}


def load_module(name: str) -> ModuleType:
    """A module, loaded without the garbage collector: what modules consist of is here to stay."""
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


class LazyGroup(click.Group):
    """Commands by name; the table above is all that is known of them until one is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(load_module(entry.module), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click does not know of the table, and could not say which is near
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, COMMANDS))
        for title, entries in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), entry.summary) for name, entry in entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem[str]]":
        """As the table has it: click would import every command for the first line of its help."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=entry.summary) for name, entry in COMMANDS.items() if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(err=True)  # the terminal shows ^C
            raise click.exceptions.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # whoever reads has enough, which click takes well
            raise
        except OSError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=exit_codes())
@click.version_option(__version__, message="tapestry %(version)s")
def main() -> None:
    """Tapestry: lease idle Kubernetes capacity and weave it into one compute cluster."""


def plugin() -> None:
    """The same program, as kubectl finds and calls it."""
    main(prog_name="kubectl tapestry")


@click.command(epilog=help_epilog("tapestry version"))
def version() -> None:
    """Print the version."""
    click.echo(f"tapestry {__version__}")
