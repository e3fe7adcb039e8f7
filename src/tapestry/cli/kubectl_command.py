"""Commands that take a `KubectlLite` for the selected cluster and namespace."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import click

from tapestry.cli.cluster_access import (
    NAMESPACE_OPTION,
    open_client,
    run_async,
    virtual_access,
    with_virtual_cluster,
)
from tapestry.inspect.anykind.kubectl_lite import KubectlLite, defaulted_note
from tapestry.kube.objects import Object
from tapestry.kube.pods import default_container

CONTAINER_OPTION = click.option(
    "--container",
    "-c",
    help="Container of the pod. [default: that of kubectl.kubernetes.io/default-container, or the first]",
)


def kubectl_command(work: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Turn a coroutine that takes a `KubectlLite` and the command's arguments into a command."""

    @wraps(work)
    def command(kubeconfig: str | None, context: str | None, namespace: str | None, **own: Any) -> None:
        async def run() -> None:
            access = virtual_access(kubeconfig, context)
            async with open_client(access) as client:
                await work(KubectlLite(client, namespace or access.namespace), **own)

        run_async(run())

    return with_virtual_cluster(NAMESPACE_OPTION(command))


def default_container_with_note(pod: Object) -> str:
    """Return the container that kubectl uses if none is named, and say so on stderr if there are others."""
    if note := defaulted_note(pod):
        click.echo(note, err=True)
    return default_container(pod)
