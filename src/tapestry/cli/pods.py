"""`tapestry pods`: what runs on leased nodes, where, and what does not."""

import click

from tapestry.cli.clusters import BINDING, EVERYWHERE, NAMESPACE, Answer, question
from tapestry.cli.manual import manual
from tapestry.cli.output import FORMATS
from tapestry.inspect.questions import Questions
from tapestry.inspect.tables import pods_table


@click.command(epilog=manual("tapestry pods", "tapestry pods -A -o wide", "tapestry pods -n team-a --binding east"))
@NAMESPACE
@EVERYWHERE
@BINDING
@question(*FORMATS)
async def pods(questions: Questions, namespace: str | None, everywhere: bool, binding: str | None) -> Answer:
    """Show the pods on virtual nodes and those without a node: their twins, and why they wait or ended."""
    chosen = None if everywhere else namespace or questions.namespace
    found = await questions.pods(chosen, binding)
    return found, lambda wide: pods_table(found, questions.now, wide=wide)
