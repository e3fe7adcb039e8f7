"""Names that a shell completes: of what the virtual cluster has, if it answers at once; else none, and no complaint."""

import asyncio
from collections.abc import Callable

import click

from tapestry.kube.objects import name_of
from tapestry.kube.resources import Resource

PATIENCE = 1.0
"""Seconds that somebody who pressed Tab is made to wait at most."""

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def names_of(resource: Resource, labels: str = "") -> Complete:
    """Completes names of objects, where -n and the cluster that were given so far lead."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        try:
            found = asyncio.run(listed(resource, labels, context))
        except Exception:  # noqa: BLE001  whatever it is, a line that is being typed is no place to say so
            return []
        return [name for name in found if name.startswith(incomplete)]

    return complete


async def listed(resource: Resource, labels: str, context: click.Context) -> list[str]:
    from tapestry.cli.clusters import opened, virtual_access

    given = context.params
    access = virtual_access(given.get("kubeconfig"), given.get("context"))
    namespace = (given.get("namespace") or access.namespace) if resource.namespaced else None
    async with asyncio.timeout(PATIENCE), opened(access) as client:
        pages = client.pages(resource, namespace, labels=labels, only_metadata=True)
        return [name_of(each) async for page in pages for each in page.items]
