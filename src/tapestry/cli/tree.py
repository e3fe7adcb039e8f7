"""`tapestry tree`: everything at a glance."""

import click

from tapestry.cli.clusters import Answer, question
from tapestry.inspect.questions import Questions
from tapestry.inspect.tables import tree_text


@click.command()
@click.option("--binding", help="Only this ClusterBinding.")
@question("text", "json", "yaml")
async def tree(questions: Questions, binding: str | None) -> Answer:
    """Show the virtual cluster as a tree: its bindings, their nodes, and the pods there with their twins."""
    found = await questions.tree(binding)
    return found, lambda _: tree_text(found)
