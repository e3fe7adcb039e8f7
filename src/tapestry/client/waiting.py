"""Wait for an object to become something, on a watch: no polling."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from tapestry.client.client import Client
from tapestry.client.watch import Changes, Listing, Page, Synced, Watch
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource


async def wait_for(
    client: Client,
    resource: Resource,
    name: str,
    namespace: str | None = None,
    *,
    until: Callable[[Object | None], bool],
    timeout: float = 30.0,
) -> Object | None:
    """The object as soon as `until` holds for it (None: it is not there); TimeoutError says what it was last."""
    watch = Watch(client, resource, namespace, fields=f"metadata.name={name}")
    last: Object | None = None
    try:
        async with asyncio.timeout(timeout), aclosing(watch.events()) as events:
            async for event in events:
                match event:
                    case Listing():
                        last = None
                        continue
                    case Page(items):
                        last = items[-1] if items else last
                        continue
                    case Changes(changes):
                        for type, obj in changes:
                            last = None if type == "DELETED" else obj
                            if until(last):
                                return last
                    case Synced() if until(last):
                        return last
    except TimeoutError:
        place = f"{namespace}/{name}" if namespace else name
        raise TimeoutError(f"{resource.kind} {place} did not get there in {timeout:g} s; it is {last}") from None
    raise AssertionError("a watch has no end")
