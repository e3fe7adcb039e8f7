"""Times at which access keys were used last. They are written to the status of the keys, after the requests."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tapestry.apis.projects import ACCESS_KEYS
from tapestry.client.client import Client
from tapestry.kube.errors import KubeError, NotFound
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.kube.times import parse_time, timestamp
from tapestry.process.logs import logger

log = logger(__name__)

WRITE_SECONDS = 10.0
"""Seconds between two writes of all keys that are due."""
MIN_INTERVAL = timedelta(minutes=5)
"""Time between two writes of the same key."""


@dataclass
class KeyUsage:
    """Uses of access keys that are not written yet."""

    client: Client
    stored: Callable[[str], Object | None]
    """Return an AccessKey by its name, which another instance of the service may have written."""
    now: Callable[[], datetime]
    _used: dict[str, datetime] = field(default_factory=dict, init=False)

    def record(self, id: str) -> None:
        """Note that a key is being used."""
        self._used[id] = self.now()

    async def run(self) -> None:
        """Write the times until cancelled."""
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            await self.write()

    async def write(self) -> None:
        """Write the times of those keys whose stored times are old. The others wait for a later call."""
        for id, time in list(self._used.items()):
            key = self.stored(id)
            if key is None:  # deleted
                del self._used[id]
                continue
            last = value_at(key, "status", "lastUsedTime")
            if last is not None and time - parse_time(last) < MIN_INTERVAL:
                continue
            try:
                status = {"lastUsedTime": timestamp(time)}
                await self.client.patch(ACCESS_KEYS, object_named(id), {"status": status}, subresource="status")
            except NotFound:
                pass
            except KubeError as error:
                log.warning("last use of an access key not written, trying again", key=id, error=str(error))
                continue
            if self._used[id] == time:
                del self._used[id]
