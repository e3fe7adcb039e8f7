"""The command line: a table of commands, each imported only when it is called, so that `tapestry version` is quick."""

import importlib
from typing import NamedTuple

import click

from tapestry import __version__


class Entry(NamedTuple):
    module: str
    summary: str


COMMANDS = {
    "up": Entry("tapestry.cli.up", "Run a world here: a virtual cluster, and those that it leases."),
    "down": Entry("tapestry.cli.up", "Stop that world, or forget it."),
    "demo": Entry("tapestry.cli.demo", "Play a story in a world of its own: join, lend, take back."),
    "run": Entry("tapestry.cli.controllers", "Run one controller."),
    "hub": Entry("tapestry.cli.controllers", "Run every controller that is installed."),
    "apiserver": Entry("tapestry.cli.apiserver", "Serve Kubernetes' API where there is no Kubernetes."),
    "apiext": Entry("tapestry.cli.apiext", "Serve plain REST over the kinds of a Kubernetes API."),
    "token": Entry("tapestry.cli.token", "Make, show and revoke tokens that expire, for `apiserver`."),
    "cluster": Entry("tapestry.cli.cluster", "Run a whole cluster in one process, its nodes simulated."),
    "manager": Entry("tapestry.cli.manager", "Run a syncer for every ClusterBinding."),
    "syncer": Entry("tapestry.cli.syncer", "Lease the nodes of one physical cluster."),
    "join": Entry("tapestry.cli.join", "Join a physical cluster: what is idle there is lent."),
    "unjoin": Entry("tapestry.cli.join", "Take a physical cluster out again."),
    "status": Entry("tapestry.cli.status", "Show the clusters that have joined, and what they lend."),
    "nodes": Entry("tapestry.cli.status", "Show the virtual nodes."),
    "pods": Entry("tapestry.cli.pods", "Show pods on virtual nodes, their twins, and why they wait."),
    "policies": Entry("tapestry.cli.status", "Show the policies of both sides."),
    "tree": Entry("tapestry.cli.tree", "Show bindings, their nodes, and pods with their twins as a tree."),
    "explain": Entry("tapestry.cli.explain", "Say why a node or a policy lends what it lends, or a pod waits."),
    "repair": Entry("tapestry.cli.repair", "Find what is wrong between both sides, and remove garbage."),
    "doctor": Entry("tapestry.cli.doctor", "Check the world that is seen from here; say what to do."),
    "k": Entry("tapestry.cli.k", "Show, make and end objects of any kind, without kubectl."),
    "manifests": Entry("tapestry.cli.manifests", "Print what a cluster needs before bindings can be made in it."),
    "crd": Entry("tapestry.cli.crd", "Print the CustomResourceDefinition of every registered kind."),
    "version": Entry("tapestry.cli.main", "Print the version."),
}


class Commands(click.Group):
    """Commands by name; the table above is all that is known of them until one is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(entry.module), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Tapestry: lease idle Kubernetes capacity and weave it into one compute cluster."""


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(f"tapestry {__version__}")
