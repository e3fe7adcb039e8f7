"""`tapestry crd`: what a cluster has to be told about our kinds."""

import click
import yaml

from tapestry.cli.manual import manual
from tapestry.cli.registry import the_registry
from tapestry.kube.crds import crd as definition_of


@click.command(epilog=manual("tapestry crd | kubectl apply -f -"))
def crd() -> None:
    """Print the CustomResourceDefinition of every registered kind, for `kubectl apply -f -`."""
    for kind in the_registry().kinds:
        click.echo("---")
        click.echo(yaml.safe_dump(definition_of(kind), sort_keys=False, allow_unicode=True), nl=False)
