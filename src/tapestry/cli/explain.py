"""`tapestry explain`: reasons for the lease of a node, the effect of a policy, the state of a pod."""

import sys

import click

from tapestry.apis import keys
from tapestry.apis.policies import POLICIES
from tapestry.cli.cluster_access import NAMESPACE_OPTION, QueryOutput, name_completer, query_command
from tapestry.cli.help_text import command
from tapestry.inspect.anykind.manifests import load_objects
from tapestry.inspect.proposals import proposed_policy
from tapestry.inspect.queries import Queries
from tapestry.inspect.tables import node_text, plan_text, pod_text, policy_text
from tapestry.kube.resources import NODES, PODS
from tapestry.syncer.leasing import PolicySide

FORMATS = ("text", "json", "yaml")


@click.group()
def explain() -> None:
    """Explain the lease of a node, the effect of a policy, or the state of a pod.

    The physical cluster is read with the kubeconfig of its binding, if you may read that.
    """


@command("tapestry explain node vnode-east-worker-1", "tapestry explain node worker-1", parent=explain)
@click.argument("name", shell_complete=name_completer(NODES, f"{keys.NODE_TYPE}={keys.NODE_TYPE_VIRTUAL}"))
@query_command(*FORMATS, with_time_zone=True)
async def node(queries: Queries, name: str) -> QueryOutput:
    """Explain a node, given the name of the virtual or of the physical node."""
    found = await queries.node(name)
    return found, lambda _: "\n\n".join(node_text(each, queries.now) for each in found)


@command(
    "tapestry explain policy nights",
    "tapestry explain policy owner/nights -o yaml",
    "tapestry explain policy -f nights.yaml",
    "tapestry explain policy -f nights.yaml --side owner",
    parent=explain,
)
@click.argument("name", required=False, shell_complete=name_completer(POLICIES))
@click.option("--filename", "-f", help="File of a policy to explain without applying it; - is standard input.")
@click.option(
    "--side",
    type=click.Choice(["operator", "owner"]),
    help="Side that the policy in the file belongs to. [default: the side with a policy of that name, else operator]",
)
@query_command(*FORMATS, with_time_zone=True)
async def policy(queries: Queries, name: str | None, filename: str | None, side: str | None) -> QueryOutput:
    """Explain a policy by name; use owner/NAME or operator/NAME if both sides have one.

    With -f, show what the policy in a file would lend and reclaim if it were applied now.
    """
    if (name is None) == (filename is None):
        raise click.UsageError("specify the name of a policy, or a file with -f")
    if name is not None:
        if side is not None:
            raise click.UsageError("--side needs -f; name the policy as owner/NAME or operator/NAME")
        found = await queries.policy(name)
        return found, lambda _: "\n\n".join(policy_text(each, queries.now) for each in found)
    assert filename is not None
    proposed = proposed_policy(load_objects([filename], sys.stdin.buffer), filename)
    plans = await queries.plan(proposed, PolicySide(side) if side else None)
    return plans, lambda _: "\n\n".join(plan_text(each, queries.now) for each in plans)


@command("tapestry explain pod web-0", "tapestry explain pod team-a/web-0", parent=explain)
@click.argument("name", metavar="[NAMESPACE/]NAME", shell_complete=name_completer(PODS))
@NAMESPACE_OPTION
@query_command(*FORMATS)
async def pod(queries: Queries, name: str, namespace: str | None) -> QueryOutput:
    """Explain why a pod of the virtual cluster waits, where it runs or why it ended, with advice."""
    before, _, own = name.rpartition("/")
    found = await queries.pod(before or namespace or queries.namespace, own)
    return found, lambda _: pod_text(found, queries.now)
