"""Plain REST: what is asked, what it takes of the API server, and what is answered.

Whoever carries requests to the API server (`Transport`) does so in the name of the caller, whose rights they are judged
by there: nothing is decided here.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import msgspec

from tapestry.apiext import flat
from tapestry.apiext.kinds import VERBS, Kinds, shortest_name
from tapestry.apiext.openapi import document
from tapestry.apiext.questions import Candidate, Question, question
from tapestry.apiext.refusals import bad_input, flat_error, not_allowed, not_found
from tapestry.client.answers import OBJECTS, decoded
from tapestry.client.transport import JSON, Request, Transport
from tapestry.kube.errors import ApiError, TooLarge, TransportError, UnsupportedMediaType, error_from_body
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource
from tapestry.process.logs import logger

log = logger(__name__)

ROOT = "/apiext"
BATCH = 500
"""Objects that the server is asked for at a time."""
MOST_READ = 20_000
"""Objects of a kind that are filtered and sorted; of more than these, a namespace or a cursor must do."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request; `path` is below /apiext and no longer quoted."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    content_type: str = ""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer in JSON."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class PlainApi:
    """Answers for the kinds it is given."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds

    async def answer(self, ask: Ask, api: Transport) -> Reply:
        """What is to be sent back; refusals are answers, too."""
        try:
            return await self._answer(ask, api)
        except ApiError as error:
            return refusal(error)
        except TransportError as error:  # its words tell where the API server is, which is none of a page's business
            log.warning("no answer of the API server", asked=f"{ask.method} {ask.path}", error=error)
            return reply(
                502, {"code": 502, "reason": "BadGateway", "message": "the API server gave no answer; try again"}
            )

    async def _answer(self, ask: Ask, api: Transport) -> Reply:
        match ask.path.strip("/").split("/"):
            case ["openapi.json"]:
                only(ask, "GET")
                return reply(200, document())
            case ["v1"]:
                only(ask, "GET")
                return await self._index(api)
            case ["v1", kind]:
                only(ask, "GET", "POST")
                resource = await self._kinds.find(kind, api)
                return await (listed if ask.method != "POST" else created)(ask, resource, api)
            case ["v1", kind, name]:
                only(ask, "GET", "DELETE")
                resource = await self._kinds.find(kind, api)
                return await (shown if ask.method != "DELETE" else deleted)(ask, resource, name, api)
        raise not_found(f"there is nothing at {ask.path or '/'}; there are {ROOT}/v1 and {ROOT}/openapi.json")

    async def _index(self, api: Transport) -> Reply:
        served = await self._kinds.all(api)
        listed = [
            {
                "name": (name := shortest_name(resource, served)),
                "kind": resource.kind,
                "group": resource.group,
                "version": resource.version,
                "namespaced": resource.namespaced,
                "verbs": [verb for verb in VERBS if verb in verbs],
                "path": f"{ROOT}/v1/{name}",
            }
            for resource, verbs in served.items()
        ]
        return reply(200, {"kinds": sorted(listed, key=lambda each: str(each["name"]))})


async def listed(ask: Ask, resource: Resource, api: Transport) -> Reply:
    asked = question(ask.query)
    if asked.namespace and not resource.namespaced:
        raise bad_input(f"namespace: {resource.name} are in none; leave it out")
    return await (every if asked.is_about_all else some)(asked, resource, api)


async def some(asked: Question, resource: Resource, api: Transport) -> Reply:
    """A page of the server's own."""
    found = await page(asked, resource, api, asked.limit, asked.cursor)
    items = [flat.outline(each, resource) for each in found["items"] or ()]
    following = found["metadata"].get("continue") or None
    left = found["metadata"].get("remainingItemCount") if following else 0
    total = None if asked.cursor or left is None else len(items) + left  # how many went before a cursor, nobody knows
    unpaged = {"page": None, "pages": None, "next": following}
    return reply(200, {"items": items, "total": total, "limit": asked.limit, **unpaged})


