"""`tapestry pods`: what runs on leased nodes, where, and what does not."""

import click

from tapestry.cli.clusters import Answer, question
from tapestry.cli.output import FORMATS
from tapestry.inspect.questions import Questions
from tapestry.inspect.tables import pods_table


@click.command()
@click.option("--namespace", "-n", help="Of the pods. [default: that of the context]")
@click.option("--all-namespaces", "-A", is_flag=True, help="Of whatever namespace.")
@click.option("--binding", help="Only pods on nodes of this ClusterBinding.")
@question(*FORMATS)
async def pods(questions: Questions, namespace: str | None, all_namespaces: bool, binding: str | None) -> Answer:
    """Show the pods on virtual nodes and those without a node: their twins, and why they wait or ended."""
    chosen = None if all_namespaces else namespace or questions.namespace
    found = await questions.pods(chosen, binding)
    return found, lambda wide: pods_table(found, questions.now, wide=wide)
