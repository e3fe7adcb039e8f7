"""What containers wrote, in pieces as they come."""

import dataclasses
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from tapestry.client.client import Client
from tapestry.client.metrics import REQUESTS
from tapestry.client.streams import require_success
from tapestry.client.transport import Request
from tapestry.kube.resources import PODS

FOLLOW_TIMEOUT = 24 * 3600.0
"""Seconds for a log that is followed to begin: some servers say nothing before the container does."""


@asynccontextmanager
async def pod_log(
    client: Client, name: str, namespace: str | None, query: Mapping[str, str]
) -> AsyncIterator[AsyncIterator[bytes]]:
    """The log of a container of a pod; `query` are PodLogOptions.

    An error is raised when the context is entered, or by the connection later on.
    """
    request = Request("GET", PODS.path(namespace, name, "log"), query, accept="*/*")
    if query.get("follow") == "true":
        request = dataclasses.replace(request, timeout=FOLLOW_TIMEOUT)
    async with client.transport.stream(request) as stream:
        REQUESTS.inc("get", "pods/log", str(stream.status))
        yield (await require_success(stream, str(request))).chunks()
