"""Wait for an object to become something, on a watch: no polling."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from tapestry.client.client import Client
from tapestry.client.watch import Changes, ListPage, ListStart, Synced, Watch
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import Object, version_of
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
    """The object as soon as `until` holds for it (None: it is not there).

    TimeoutError says how it was last, by its status only: it may be a Secret.
    """
    trouble = ""

    def note(error: KubeError, _pause: float) -> None:
        nonlocal trouble
        trouble = f"; the watch broke last with {error}"

    watch = Watch(client, resource, namespace, fields=f"metadata.name={name}", on_restart=note)
    last: Object | None = None
    try:
        async with asyncio.timeout(timeout), aclosing(watch.events()) as events:
            async for event in events:
                match event:
                    case ListStart():
                        last = None
                        continue
                    case ListPage(items):
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
        found = f"was last at version {version_of(last)} with status {last.get('status')}" if last else "was not there"
        raise TimeoutError(f"{resource.kind} {place} did not get there in {timeout:g} s; it {found}{trouble}") from None
    raise AssertionError("a watch has no end")
