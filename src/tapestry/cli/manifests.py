"""`tapestry manifests`: objects that install Tapestry in a virtual cluster."""

import click
import yaml

from tapestry.apis.keys import SYSTEM_NAMESPACE
from tapestry.cli.help_text import command
from tapestry.manager.config import DEFAULT_IMAGE
from tapestry.manager.installation import installation_objects


@command("tapestry manifests | kubectl apply -f -", "tapestry manifests --replicas 1 -n tapestry")
@click.option("--image", default=DEFAULT_IMAGE, show_default=True, help="Image of the manager and the syncers.")
@click.option("--replicas", default=2, show_default=True, type=click.IntRange(1, 10), help="Number of manager pods.")
@click.option("--namespace", "-n", default=SYSTEM_NAMESPACE, show_default=True, help="Namespace for Tapestry's pods.")
@click.option("--kubeconfig-namespace", multiple=True, help="Another namespace to read kubeconfig Secrets from.")
def manifests(image: str, replicas: int, namespace: str, kubeconfig_namespace: tuple[str, ...]) -> None:
    """Print the objects that install Tapestry in a virtual cluster, for `kubectl apply -f -`."""
    found = installation_objects(
        image=image, replicas=replicas, namespace=namespace, kubeconfig_namespaces=kubeconfig_namespace
    )
    click.echo(yaml.safe_dump_all(found, sort_keys=False, allow_unicode=True, explicit_start=True), nl=False)
