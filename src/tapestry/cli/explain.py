"""`tapestry explain`: why a node or a policy lends what it lends, and why a pod is where it is."""

import sys

import click

from tapestry.apis import keys
from tapestry.apis.policies import POLICIES
from tapestry.cli.clusters import NAMESPACE, Answer, question
from tapestry.cli.manual import manual
from tapestry.cli.names import names_of
from tapestry.inspect.anykind.manifests import objects_in
from tapestry.inspect.proposals import proposed_policy
from tapestry.inspect.questions import Questions
from tapestry.inspect.tables import node_text, plan_text, pod_text, policy_text
from tapestry.kube.resources import NODES, PODS
from tapestry.syncer.leasing import Side

FORMATS = ("text", "json", "yaml")


@click.group()
def explain() -> None:
    """Say why a node or a policy lends what it lends, or why a pod waits, runs or ended.

    The physical cluster is looked into with the kubeconfig of its binding, where that may be read.
    """


@explain.command(epilog=manual("tapestry explain node vnode-east-worker-1", "tapestry explain node worker-1"))
@click.argument("name", shell_complete=names_of(NODES, f"{keys.NODE_TYPE}={keys.VIRTUAL}"))
@question(*FORMATS, zoned=True)
async def node(questions: Questions, name: str) -> Answer:
    """Explain a node, by the name of the virtual or of the physical one."""
    found = await questions.node(name)
    return found, lambda _: "\n\n".join(node_text(each, questions.now) for each in found)


@explain.command(
    epilog=manual(
        "tapestry explain policy nights",
        "tapestry explain policy owner/nights -o yaml",
        "tapestry explain policy -f nights.yaml",
        "tapestry explain policy -f nights.yaml --side owner",
    )
)
@click.argument("name", required=False, shell_complete=names_of(POLICIES))
@click.option("--filename", "-f", help="Explain the policy in this file (- is standard input); nothing is written.")
@click.option(
    "--side",
    type=click.Choice(["operator", "owner"]),
    help="Whose policy the one in the file is. [default: the side that has one of the name, else operator]",
)
@question(*FORMATS, zoned=True)
async def policy(questions: Questions, name: str | None, filename: str | None, side: str | None) -> Answer:
    """Explain a policy, by its name; owner/NAME or operator/NAME where both sides have one.

    With -f, show what the policy in a file would lend and reclaim if it were applied now.
    """
    if (name is None) == (filename is None):
        raise click.UsageError("give the name of a policy, or a file with -f")
    if name is not None:
        if side is not None:
            raise click.UsageError("--side is for -f; name the policy as owner/NAME or operator/NAME")
        found = await questions.policy(name)
        return found, lambda _: "\n\n".join(policy_text(each, questions.now) for each in found)
    assert filename is not None
    proposed = proposed_policy(objects_in([filename], sys.stdin.buffer), filename)
    plans = await questions.plan(proposed, Side(side) if side else None)
    return plans, lambda _: "\n\n".join(plan_text(each, questions.now) for each in plans)


@explain.command(epilog=manual("tapestry explain pod web-0", "tapestry explain pod team-a/web-0"))
@click.argument("name", metavar="[NAMESPACE/]NAME", shell_complete=names_of(PODS))
@NAMESPACE
@question(*FORMATS)
async def pod(questions: Questions, name: str, namespace: str | None) -> Answer:
    """Explain a pod of the virtual cluster: why it waits, where it runs, why it ended, and what to do."""
    before, _, own = name.rpartition("/")
    found = await questions.pod(before or namespace or questions.namespace, own)
    return found, lambda _: pod_text(found, questions.now)
