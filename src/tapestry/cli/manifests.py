"""`tapestry manifests` and `tapestry uninstall-check`: installation of Tapestry in a virtual cluster."""

from collections.abc import Iterable
from typing import Any

import click
import yaml

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.keys import SYSTEM_NAMESPACE
from tapestry.apis.release import RELEASE_IMAGE, install_command
from tapestry.cli.cluster_access import open_client, run_async, virtual_access, with_virtual_cluster
from tapestry.cli.help_text import command
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, name_of
from tapestry.manager.config import DEFAULT_REPLICAS, PROFILES
from tapestry.manager.installation import installation_objects, management_objects
from tapestry.manager.join_steps import JoinError


@command(
    install_command(),
    "tapestry manifests --image IMAGE --replicas 1 -n tapestry",
    "tapestry manifests --management | kubectl apply --kubeconfig management.yaml -f -",
)
@click.option(
    "--image",
    default=RELEASE_IMAGE,
    show_default=bool(RELEASE_IMAGE),
    help="Image of the manager and the syncers.  Required unless this version is a release.",
)
@click.option(
    "--replicas",
    default=DEFAULT_REPLICAS,
    show_default=True,
    type=click.IntRange(1, 10),
    help="Number of manager pods; one is active.",
)
@click.option(
    "--profile",
    default="small",
    show_default=True,
    type=click.Choice(tuple(PROFILES)),
    help="Resources of the manager: small up to 100 nodes, medium up to 1,000, large above.",
)
@click.option("--namespace", "-n", default=SYSTEM_NAMESPACE, show_default=True, help="Namespace for Tapestry's pods.")
@click.option("--kubeconfig-namespace", multiple=True, help="Another namespace to read kubeconfig Secrets from.")
@click.option(
    "--issue-tokens",
    is_flag=True,
    help="Let the manager issue tokens of syncers, which it needs for syncers in another cluster.",
)
@click.option(
    "--management",
    is_flag=True,
    help="Print only what another cluster needs for syncers to run there.",
)
@click.option(
    "--no-admission-policies",
    is_flag=True,
    help="Omit the ValidatingAdmissionPolicies that restrict Tapestry's accounts, for Kubernetes before 1.30.",
)
def manifests(
    image: str,
    replicas: int,
    profile: str,
    namespace: str,
    kubeconfig_namespace: tuple[str, ...],
    issue_tokens: bool,
    management: bool,
    no_admission_policies: bool,
) -> None:
    """Print the objects that install Tapestry in a virtual cluster, for `kubectl apply -f -`."""
    if management:
        print_objects(management_objects(namespace))
        return
    if not image:
        raise click.UsageError("this version is not a release, which would name an image: pass --image")
    found = installation_objects(
        image=image,
        replicas=replicas,
        namespace=namespace,
        kubeconfig_namespaces=kubeconfig_namespace,
        profile=profile,
        issues_tokens=issue_tokens,
        has_admission_policies=not no_admission_policies,
    )
    print_objects(found)


def print_objects(objects: Iterable[Object]) -> None:
    click.echo(yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, explicit_start=True), nl=False)


@command("tapestry uninstall-check")
@with_virtual_cluster
def uninstall_check(**options: Any) -> None:
    """Fail while ClusterBindings exist: without Tapestry, their leases would not end.

    The chart runs this before it is uninstalled.
    """
    run_async(check_bindings(options))


async def check_bindings(options: dict[str, Any]) -> None:
    async with open_client(virtual_access(options["kubeconfig"], options["context"])) as client:
        try:
            names = sorted(map(name_of, await client.list(CLUSTER_BINDINGS)))
        except NotFound:  # the CustomResourceDefinition is not installed
            names = []
    if names:
        listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        raise JoinError(f"{len(names)} ClusterBindings exist: {listed}; run `tapestry unjoin` for each first")
    click.echo("no ClusterBinding exists: Tapestry can be uninstalled")
