"""`tapestry explain`: why a node or a policy lends what it lends, and why a pod is where it is."""

import sys

import click

from tapestry.apis import keys
from tapestry.apis.policies import POLICIES
from tapestry.cli.cluster_access import NAMESPACE_OPTION, QueryOutput, query_command
from tapestry.cli.help_text import help_epilog
from tapestry.cli.name_completion import name_completer
from tapestry.inspect.anykind.manifests import load_objects
from tapestry.inspect.proposals import proposed_policy
from tapestry.inspect.queries import Queries
from tapestry.inspect.tables import node_text, plan_text, pod_text, policy_text
from tapestry.kube.resources import NODES, PODS
from tapestry.syncer.leasing import PolicySide

FORMATS = ("text", "json", "yaml")


@click.group()
def explain() -> None:
    """Say why a node or a policy lends what it lends, or why a pod waits, runs or ended.

    The physical cluster is looked into with the kubeconfig of its binding, where that may be read.
    """


@explain.command(epilog=help_epilog("tapestry explain node vnode-east-worker-1", "tapestry explain node worker-1"))
@click.argument("name", shell_complete=name_completer(NODES, f"{keys.NODE_TYPE}={keys.NODE_TYPE_VIRTUAL}"))
@query_command(*FORMATS, with_time_zone=True)
async def node(queries: Queries, name: str) -> QueryOutput:
    """Explain a node, by the name of the virtual or of the physical one."""
    found = await queries.node(name)
    return found, lambda _: "\n\n".join(node_text(each, queries.now) for each in found)


@explain.command(
    epilog=help_epilog(
        "tapestry explain policy nights",
        "tapestry explain policy owner/nights -o yaml",
        "tapestry explain policy -f nights.yaml",
        "tapestry explain policy -f nights.yaml --side owner",
    )
)
@click.argument("name", required=False, shell_complete=name_completer(POLICIES))
@click.option("--filename", "-f", help="Explain the policy in this file (- is standard input); nothing is written.")
@click.option(
    "--side",
    type=click.Choice(["operator", "owner"]),
    help="Whose policy the one in the file is. [default: the side that has one of the name, else operator]",
)
@query_command(*FORMATS, with_time_zone=True)
async def policy(queries: Queries, name: str | None, filename: str | None, side: str | None) -> QueryOutput:
    """Explain a policy, by its name; owner/NAME or operator/NAME where both sides have one.

    With -f, show what the policy in a file would lend and reclaim if it were applied now.
    """
    if (name is None) == (filename is None):
        raise click.UsageError("give the name of a policy, or a file with -f")
    if name is not None:
        if side is not None:
            raise click.UsageError("--side is for -f; name the policy as owner/NAME or operator/NAME")
        found = await queries.policy(name)
        return found, lambda _: "\n\n".join(policy_text(each, queries.now) for each in found)
    assert filename is not None
    proposed = proposed_policy(load_objects([filename], sys.stdin.buffer), filename)
    plans = await queries.plan(proposed, PolicySide(side) if side else None)
    return plans, lambda _: "\n\n".join(plan_text(each, queries.now) for each in plans)


@explain.command(epilog=help_epilog("tapestry explain pod web-0", "tapestry explain pod team-a/web-0"))
@click.argument("name", metavar="[NAMESPACE/]NAME", shell_complete=name_completer(PODS))
@NAMESPACE_OPTION
@query_command(*FORMATS)
async def pod(queries: Queries, name: str, namespace: str | None) -> QueryOutput:
    """Explain a pod of the virtual cluster: why it waits, where it runs, why it ended, and what to do."""
    before, _, own = name.rpartition("/")
    found = await queries.pod(before or namespace or queries.namespace, own)
    return found, lambda _: pod_text(found, queries.now)
