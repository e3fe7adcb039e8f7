"""Streaming of container logs."""

import dataclasses
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from tapestry.client.client import Client
from tapestry.client.metrics import REQUESTS
from tapestry.client.streams import require_success
from tapestry.client.transport import Request
from tapestry.kube.resources import PODS

FOLLOW_TIMEOUT = 24 * 3600.0
"""Seconds until a followed log must start: some servers send nothing before the container writes."""


@asynccontextmanager
async def pod_log(
    client: Client, name: str, namespace: str | None, query: Mapping[str, str]
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Open the log of a container.  `query` holds PodLogOptions.

    Errors are raised on entering the context, or later by the connection.
    """
    request = Request("GET", PODS.path(namespace, name, "log"), query, accept="*/*")
    if query.get("follow") == "true":
        request = dataclasses.replace(request, timeout=FOLLOW_TIMEOUT)
    async with client.transport.stream(request) as stream:
        REQUESTS.inc("get", "pods/log", str(stream.status))
        yield (await require_success(stream, str(request))).chunks()
