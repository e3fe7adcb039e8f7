"""Kinds by the names that people give them: `pods`, `po`, `Pod`, `deployments.apps`, and categories such as `all`."""

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
    """A resource that the server has, in the version that it prefers, and its other names."""

    resource: Resource
    names: frozenset[str]
    """In small letters."""
    categories: frozenset[str] = frozenset()
    verbs: frozenset[str] = frozenset()
    versions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """What a person points at: objects of a kind by their names, or all of them."""

    resource: Resource
    names: tuple[str, ...] = ()


async def send_request(client: Client, request: Request) -> Response:
    """The answer to a request that is none of the client's verbs."""
    answer = await client.transport.send(request)
    if answer.status >= 300:
        raise error_from_body(answer.status, answer.body, action=str(request))
    return answer


async def discover(client: Client) -> list[ServedResource]:
    """Everything that there is, in the order in which the server has it: two requests."""
    found: list[ServedResource] = []
    for path in ("/api", "/apis"):
        answer = msgspec.json.decode((await send_request(client, Request("GET", path, accept=DISCOVERY_ACCEPT))).body)
        if answer.get("kind") != "APIGroupDiscoveryList":
            why = "the server does not say what it has in one answer; it is older than Kubernetes 1.30"
            raise TransportError(f"GET {path}: {why}", maybe_sent=True)
        for group in answer["items"]:
            found += group_resources(group)
    return found


def group_resources(group: Object) -> Iterable[ServedResource]:
    """The resources of a group, each once."""
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
    """The kinds that a word means; of namesakes the first, as servers order their groups by weight."""
    word, _, group = name.lower().partition(".")
    found = [each.resource for each in known if word in each.names and each.resource.group == group]
    found = found or [each.resource for each in known if word in each.names and not group]
    if found:
        return found[:1]
    several = [each.resource for each in known if name in each.categories and "list" in each.verbs]
    if not several:
        raise QueryError(f"the server has no kind {name!r}; `tapestry k kinds` lists those that it has")
    return several


def resource_of_object(obj: Object, known: Sequence[ServedResource]) -> Resource | None:
    """Where an object lives, by its apiVersion and kind."""
    group, _, version = obj["apiVersion"].rpartition("/")
    for each in known:
        own = each.resource
        if (own.group, own.kind) == (group, obj["kind"]) and version in each.versions:
            return Resource(group, version, own.kind, own.plural, own.namespaced)
    return None


def parse_targets(words: Sequence[str], known: Sequence[ServedResource]) -> list[Target]:
    """`pods`, `pods,services`, `pod a b` or `pod/a deployment/b`."""
    if not words:
        raise ValueError("which kind? `tapestry k kinds` lists them")
    if "/" in words[0]:
        return [parse_target(word, known) for word in words]
    kinds = [kind for word in words[0].split(",") for kind in resources_named(word, known)]
    return [Target(kind, tuple(words[1:])) for kind in kinds]


def parse_target(word: str, known: Sequence[ServedResource]) -> Target:
    kind, slash, name = word.partition("/")
    if not (kind and slash and name):
        raise ValueError(f"{word!r}: KIND/NAME was expected, as in those before it")
    return Target(resources_named(kind, known)[0], (name,))


def display_name(resource: Resource, name: str) -> str:
    """`deployment.apps/web`"""
    kind = resource.kind.lower()
    return f"{kind}.{resource.group}/{name}" if resource.group else f"{kind}/{name}"
