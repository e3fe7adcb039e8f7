"""`tapestry explain`: why a node or a policy lends what it lends, and why a pod is where it is."""

import click

from tapestry.apis import keys
from tapestry.apis.policies import POLICIES
from tapestry.cli.clusters import NAMESPACE, Answer, question
from tapestry.cli.manual import manual
from tapestry.cli.names import names_of
from tapestry.inspect.questions import Questions
from tapestry.inspect.tables import node_text, pod_text, policy_text
from tapestry.kube.resources import NODES, PODS

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


@explain.command(epilog=manual("tapestry explain policy nights", "tapestry explain policy owner/nights -o yaml"))
@click.argument("name", shell_complete=names_of(POLICIES))
@question(*FORMATS, zoned=True)
async def policy(questions: Questions, name: str) -> Answer:
    """Explain a policy, by its name; owner/NAME or operator/NAME where both sides have one."""
    found = await questions.policy(name)
    return found, lambda _: "\n\n".join(policy_text(each, questions.now) for each in found)


@explain.command(epilog=manual("tapestry explain pod web-0", "tapestry explain pod team-a/web-0"))
@click.argument("name", metavar="[NAMESPACE/]NAME", shell_complete=names_of(PODS))
@NAMESPACE
@question(*FORMATS)
async def pod(questions: Questions, name: str, namespace: str | None) -> Answer:
    """Explain a pod of the virtual cluster: why it waits, where it runs, why it ended, and what to do."""
    before, _, own = name.rpartition("/")
    found = await questions.pod(before or namespace or questions.namespace, own)
    return found, lambda _: pod_text(found, questions.now)
