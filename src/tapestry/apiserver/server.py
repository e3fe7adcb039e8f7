"""The server: from a request to an answer, without a socket in sight.

Who asks has been found out before (`Call.user`); whether they may is asked here, before anything is read or done.
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from msgspec import structs

from tapestry.apiserver import options, refusals, views
from tapestry.apiserver.codec import JSON, accepted, chosen_form, media_type
from tapestry.apiserver.documents import discovery
from tapestry.apiserver.documents.documents import Document, Documents
from tapestry.apiserver.documents.swagger_protobuf import CONTENT_TYPE, MEDIA_TYPES
from tapestry.apiserver.payloads import is_pending, received, sent_in
from tapestry.apiserver.pipeline import report_repetitions
from tapestry.apiserver.requests import NAME, Call, Target, User, number, target_of, unserved
from tapestry.apiserver.rows import Rows
from tapestry.apiserver.storage.log import LogError
from tapestry.apiserver.verbs import APPLY_PATCH, Request, Verbs
from tapestry.apiserver.watches import Watching, line
from tapestry.apiserver.workers import run_if_large
from tapestry.kube.budget import OutOfTime, OverBudget
from tapestry.kube.errors import ApiError, Gone, NotFound
from tapestry.kube.objects import NOTHING, Object
from tapestry.kube.selectors import SelectorError, parse_field_selector
from tapestry.process.logs import logger

log = logger(__name__)

TRUE = ("1", "true")
LONGEST_WHOLE = 8 << 20
"""Bytes of a list that is sent as a whole."""
LONGEST_SELECTOR = 4 << 10
"""Of fields, in which a name is looked for that somebody may have rights to."""
PIECE = 1 << 18
"""Bytes that are sent at a time of one that is not."""


class Stream(Protocol):
    """What comes in pieces, for as long as it may take: `end` it, whether or not it was read."""

    def chunks(self) -> AsyncGenerator[bytes, None]: ...

    def end(self) -> None: ...


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = NOTHING
    stream: Stream | None = None
    """What follows the body."""


class Attributes(msgspec.Struct, frozen=True):
    """What somebody wants to do: to a resource, or to a path that is none."""

    user: User
    verb: str
    target: Target | None = None
    path: str = ""
    fields: str = ""
    """The field selector, of a list, a watch or a deletion of many."""


Authorize = Callable[[Attributes], bool]
Handler = Callable[[Call, Target], Awaitable[Answer]]
Page = Callable[[Call], Awaitable[Answer]]


class Answering(Protocol):
    """A server, or whoever receives calls for one."""

    async def answer(self, call: Call) -> Answer | Watching: ...


class Refusing(Answering, Protocol):
    """One that also wants to know of calls that do not get so far."""

    def refused(self, call: Call, error: ApiError) -> Answer: ...

    def is_long_running(self, call: Call) -> bool:
        """Whether a call is a watch or follows a log: it lasts as long as its client wants."""
        ...


def everybody_may(_: Attributes) -> bool:
    return True


def no_objection(_: Attributes) -> str:
    return ""


@dataclass(frozen=True)
class Server:
    """Answers calls.  `special` has the subresources that are not a view of the object's own."""

    rows: Rows
    verbs: Verbs
    documents: Documents
    version: Object
    authorize: Authorize = everybody_may
    objection: Callable[[Attributes], str] = no_objection
    """Why somebody may not do what `authorize` refuses; empty where there is nothing to add."""
    special: Mapping[tuple[str, str], Handler] = field(default_factory=dict)
    """By resource, `*` being any, and subresource: `("pods", "eviction")`; what is not stored at all has none."""
    pages: Mapping[str, Page] = field(default_factory=dict)
    """What the server says of itself, by the first segment of the path: `metrics`, `readyz`."""
    address: str = ""
    closing: Sequence[Callable[[], Awaitable[None]]] = ()
    """What holds connections of its own."""

    async def close(self) -> None:
        for close in self.closing:
            await close()

    async def answer(self, call: Call, target: Target | None = None) -> Answer | Watching:
        """What is to be sent back; refusals are answers, too.  `target` is what the path names, if that is known."""
        try:
            return await (self.served(call) if target is None else self.permitted(call, target))
        except ApiError as error:
            return refused(error)
        except LogError as error:
            log.warning("cannot write", error=str(error))
            return refused(refusals.not_kept(error))
        except RecursionError:  # of JSON in an annotation or a key: bodies are not as deep
            return refused(refusals.bad_request("a text in the request is nested too deeply"))
        except OverBudget:
            return refused(refusals.too_costly())
        except OutOfTime:
            raise TimeoutError from None
        except Exception:
            log.exception("cannot answer", method=call.method, path=call.path)
            return refused(refusals.internal("the server failed; its log says where"))

    async def served(self, call: Call) -> Answer | Watching:
        page = self.pages.get(first_segment(call.path))
        if page is not None:
            self.check_path(call)
            return await page(call)
        if (found := await self.about_itself(call)) is not None:
            return found
        if call.method not in ("GET", "HEAD"):
            await self.verbs.store.wait_for_latest()  # it may be defined by now
        try:
            target = target_of(call.path, self.rows)
        except NotFound:
            missing = unserved(call.path)
            self.check(call, missing, verb_of(call, missing) if missing is not None else call.method.lower())
            raise
        return await self.permitted(call, target)

    async def permitted(self, call: Call, target: Target) -> Answer | Watching:
        """The answer, if its sender may have it; a body is not received before that is known."""
        if call.method not in ("GET", "HEAD"):  # these say themselves how new it must be what they read
            await self.verbs.store.wait_for_latest()
        verb = verb_of(call, target)
        self.check(call, target, verb)
        if call.method not in METHODS or not serves(target, verb):
            raise refusals.not_allowed()
        if call.method in WRITES and is_pending(call):
            call = await received(call)
        if target.row.deprecation:
            return await self.discouraged(call, target)
        return await self.asked(call, target)

    async def discouraged(self, call: Call, target: Target) -> Answer | Watching:
        """The same of a resource that is deprecated, with a word of warning; refusals have it, too."""
        try:
            found = await self.asked(call, target)
        except ApiError as error:
            found = refused(error)
        if isinstance(found, Watching):
            return found
        said = found.headers.get("Warning", "")
        words = ", ".join(filter(None, (warning(target.row.deprecation), said)))
        return structs.replace(found, headers={**found.headers, "Warning": words})

    async def asked(self, call: Call, target: Target) -> Answer | Watching:
        name, subresource = target.row.resource.name, target.subresource
        handler = self.special.get((name, subresource))
        if handler is None and subresource:
            handler = self.special.get(("*", subresource))
        if handler is not None:
            return await handler(call, target)
        if target.name:
            return await self.served_object(call, target)
        return await self.served_collection(call, target)

    # -- the server itself

    async def about_itself(self, call: Call) -> Answer | None:
        """What is under paths that name no resource; None where the path may name one."""
        segments = call.path.strip("/").split("/")
        if segments[0] == "openapi":
            self.check_path(call)
            return await self.openapi(call, segments[1:])
        document = self.document(call, segments)
        if document is None:
            return None
        self.check_path(call)
        return document

    def check_path(self, call: Call) -> None:
        self.check(call, None, call.method.lower())
        if call.method not in ("GET", "HEAD"):
            raise refusals.not_allowed()

    def check(self, call: Call, target: Target | None, verb: str) -> None:
        """Raise Forbidden if its sender may not do that, to a resource or to the path itself."""
        if target is not None and not target.name and verb in SELECTING and "fieldSelector" in call.query:
            target = target._replace(name=only_name(call.query["fieldSelector"]))
        asked = Attributes(call.user, verb, target, call.path, call.query.get("fieldSelector", ""))
        if self.authorize(asked):
            return
        if target is None:
            raise refusals.forbidden_path(call.user.name, verb, call.path)
        raise refusals.forbidden(call.user.name, verb, target, self.objection(asked))

    def document(self, call: Call, segments: list[str]) -> Answer | None:
        match segments:
            case ["version"]:
                return answered(200, self.version)
            case ["api" | "apis" as root]:
                return self.roots(call, legacy=root == "api")
            case ["api", version]:
                return self.group("", version)
            case ["apis", group, *rest] if len(rest) < 2:
                return self.group(group, *rest)
        return None

    def group(self, group: str, version: str = "") -> Answer | None:
        """A group, or one version of it, as the older form of discovery has it; None where it is not served."""
        versions = self.rows.groups().get(group)
        if versions is None or (version and version not in versions):
            return None
        if version:
            return answered(200, discovery.api_resources(group, version, versions[version]))
        return answered(200, discovery.api_group(group, list(versions)))

    async def openapi(self, call: Call, rest: list[str]) -> Answer | None:
        with suppress(KeyError):  # a group or a version that is not served
            match rest:
                case ["v2"] if any(each.type in MEDIA_TYPES for each in accepted(call.headers.get("accept", ""))):
                    return tagged(call, await self.documents.swagger_protobuf(), CONTENT_TYPE)
                case ["v2"]:
                    chosen_form(call.headers.get("accept", ""), frozenset())
                    return tagged(call, await self.documents.swagger())
                case ["v3"]:
                    return tagged(call, await self.documents.index())
                case ["v3", "api", version]:
                    return tagged(call, await self.documents.group("", version))
                case ["v3", "apis", group, version]:
                    return tagged(call, await self.documents.group(group, version))
        return None

    def roots(self, call: Call, *, legacy: bool) -> Answer:
        for each in accepted(call.headers.get("accept", "")):
            if each.form == discovery.AGGREGATED and each.parameters.get("v") == "v2":
                content_type = f"{JSON};g=apidiscovery.k8s.io;v=v2;as={discovery.AGGREGATED}"
                return tagged(call, self.documents.discovery(legacy=legacy), content_type)
            if not each.form:
                break
        return answered(200, discovery.api_versions(self.address) if legacy else discovery.api_groups(self.rows))

    # -- resources

    async def served_collection(self, call: Call, target: Target) -> Answer | Watching:
        if call.method == "GET":
            form, include = form_of(call)
            if call.query.get("watch") in TRUE:
                return await self.watched(call, target, form, include)
            listing = await self.verbs.list(target, call.query)
            return listed(await views.many(target.row, listing, form, include))
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
                if target.subresource:
                    raise refusals.not_allowed()
                return await self.watched(call, target, form, include)
            raw = await self.verbs.get(target, call.query)
            if form == views.TABLE:
                return Answer(200, await run_if_large(len(raw), views.one, target.row, raw, form, include))
            return Answer(200, views.one(target.row, raw, form, include))
        request, body = self.read(call, target)
        match call.method:
            case "PUT":
                return warned(request, 200, await self.verbs.replace(request, body))
            case "PATCH" if request.content_type == APPLY_PATCH:
                await run_if_large(len(call.body), report_repetitions, request)
                return warned(request, *await self.verbs.apply(request, body))
            case "PATCH":
                if "force" in call.query:
                    why = "Forbidden: may not be specified for non-apply patch"
                    raise refusals.invalid(refusals.PATCH_OPTIONS, "", "force", why)
                return warned(request, 200, await self.verbs.patch(request, body))
            case "DELETE" if not target.subresource:
                return warned(request, *await self.verbs.delete(request, deletion(body, call)))
        raise refusals.not_allowed()

    def read(self, call: Call, target: Target) -> tuple[Request, Any]:
        content_type = media_type(call.headers.get("content-type", "")) or JSON
        body = sent_in(call)
        agent = call.headers.get("user-agent", "")
        verb, query = WRITES[call.method], call.query
        options.check(verb, query)
        if verb == "delete" and isinstance(body, dict) and body.get("dryRun"):
            query = {**query, "dryRun": "All"}
        request = Request(
            verb, target, call.user, query, content_type, call.body, body, agent, call.repeated, notes=call.notes
        )
        return request, body


