"""Waiting for the state of one object, on a watch."""

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
    """Return the object as soon as `until` holds for it (None means that it does not exist).

    The TimeoutError shows the last status only, because the object may be a Secret.
    """
    last_error = ""

    def record_error(error: KubeError, _pause: float) -> None:
        nonlocal last_error
        last_error = f"; the last watch error was {error}"

    watch = Watch(client, resource, namespace, fields=f"metadata.name={name}", on_restart=record_error)
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
        state = f"was last at version {version_of(last)} with status {last.get('status')}" if last else "did not exist"
        raise TimeoutError(f"{resource.kind} {place}: timed out after {timeout:g} s; it {state}{last_error}") from None
    raise AssertionError("a watch never ends")
