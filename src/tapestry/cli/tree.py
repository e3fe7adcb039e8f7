"""`tapestry tree`: everything at a glance."""

import click

from tapestry.cli.clusters import BINDING, Answer, question
from tapestry.cli.manual import manual
from tapestry.inspect.questions import Questions
from tapestry.inspect.tables import tree_text


@click.command(epilog=manual("tapestry tree", "tapestry tree --binding east -o json"))
@BINDING
@question("text", "json", "yaml")
async def tree(questions: Questions, binding: str | None) -> Answer:
    """Show the virtual cluster as a tree: its bindings, their nodes, and the pods there with their twins."""
    found = await questions.tree(binding)
    return found, lambda _: tree_text(found)
