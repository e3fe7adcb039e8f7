"""The server: from a request to an answer, without a socket in sight.

Who asks has been found out before (`Call.user`); whether they may is asked here, before anything is read or done.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tapestry.apiserver import discovery, refusals, views
from tapestry.apiserver.codec import JSON, accepted, chosen_form, decoded, media_type
from tapestry.apiserver.openapi import Documents
from tapestry.apiserver.requests import Call, Target, User, number, target_of
from tapestry.apiserver.rows import Rows
from tapestry.apiserver.verbs import APPLY_PATCH, Request, Verbs
from tapestry.apiserver.watches import Watching, line
from tapestry.kube.errors import ApiError, Gone
from tapestry.kube.objects import Object

TRUE = ("1", "true")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attributes:
    """What somebody wants to do: to a resource, or to a path that is none."""

    user: User
    verb: str
    target: Target | None = None
    path: str = ""


Authorize = Callable[[Attributes], bool]
Handler = Callable[[Call, Target], Awaitable[Answer]]


def everybody_may(_: Attributes) -> bool:
    return True


@dataclass(frozen=True)
class Server:
    """Answers calls.  `special` has the subresources that are not a view of the object's own."""

    rows: Rows
    verbs: Verbs
    version: Object
    authorize: Authorize = everybody_may
    special: Mapping[tuple[str, str], Handler] = field(default_factory=dict)
    """By resource and subresource: `("pods", "eviction")`; POSTs to a resource that is not stored have none."""
    address: str = ""
    documents: Documents | None = None

    async def answer(self, call: Call) -> Answer | Watching:
        """What is to be sent back; refusals are answers, too."""
        try:
            return await self.served(call)
        except ApiError as error:
            return refused(error)

    async def served(self, call: Call) -> Answer | Watching:
        if (found := self.about_itself(call)) is not None:
            return found
        target = target_of(call.path, self.rows)
        verb = verb_of(call, target)
        if not self.authorize(Attributes(call.user, verb, target)):
            raise refusals.forbidden(call.user.name, verb, target)
        handler = self.special.get((target.row.resource.name, target.subresource))
        if handler is not None:
            return await handler(call, target)
        if target.name:
            return await self.served_object(call, target)
        return await self.served_collection(call, target)

    # -- the server itself

    def about_itself(self, call: Call) -> Answer | None:
        """What is under paths that name no resource; None where the path may name one."""
        segments = call.path.strip("/").split("/")
        document = self.document(call, segments)
        if document is None:
            return None
        if call.method not in ("GET", "HEAD"):
            raise refusals.not_allowed()
        if not self.authorize(Attributes(call.user, "get", path=call.path)):
            raise refusals.forbidden_path(call.user.name, "get", call.path)
        return document

    def document(self, call: Call, segments: list[str]) -> Answer | None:
        groups = self.rows.groups()
        match segments:
            case ["version"]:
                return answered(200, self.version)
            case ["healthz" | "livez" | "readyz", *_]:
                return Answer(200, b"ok", "text/plain; charset=utf-8")
            case ["openapi", "v3", *rest]:
                return self.openapi(rest)
            case ["api" | "apis" as root]:
                return self.roots(call, legacy=root == "api")
            case ["api", "v1"]:
                return answered(200, discovery.api_resources("", "v1", groups[""]["v1"]))
            case ["apis", group] if group in groups:
                return answered(200, discovery.api_group(group, list(groups[group])))
            case ["apis", group, version] if version in groups.get(group, ()):
                return answered(200, discovery.api_resources(group, version, groups[group][version]))
        return None

    def openapi(self, rest: list[str]) -> Answer | None:
        if self.documents is None:
            return None
        try:
            match rest:
                case []:
                    return answered(200, self.documents.index())
                case ["api", version]:
                    return Answer(200, self.documents.document("", version))
                case ["apis", group, version]:
                    return Answer(200, self.documents.document(group, version))
        except KeyError:
            return None
        return None

    def roots(self, call: Call, *, legacy: bool) -> Answer:
        for each in accepted(call.headers.get("accept", "")):
            if each.form == discovery.AGGREGATED and each.parameters.get("v") == "v2":
                content_type = f"{JSON};g=apidiscovery.k8s.io;v=v2;as={discovery.AGGREGATED}"
                return answered(200, discovery.aggregated(self.rows, legacy=legacy), content_type)
            if not each.form:
                break
        return answered(200, discovery.api_versions(self.address) if legacy else discovery.api_groups(self.rows))

    # -- resources

    async def served_collection(self, call: Call, target: Target) -> Answer | Watching:
        if call.method == "GET":
            form, include = form_of(call)
            if call.query.get("watch") in TRUE:
                return await self.watched(call, target, form, include)
            return Answer(200, views.many(target.row, await self.verbs.list(target, call.query), form, include))
        request, body = self.read(call, target)
        if call.method == "POST":
            return warned(request, 201, await self.verbs.create(request, body))
        if call.method == "DELETE":
            return Answer(200, await self.verbs.delete_collection(request, deletion(body, call)))
        raise refusals.not_allowed()

    async def watched(self, call: Call, target: Target, form: str, include: str) -> Answer | Watching:
        try:
            return await self.verbs.watch(target, call.query, views.flavour(target.row, form, include))
        except Gone as error:  # said in the stream: clients look for it there
            return Answer(200, line("ERROR", msgspec.json.encode(error.status())))

    async def served_object(self, call: Call, target: Target) -> Answer | Watching:
        if target.subresource and target.subresource not in VIEWS:
            raise refusals.not_allowed()
        if call.method == "GET":
            form, include = form_of(call)
            if call.query.get("watch") in TRUE:
                return await self.watched(call, target, form, include)
            return Answer(200, views.one(target.row, await self.verbs.get(target, call.query), form, include))
        request, body = self.read(call, target)
        match call.method:
            case "PUT":
                return warned(request, 200, await self.verbs.replace(request, body))
            case "PATCH" if request.content_type == APPLY_PATCH:
                return warned(request, *await self.verbs.apply(request, body))
            case "PATCH":
                if "force" in call.query:
                    why = "Forbidden: may not be specified for non-apply patch"
                    raise refusals.invalid(refusals.PATCH_OPTIONS, "", "force", why)
                return warned(request, 200, await self.verbs.patch(request, body))
            case "DELETE" if not target.subresource:
                status, raw = await self.verbs.delete(request, deletion(body, call))
                return Answer(status, raw)
        raise refusals.not_allowed()

    def read(self, call: Call, target: Target) -> tuple[Request, Any]:
        content_type = media_type(call.headers.get("content-type", "")) or JSON
        body = decoded(call.body, content_type)
        agent = call.headers.get("user-agent", "")
        request = Request(WRITES[call.method], target, call.user, call.query, content_type, call.body, body, agent)
        return request, body