MOST_WARNED = 4096
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
"""What would end a header, or is none of it."""
VIEWS = frozenset({"status", "finalize", "approval", "ephemeralcontainers", "resize"})
"""Subresources that are the object itself, of which a write may change a part."""
WRITES: Mapping[str, Any] = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
METHODS = frozenset({"GET", *WRITES})
SELECTING = frozenset({"list", "watch"})
"""Verbs for which a field selector can name the one object that a right is about, as in Kubernetes."""
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get", "HEAD": "get"}


def first_segment(path: str) -> str:
    return path.partition("/")[2].partition("/")[0]


def verb_of(call: Call, target: Target) -> str:
    """The verb that rights are about."""
    if call.method in ("GET", "HEAD") and (not target.name or call.query.get("watch") in TRUE):
        return "watch" if call.query.get("watch") in TRUE else "list"
    if call.method == "DELETE" and not target.name:
        return "deletecollection"
    return VERBS.get(call.method, call.method.lower())


def serves(target: Target, verb: str) -> bool:
    """Whether a resource has a verb; what a custom one has not says so itself, in words of its own."""
    row = target.row
    return row.is_custom or verb in (row.subresources[target.subresource] if target.subresource else row).verbs


def only_name(fields: str) -> str:
    """The name of the one object that a field selector can choose: who may see that one may look for it so."""
    if len(fields) > LONGEST_SELECTOR:
        return ""
    try:
        terms = parse_field_selector(fields).terms
    except SelectorError:
        return ""
    return next((term.value for term in terms if term.field == NAME and term.equal), "")


