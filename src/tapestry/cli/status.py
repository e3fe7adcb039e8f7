"""`tapestry status`, `tapestry nodes` and `tapestry policies`: what is lent, in tables."""

import click

from tapestry.cli.clusters import Answer, question
from tapestry.cli.manual import manual
from tapestry.cli.output import FORMATS
from tapestry.inspect.questions import Questions
from tapestry.inspect.tables import bindings_table, nodes_table, policies_table


@click.command(epilog=manual("tapestry status", "tapestry status -o wide", "tapestry status --context compute -o json"))
@question(*FORMATS)
async def status(questions: Questions) -> Answer:
    """Show the clusters that have joined, what they lend, and what is wrong with them."""
    found = await questions.bindings()
    return found, lambda wide: bindings_table(found, questions.now, wide=wide)


@click.command(epilog=manual("tapestry nodes", "tapestry nodes -o wide"))
@question(*FORMATS)
async def nodes(questions: Questions) -> Answer:
    """Show the virtual nodes: what each lends, what is used of it, and until when."""
    found = await questions.nodes()
    return found, lambda wide: nodes_table(found, questions.now, wide=wide)


@click.command(epilog=manual("tapestry policies", "tapestry policies -o wide --time-zone Asia/Shanghai"))
@question(*FORMATS, zoned=True)
async def policies(questions: Questions) -> Answer:
    """Show the policies of both sides; an owner's, where the binding's kubeconfig may be read and works."""
    found, unseen = await questions.policies()
    for sentence in unseen:
        click.echo(sentence, err=True)
    return found, lambda wide: policies_table(found, questions.now, wide=wide)