VIEWS = frozenset({"status", "finalize", "approval", "ephemeralcontainers", "resize"})
"""Subresources that are the object itself, of which a write may change a part."""
WRITES: Mapping[str, Any] = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get", "HEAD": "get"}


def verb_of(call: Call, target: Target) -> str:
    """The verb that rights are about."""
    if call.method in ("GET", "HEAD") and (not target.name or call.query.get("watch") in TRUE):
        return "watch" if call.query.get("watch") in TRUE else "list"
    if call.method == "DELETE" and not target.name:
        return "deletecollection"
    return VERBS.get(call.method, call.method.lower())


def form_of(call: Call) -> tuple[str, str]:
    """In which form the client wants objects, and how much of them beside a table."""
    return chosen_form(call.headers.get("accept", ""), views.FORMS), call.query.get("includeObject") or "Metadata"


def answered(status: int, body: Any, content_type: str = JSON) -> Answer:
    return Answer(status, msgspec.json.encode(body), content_type)


def warned(request: Request, status: int, raw: bytes) -> Answer:
    """An answer with the warnings that came up."""
    if not request.warnings:
        return Answer(status, raw)
    texts = ", ".join('299 - "' + each.replace("\\", "\\\\").replace('"', '\\"') + '"' for each in request.warnings)
    return Answer(status, raw, headers={"Warning": texts[:4096]})


def refused(error: ApiError) -> Answer:
    wait = error.retry_after
    headers = {"Retry-After": str(int(wait))} if wait is not None else {}
    return Answer(error.code, msgspec.json.encode({"metadata": {}, **error.status()}), headers=headers)


def deletion(body: Any, call: Call) -> Mapping[str, Any]:
    """The options of a deletion: in the body, or in the query."""
    options: Object = dict(body or {})
    if "gracePeriodSeconds" in call.query:
        options["gracePeriodSeconds"] = number(call.query["gracePeriodSeconds"], "gracePeriodSeconds")
    if "propagationPolicy" in call.query:
        options["propagationPolicy"] = call.query["propagationPolicy"]
    return options