def form_of(call: Call) -> tuple[str, str]:
    """In which form the client wants objects, and how much of them beside a table."""
    return chosen_form(call.headers.get("accept", ""), views.FORMS), call.query.get("includeObject") or "Metadata"


@dataclass(frozen=True)
class Pieces:
    """A long answer that is there already, in pieces: all of it is never copied."""

    parts: Sequence[bytes | memoryview]

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        waiting: list[bytes | memoryview] = []
        size = 0
        for part in self.parts:
            waiting.append(part)
            size += len(part)
            if size >= PIECE:
                yield b"".join(waiting)
                waiting, size = [], 0
        if waiting:
            yield b"".join(waiting)

    def end(self) -> None:
        """There is nothing to give back."""


def listed(parts: Sequence[bytes | memoryview]) -> Answer:
    """The answer with a list; one that is long goes out in pieces."""
    if sum(map(len, parts)) <= LONGEST_WHOLE:
        return Answer(200, b"".join(parts))
    return Answer(200, b"", stream=Pieces(parts))


def answered(status: int, body: Any, content_type: str = JSON) -> Answer:
    return Answer(status, msgspec.json.encode(body), content_type)


def tagged(call: Call, document: Document, content_type: str = JSON) -> Answer:
    """A document, unless the client has it already; one that was asked for by its tag stays what it is."""
    headers = {"ETag": f'"{document.tag}"', "Vary": "Accept"}
    if call.query.get("hash") == document.tag:
        headers["Cache-Control"] = "public, immutable, max-age=31536000"
    if document.tag in call.headers.get("if-none-match", ""):
        return Answer(304, b"", content_type, headers)
    return Answer(200, document.body, content_type, headers)


