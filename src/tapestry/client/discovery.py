"""What an API server has, as it says itself.

Raised is TransportError where there is no such account: what answers is no API server, and its 404 says nothing.
"""

from tapestry.client.client import Client
from tapestry.client.responses import OBJECT_DECODER, decode_response
from tapestry.client.retries import send_with_retries
from tapestry.client.transport import SMALL_RESPONSE_BYTES, Request
from tapestry.kube.errors import TransportError
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource


async def is_served(client: Client, resource: Resource) -> bool:
    """Whether the server has the resource, in that version."""
    if resource.group and resource.api_version not in await group_versions(client):
        return False
    found = await discovery_document(client, resource.group_version_path, "APIResourceList")
    return any(each["name"] == resource.plural for each in found["resources"])


async def served_resources(client: Client) -> dict[Resource, frozenset[str]]:
    """What the server has, each resource in the version that it prefers, and the verbs that it can be used with."""
    found: dict[tuple[str, str], tuple[Resource, frozenset[str]]] = {}
    for path, prefix in [("/api/v1", "v1"), *((f"/apis/{each}", each) for each in await group_versions(client))]:
        group, _, version = prefix.rpartition("/")
        for each in (await discovery_document(client, path, "APIResourceList"))["resources"]:
            resource = Resource(group, version, each["kind"], each["name"], each["namespaced"])
            if "/" not in resource.plural:
                found.setdefault((group, resource.plural), (resource, frozenset(each["verbs"])))
    return dict(found.values())


async def group_versions(client: Client) -> list[str]:
    """`apps/v1`, `batch/v1`: of each group the version that the server prefers comes first."""
    groups = (await discovery_document(client, "/apis", "APIGroupList"))["groups"]
    return [each["groupVersion"] for group in groups for each in group["versions"]]


async def discovery_document(client: Client, path: str, kind: str) -> Object:
    request = Request("GET", path, max_body=SMALL_RESPONSE_BYTES)
    answer = await send_with_retries(client.transport, request, "get", "discovery")
    found = decode_response(OBJECT_DECODER, answer.body, str(request))
    if found.get("kind") != kind:
        raise TransportError(f"{request}: the answer is not Kubernetes' own: no {kind}", maybe_sent=True)
    return found
