"""Shell completion of object names, read from the virtual cluster within a short timeout."""

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
"""Longest time in seconds that completion makes the user wait."""

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def name_completer(resource: Resource, labels: str = "") -> Completer:
    """Return a completer for object names; it respects -n and the cluster options given so far."""

    async def names(context: click.Context) -> list[str]:
        async with completion_client(context) as (client, namespace):
            return await object_names(client, resource, namespace, labels)

    return completer_for(names)


async def kinds_or_names(context: click.Context) -> list[str]:
    """Complete a kind, or the names of objects of the kind given first."""
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
        except Exception:  # noqa: BLE001  completion must not print errors into the command line
            return []
        return [name for name in found if name.startswith(incomplete)]

    return complete


@asynccontextmanager
async def completion_client(context: click.Context) -> "AsyncIterator[tuple[Client, str]]":
    """Open the selected cluster for at most `COMPLETION_TIMEOUT`; yield its client and the namespace."""
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
