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

COMPLETION_TIMEOUT = 1.0
"""Seconds that somebody who pressed Tab is made to wait at most."""

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def name_completer(resource: Resource, labels: str = "") -> Completer:
    """Completes names of objects, where -n and the cluster that were given so far lead."""

    async def names(context: click.Context) -> list[str]:
        async with completion_client(context) as (client, namespace):
            return await object_names(client, resource, namespace, labels)

    return completer_for(names)


async def kinds_or_names(context: click.Context) -> list[str]:
    """What may come next after `words`: a kind, or else an object of the kind that was named first."""
    from tapestry.inspect.anykind.resource_mapper import discover, resources_named

    words = context.params.get("words") or ()
    async with completion_client(context) as (client, namespace):
        known = await discover(client)
        if not words:
            return sorted(each.resource.plural for each in known if "list" in each.verbs)
        return await object_names(client, resources_named(words[0], known)[0], namespace)


def completer_for(names: Callable[[click.Context], Coroutine[Any, Any, list[str]]]) -> Completer:
    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        try:
            found = asyncio.run(names(context))
        except Exception:  # noqa: BLE001  whatever it is, a line that is being typed is no place to say so
            return []
        return [name for name in found if name.startswith(incomplete)]

    return complete


@asynccontextmanager
async def completion_client(context: click.Context) -> "AsyncIterator[tuple[Client, str]]":
    """The cluster and the namespace that are meant, for as long as patience lasts."""
    from tapestry.cli.cluster_access import open_client, virtual_access

    given = context.params
    access = virtual_access(given.get("kubeconfig"), given.get("context"))
    async with asyncio.timeout(COMPLETION_TIMEOUT), open_client(access) as client:
        yield client, given.get("namespace") or access.namespace


async def object_names(client: "Client", resource: Resource, namespace: str, labels: str = "") -> list[str]:
    place = namespace if resource.namespaced else None
    pages = client.pages(resource, place, labels=labels, only_metadata=True)
    return [name_of(each) async for page in pages for each in page.items]


KIND_OR_NAME_COMPLETER = completer_for(kinds_or_names)
