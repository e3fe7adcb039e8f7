"""Names that a shell completes: of what the virtual cluster has, if it answers at once; else none, and no complaint."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from tapestry.kube.objects import name_of
from tapestry.kube.resources import Resource

if TYPE_CHECKING:
    from tapestry.client.client import Client

PATIENCE = 1.0
"""Seconds that somebody who pressed Tab is made to wait at most."""

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def names_of(resource: Resource, labels: str = "") -> Complete:
    """Completes names of objects, where -n and the cluster that were given so far lead."""

    async def names(context: click.Context) -> list[str]:
        async with asked(context) as (client, namespace):
            return await listed(client, resource, namespace, labels)

    return completing(names)


async def pointed_at(context: click.Context) -> list[str]:
    """What may come next after `words`: a kind, or else an object of the kind that was named first."""
    from tapestry.inspect.anykind.kinds import named_so, served

    words = context.params.get("words") or ()
    async with asked(context) as (client, namespace):
        known = await served(client)
        if not words:
            return sorted(each.resource.plural for each in known if "list" in each.verbs)
        return await listed(client, named_so(words[0], known)[0], namespace)


def completing(names: Callable[[click.Context], Coroutine[Any, Any, list[str]]]) -> Complete:
    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        try:
            found = asyncio.run(names(context))
        except Exception:  # noqa: BLE001  whatever it is, a line that is being typed is no place to say so
            return []
        return [name for name in found if name.startswith(incomplete)]

    return complete


@asynccontextmanager
async def asked(context: click.Context) -> "AsyncIterator[tuple[Client, str]]":
    """The cluster and the namespace that are meant, for as long as patience lasts."""
    from tapestry.cli.clusters import opened, virtual_access

    given = context.params
    access = virtual_access(given.get("kubeconfig"), given.get("context"))
    async with asyncio.timeout(PATIENCE), opened(access) as client:
        yield client, given.get("namespace") or access.namespace


async def listed(client: "Client", resource: Resource, namespace: str, labels: str = "") -> list[str]:
    place = namespace if resource.namespaced else None
    pages = client.pages(resource, place, labels=labels, only_metadata=True)
    return [name_of(each) async for page in pages for each in page.items]


KINDS_AND_NAMES = completing(pointed_at)
