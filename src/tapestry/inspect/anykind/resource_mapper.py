"""Resources by user-visible names: `pods`, `po`, `Pod`, `deployments.apps`, and categories."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from tapestry.client.client import Client
from tapestry.client.transport import Request, Response
from tapestry.inspect.snapshots import QueryError
from tapestry.kube.errors import TransportError, error_from_body
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource

DISCOVERY_ACCEPT = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@dataclass(frozen=True)
class ServedResource:
    """A served resource in its preferred version, with its other names."""

    resource: Resource
    names: frozenset[str]
    """Names in lower case."""
    categories: frozenset[str] = frozenset()
    verbs: frozenset[str] = frozenset()
    versions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """Objects of a kind selected by name; all of them without names."""

    resource: Resource
    names: tuple[str, ...] = ()


async def send_request(client: Client, request: Request) -> Response:
    """Send a request for which the client has no method; raise the error that the server returns."""
    response = await client.transport.send(request)
    if response.status >= 300:
        raise error_from_body(response.status, response.body, action=str(request))
    return response


async def discover(client: Client) -> list[ServedResource]:
    """Return all served resources in the server's order, with two requests."""
    found: list[ServedResource] = []
    for path in ("/api", "/apis"):
        document = msgspec.json.decode((await send_request(client, Request("GET", path, accept=DISCOVERY_ACCEPT))).body)
        if document.get("kind") != "APIGroupDiscoveryList":
            message = "the server does not support aggregated discovery; it is older than Kubernetes 1.30"
            raise TransportError(f"GET {path}: {message}", maybe_sent=True)
        for group in document["items"]:
            found += group_resources(group)
    return found


def group_resources(group: Object) -> Iterable[ServedResource]:
    name = group["metadata"].get("name", "")
    known: dict[str, ServedResource] = {}
    for version in group["versions"]:
        for each in version.get("resources") or ():
            plural = each["resource"]
            if (before := known.get(plural)) is None:
                known[plural] = served_resource(name, version["version"], each)
            else:
                known[plural] = replace(before, versions=(*before.versions, version["version"]))
    return known.values()


def served_resource(group: str, version: str, resource_doc: Object) -> ServedResource:
    kind, plural = resource_doc["responseKind"]["kind"], resource_doc["resource"]
    resource = Resource(group, version, kind, plural, resource_doc["scope"] == "Namespaced")
    names = {plural, resource_doc.get("singularResource") or kind, kind, *(resource_doc.get("shortNames") or ())}
    return ServedResource(
        resource,
        frozenset(map(str.lower, names)),
        frozenset(resource_doc.get("categories") or ()),
        frozenset(resource_doc["verbs"]),
        (version,),
    )


def resources_named(name: str, known: Sequence[ServedResource]) -> list[Resource]:
    """Return the resources that a name or category means; of several, the server's first group wins."""
    word, _, group = name.lower().partition(".")
    found = [each.resource for each in known if word in each.names and each.resource.group == group]
    found = found or [each.resource for each in known if word in each.names and not group]
    if found:
        return found[:1]
    several = [each.resource for each in known if name in each.categories and "list" in each.verbs]
    if not several:
        raise QueryError(f"the server has no kind {name!r}; `tapestry k kinds` lists the available kinds")
    return several


def resource_of_object(obj: Object, known: Sequence[ServedResource]) -> Resource | None:
    group, _, version = obj["apiVersion"].rpartition("/")
    for each in known:
        resource = each.resource
        if (resource.group, resource.kind) == (group, obj["kind"]) and version in each.versions:
            return Resource(group, version, resource.kind, resource.plural, resource.namespaced)
    return None


def parse_targets(words: Sequence[str], known: Sequence[ServedResource]) -> list[Target]:
    """Parse `pods`, `pods,services`, `pod a b` or `pod/a deployment/b`."""
    if not words:
        raise ValueError("specify a kind; `tapestry k kinds` lists them")
    if "/" in words[0]:
        return [parse_target(word, known) for word in words]
    kinds = [kind for word in words[0].split(",") for kind in resources_named(word, known)]
    return [Target(kind, tuple(words[1:])) for kind in kinds]


def parse_target(word: str, known: Sequence[ServedResource]) -> Target:
    kind, slash, name = word.partition("/")
    if not (kind and slash and name):
        raise ValueError(f"{word!r}: expected KIND/NAME, like the words before it")
    return Target(resources_named(kind, known)[0], (name,))


def display_name(resource: Resource, name: str) -> str:
    """Return `deployment.apps/web`."""
    kind = resource.kind.lower()
    return f"{kind}.{resource.group}/{name}" if resource.group else f"{kind}/{name}"