async def every(asked: Question, resource: Resource, api: Transport) -> Reply:
    """A page of ours, of all that match."""
    matching: list[Candidate] = []
    read, following = 0, ""
    while True:
        found = await page(asked, resource, api, BATCH, following)
        candidates = (Candidate(each, flat.whole(each, resource)) for each in found["items"] or ())
        matching += [each for each in candidates if asked.matches(each)]
        read += len(found["items"] or ())
        following = found["metadata"].get("continue") or ""
        if not following:
            break
        if read >= MOST_READ:
            told = "ask for one namespace, or go through them by cursor, without filter, sort and page"
            raise TooLarge(413, "TooLarge", f"there are more than {MOST_READ} {resource.name}; {told}")
        await asyncio.sleep(0)  # a server in this process answers without waiting; let others have their turn
    total = len(matching)
    items = [flat.outline(each.obj, resource) for each in asked.chosen(matching)]
    paged = {"page": asked.page or 1, "pages": asked.pages(total), "next": None}
    return reply(200, {"items": items, "total": total, "limit": asked.limit, **paged})


async def page(asked: Question, resource: Resource, api: Transport, limit: int, cursor: str) -> Object:
    query = {"limit": str(limit), **({"continue": cursor} if cursor else {})}
    return await exchanged(Request("GET", path_of(resource, asked.namespace), query), api)


async def shown(ask: Ask, resource: Resource, name: str, api: Transport) -> Reply:
    found = await exchanged(Request("GET", path_of(resource, namespace_in(ask, resource), name)), api)
    return reply(200, flat.whole(found, resource))


async def created(ask: Ask, resource: Resource, api: Transport) -> Reply:
    if ask.content_type.partition(";")[0].strip().lower() != JSON:
        why = f"Content-Type: {ask.content_type or 'nothing'} is not understood; send {JSON}"
        raise UnsupportedMediaType(415, "UnsupportedMediaType", why)
    wanted = flat.posted(read(ask.body), resource, only_namespace(ask))
    path = path_of(resource, wanted["metadata"].get("namespace"))
    # Strict: what is misspelled would else be dropped without a word.
    request = Request("POST", path, {"fieldValidation": "Strict"}, msgspec.json.encode(wanted))
    made = flat.whole(await exchanged(request, api), resource)
    where = f"?namespace={quote(made['namespace'])}" if made["namespace"] else ""
    return reply(201, made, {"Location": f"{ROOT}/v1/{resource.name}/{quote(made['name'])}{where}"})


async def deleted(ask: Ask, resource: Resource, name: str, api: Transport) -> Reply:
    namespace = namespace_in(ask, resource)
    found = await exchanged(Request("DELETE", path_of(resource, namespace, name)), api)
    lingers = found.get("kind") != "Status" and "deletionTimestamp" in found["metadata"]
    return reply(202 if lingers else 200, {"name": name, "namespace": namespace, "deleted": not lingers})


async def exchanged(request: Request, api: Transport) -> Object:
    """What the API server answers; raises the error that it answers with."""
    answer = await api.send(request)
    if answer.status >= 300:
        raise error_from_body(answer.status, answer.body)
    return decoded(OBJECTS, answer.body, str(request))


def read(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_input(f"the body is not JSON: {error}") from error


def namespace_in(ask: Ask, resource: Resource) -> str | None:
    """The namespace of the object that is meant."""
    return flat.placed(None, only_namespace(ask), resource)


def only_namespace(ask: Ask) -> str | None:
    for name in ask.query:
        if name != "namespace":
            raise bad_input(f"{name}: there is no such parameter here; there is namespace")
    return ask.query.get("namespace") or None


def path_of(resource: Resource, namespace: str | None, name: str | None = None) -> str:
    try:
        return resource.path(namespace, name)
    except (ValueError, TypeError) as error:
        raise bad_input(str(error)) from error


def only(ask: Ask, *methods: str) -> None:
    if ask.method not in methods and not (ask.method == "HEAD" and "GET" in methods):
        raise not_allowed(ask.method, ", ".join(methods))


def reply(status: int, body: Object, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, msgspec.json.encode(body), headers or {})


def refusal(error: ApiError) -> Reply:
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(int(error.retry_after))
    if error.code == 405 and "allowed" in error.details:
        headers["Allow"] = str(error.details["allowed"])
    if error.code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return reply(error.code, flat_error(error), headers)
