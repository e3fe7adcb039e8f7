"""API discovery: the resources that a server serves.

All functions raise TransportError if the response is not a discovery document.  Then it is not an API server, and a 404
from it proves nothing.
"""

import asyncio
from collections.abc import Collection
from typing import NamedTuple

from tapestry.client.client import Client
from tapestry.client.responses import OBJECT_DECODER, decode_response
from tapestry.client.retries import send_with_retries
from tapestry.client.transport import SMALL_RESPONSE_BYTES, Request
from tapestry.kube.errors import TransportError, Unavailable
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource


async def is_served(client: Client, resource: Resource) -> bool:
    if resource.group and resource.api_version not in await group_versions(client):
        return False
    document = await discovery_document(client, resource.group_version_path, "APIResourceList")
    return any(entry["name"] == resource.plural for entry in document["resources"])


class Served(NamedTuple):
    verbs: frozenset[str]
    short_names: tuple[str, ...] = ()


async def served_resources(client: Client, skip: Collection[str] = ()) -> dict[Resource, frozenset[str]]:
    """Return the served resources, each in the server's preferred version, with their verbs."""
    return {resource: served.verbs for resource, served in (await discovered_resources(client, skip)).items()}


async def discovered_resources(
    client: Client, skip: Collection[str] = (), *, skip_unavailable: bool = False
) -> dict[Resource, Served]:
    """Return the served resources, each in the server's preferred version, with their verbs and short names.

    The group versions in `skip` are ignored; with `skip_unavailable`, also those of aggregated APIs that are down.
    """
    preferred: dict[tuple[str, str], tuple[Resource, Served]] = {}
    included = [each for each in await group_versions(client) if each not in skip]
    for path, prefix in [("/api/v1", "v1"), *((f"/apis/{entry}", entry) for entry in included)]:
        group, _, version = prefix.rpartition("/")
        await asyncio.sleep(0)  # a server in this process responds without waiting
        try:
            document = await discovery_document(client, path, "APIResourceList")
        except Unavailable:
            if skip_unavailable:
                continue
            raise
        for entry in document["resources"]:
            resource = Resource(group, version, entry["kind"], entry["name"], entry["namespaced"])
            if "/" not in resource.plural:
                served = Served(frozenset(entry["verbs"]), tuple(entry.get("shortNames") or ()))
                preferred.setdefault((group, resource.plural), (resource, served))
    return dict(preferred.values())


async def group_versions(client: Client) -> list[str]:
    """Return all group versions, as in `apps/v1`.  The preferred version of each group is first."""
    groups = (await discovery_document(client, "/apis", "APIGroupList"))["groups"]
    return [version["groupVersion"] for group in groups for version in group["versions"]]


async def discovery_document(client: Client, path: str, kind: str) -> Object:
    request = Request("GET", path, max_body=SMALL_RESPONSE_BYTES)
    response = await send_with_retries(client.transport, request, "get", "discovery")
    document = decode_response(OBJECT_DECODER, response.body, str(request))
    if document.get("kind") != kind:
        raise TransportError(f"{request}: the response is not from an API server: no {kind}", maybe_sent=True)
    return document
