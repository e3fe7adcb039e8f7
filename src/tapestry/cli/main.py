"""Entry point of the `tapestry` command line, with a table of lazily imported commands.

The same program is a kubectl plugin: `kubectl tapestry status` is `tapestry status`.
"""

import gc
import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tapestry import __version__
from tapestry.cli.help_text import INTERRUPTED, command, exit_codes

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Entry(NamedTuple):
    module: str
    summary: str


GROUPS = {
    "Local world": {
        "up": Entry("tapestry.cli.world", "Run a virtual cluster and physical clusters on this machine."),
        "down": Entry("tapestry.cli.world", "Stop the local world, and optionally delete it."),
        "add": Entry("tapestry.cli.world", "Add a cluster to the local world."),
        "remove": Entry("tapestry.cli.world", "Delete a cluster that was added to the local world."),
        "demo": Entry("tapestry.cli.world", "Show joining, leasing and reclaiming in a temporary world."),
    },
    "Physical clusters": {
        "manifests": Entry("tapestry.cli.manifests", "Print the objects to install in a virtual cluster."),
        "uninstall-check": Entry("tapestry.cli.manifests", "Fail while ClusterBindings exist."),
        "join": Entry("tapestry.cli.join", "Join a physical cluster and lease its idle capacity."),
        "unjoin": Entry("tapestry.cli.join", "Remove a physical cluster and end its lease."),
        "repair": Entry("tapestry.cli.doctor", "Find inconsistencies between clusters and delete garbage."),
    },
    "Inspection": {
        "status": Entry("tapestry.cli.status", "Show the joined clusters and their leased capacity."),
        "nodes": Entry("tapestry.cli.status", "Show the virtual nodes."),
        "pods": Entry("tapestry.cli.status", "Show pods on virtual nodes, their twins, and why they wait."),
        "policies": Entry("tapestry.cli.status", "Show the lease policies of both sides."),
        "tree": Entry("tapestry.cli.status", "Show bindings, nodes, pods and twins as a tree."),
        "top": Entry("tapestry.cli.top", "Show leased, requested and used resources."),
        "explain": Entry("tapestry.cli.explain", "Explain a node's lease, a policy's effect or a pod's state."),
        "doctor": Entry("tapestry.cli.doctor", "Check the clusters and the local world, with advice."),
        "debug": Entry("tapestry.cli.debug", "Collect diagnostic data into a file."),
        "k": Entry("tapestry.cli.k", "Read and change objects of any kind without kubectl."),
    },
    "Lifecycle service": {
        "vc": Entry("tapestry.cli.vc", "Create, change, connect to and delete virtual clusters."),
        "op": Entry("tapestry.cli.service_objects", "Show, wait for and cancel operations of virtual clusters."),
        "project": Entry("tapestry.cli.service_objects", "Create, change and delete projects and their members."),
        "quota": Entry("tapestry.cli.service_objects", "Show and set the limits of projects."),
        "key": Entry("tapestry.cli.service_objects", "Create, list and delete access keys."),
        "audit": Entry("tapestry.cli.service_objects", "Query, export and verify the audit log."),
    },
    "Servers and processes": {
        "apiserver": Entry("tapestry.cli.apiserver", "Run a Kubernetes API server without Kubernetes."),
        "token": Entry("tapestry.cli.token", "Create, list and revoke expiring tokens of an API server."),
        "certificate": Entry("tapestry.cli.certificate", "Create and revoke client certificates of an API server."),
        "apiext": Entry("tapestry.cli.apiext", "Serve a plain REST API for the kinds of a Kubernetes API."),
        "planes": Entry("tapestry.cli.planes", "Run and manage many Kubernetes APIs in one process."),
        "host": Entry("tapestry.cli.host", "Add and remove clusters in which the pods of planes run."),
        "tenant": Entry("tapestry.cli.tenant", "Run the pods of planes in host clusters."),
        "cluster": Entry("tapestry.cli.cluster", "Run a cluster with simulated nodes in one process."),
        "manager": Entry("tapestry.cli.manager", "Run a syncer for every ClusterBinding."),
        "syncer": Entry("tapestry.cli.syncer", "Lease the nodes of one physical cluster."),
        "run": Entry("tapestry.cli.controllers", "Run one controller."),
        "hub": Entry("tapestry.cli.controllers", "Run every installed controller."),
    },
    "Controllers": {
        "new": Entry("tapestry.cli.new_controller", "Create the files of a new controller."),
        "phases": Entry("tapestry.cli.phases", "Draw the phases of installed controllers."),
    },
    "Other": {
        "crd": Entry("tapestry.cli.controllers", "Print or write CustomResourceDefinitions of registered kinds."),
        "completion": Entry("tapestry.cli.completion", "Print a shell completion script."),
        "version": Entry("tapestry.cli.main", "Print the version."),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}


def load_module(name: str) -> ModuleType:
    """Import a module with the garbage collector disabled, since module objects are never freed."""
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


class LazyGroup(click.Group):
    """Command group that imports a command only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(load_module(entry.module), cmd_name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click does not know the table and cannot suggest near names
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, COMMANDS))
        for title, entries in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), entry.summary) for name, entry in entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem[str]]":
        """Complete command names from the table; click would import every command for its help line."""
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
        except BrokenPipeError:  # the reader closed the pipe; click exits quietly
            raise
        except OSError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=exit_codes())
@click.version_option(__version__, message="tapestry %(version)s")
def main() -> None:
    """Tapestry: lease idle Kubernetes capacity and weave it into one compute cluster."""


def plugin() -> None:
    """Run the same program as the kubectl plugin."""
    main(prog_name="kubectl tapestry")


@command("tapestry version")
def version() -> None:
    """Print the version."""
    click.echo(f"tapestry {__version__}")