def warned(request: Request, status: int, raw: bytes) -> Answer:
    """An answer with the warnings that came up."""
    if not request.warnings:
        return Answer(status, raw)
    texts = ", ".join(map(warning, request.warnings))
    if len(texts) > MOST_WARNED:  # clients take no longer headers: of many, the beginnings of some
        texts = ", ".join(warning(each[:256]) for each in request.warnings[:15])
    return Answer(status, raw, headers={"Warning": texts})


def warning(text: str) -> str:
    """What a `Warning` header says of one thing."""
    escaped = CONTROL.sub(" ", text).replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{escaped}"'


def refused(error: ApiError) -> Answer:
    wait = error.retry_after
    headers = {"Retry-After": str(int(wait))} if wait is not None else {}
    return Answer(error.code, msgspec.json.encode({"metadata": {}, **error.status()}), headers=headers)


def deletion(body: Any, call: Call) -> Mapping[str, Any]:
    """The options of a deletion: in the body, or in the query."""
    found: Object = dict(body or {})
    if "gracePeriodSeconds" in call.query:
        found["gracePeriodSeconds"] = number(call.query["gracePeriodSeconds"], "gracePeriodSeconds")
    if "propagationPolicy" in call.query:
        found["propagationPolicy"] = call.query["propagationPolicy"]
    options.check_deletion(found)
    return found
