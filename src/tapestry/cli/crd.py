"""`tapestry crd`: CustomResourceDefinitions of the registered kinds."""

import click
import yaml

from tapestry.cli.help_text import help_epilog
from tapestry.cli.registry import load_registry
from tapestry.kube.crds import crd as definition_of


@click.command(epilog=help_epilog("tapestry crd | kubectl apply -f -"))
def crd() -> None:
    """Print the CustomResourceDefinition of every registered kind, for `kubectl apply -f -`."""
    for kind in load_registry().kinds:
        click.echo("---")
        click.echo(yaml.safe_dump(definition_of(kind), sort_keys=False, allow_unicode=True), nl=False)
