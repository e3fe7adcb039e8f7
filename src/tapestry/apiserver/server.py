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

from tapestry.apiserver import api_errors, options, views
from tapestry.apiserver.codec import JSON, accepted_types, media_type, negotiated_form
from tapestry.apiserver.documents import discovery
from tapestry.apiserver.documents.document_cache import Document, DocumentCache
from tapestry.apiserver.documents.openapi_v2_protobuf import CONTENT_TYPE, MEDIA_TYPES
from tapestry.apiserver.pipeline import report_duplicate_keys
from tapestry.apiserver.request_bodies import decoded_body, has_pending_body, receive_body
from tapestry.apiserver.requests import NAME_FIELD, Call, Target, User, parse_number, target_of, unserved_target
from tapestry.apiserver.resource_registry import ResourceRegistry
from tapestry.apiserver.storage.log import StorageError
from tapestry.apiserver.verbs import APPLY_PATCH, Verbs, WriteRequest
from tapestry.apiserver.watches import WatchResponse, watch_line
from tapestry.apiserver.workers import run_if_large
from tapestry.kube.budget import BudgetExceeded, DeadlineExceeded
from tapestry.kube.errors import ApiError, Gone, NotFound
from tapestry.kube.objects import EMPTY_MAPPING, Object
from tapestry.kube.selectors import SelectorError, parse_field_selector
from tapestry.process.logs import logger

log = logger(__name__)

TRUE_VALUES = ("1", "true")
MAX_UNCHUNKED_BYTES = 8 << 20
"""Bytes of a list that is sent as a whole."""
MAX_SELECTOR_LENGTH = 4 << 10
"""Of fields, in which a name is looked for that somebody may have rights to."""
CHUNK_BYTES = 1 << 18
"""Bytes that are sent at a time of one that is not."""


class Stream(Protocol):
    """What comes in pieces, for as long as it may take: `end` it, whether or not it was read."""

    def chunks(self) -> AsyncGenerator[bytes, None]: ...

    def end(self) -> None: ...


class ApiResponse(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = EMPTY_MAPPING
    stream: Stream | None = None
    """What follows the body."""


class Attributes(msgspec.Struct, frozen=True):
    """What somebody wants to do: to a resource, or to a path that is none."""

    user: User
    verb: str
    target: Target | None = None
    path: str = ""
    field_selector: str = ""
    """The field selector, of a list, a watch or a deletion of many."""


Authorize = Callable[[Attributes], bool]
ResourceHandler = Callable[[Call, Target], Awaitable[ApiResponse]]
PathHandler = Callable[[Call], Awaitable[ApiResponse]]


class CallHandler(Protocol):
    """A server, or whoever receives calls for one."""

    async def handle(self, call: Call) -> ApiResponse | WatchResponse: ...


class RejectingCallHandler(CallHandler, Protocol):
    """One that also wants to know of calls that do not get so far."""

    def reject(self, call: Call, error: ApiError) -> ApiResponse: ...

    def is_long_running(self, call: Call) -> bool:
        """Whether a call is a watch or follows a log: it lasts as long as its client wants."""
        ...


def allow_all(_: Attributes) -> bool:
    return True


def no_denial_reason(_: Attributes) -> str:
    return ""


@dataclass(frozen=True)
class Server:
    """Answers calls.  `special` has the subresources that are not a view of the object's own."""

    registry: ResourceRegistry
    verbs: Verbs
    documents: DocumentCache
    version: Object
    authorize: Authorize = allow_all
    denial_reason: Callable[[Attributes], str] = no_denial_reason
    """Why somebody may not do what `authorize` refuses; empty where there is nothing to add."""
    special_handlers: Mapping[tuple[str, str], ResourceHandler] = field(default_factory=dict)
    """By resource, `*` being any, and subresource: `("pods", "eviction")`; what is not stored at all has none."""
    path_handlers: Mapping[str, PathHandler] = field(default_factory=dict)
    """What the server says of itself, by the first segment of the path: `metrics`, `readyz`."""
    address: str = ""
    close_callbacks: Sequence[Callable[[], Awaitable[None]]] = ()
    """What holds connections of its own."""

    async def close(self) -> None:
        for close in self.close_callbacks:
            await close()

    async def handle(self, call: Call, target: Target | None = None) -> ApiResponse | WatchResponse:
        """What is to be sent back; refusals are answers, too.  `target` is what the path names, if that is known."""
        try:
            return await (self.route(call) if target is None else self.handle_authorized(call, target))
        except ApiError as error:
            return error_response(error)
        except StorageError as error:
            log.warning("cannot write", error=str(error))
            return error_response(api_errors.storage_failure(error))
        except RecursionError:  # of JSON in an annotation or a key: bodies are not as deep
            return error_response(api_errors.bad_request("a text in the request is nested too deeply"))
        except BudgetExceeded:
            return error_response(api_errors.work_limit_exceeded())
        except DeadlineExceeded:
            raise TimeoutError from None
        except Exception:
            log.exception("cannot answer", method=call.method, path=call.path)
            return error_response(api_errors.internal_error("the server failed; its log says where"))

    async def route(self, call: Call) -> ApiResponse | WatchResponse:
        page = self.path_handlers.get(first_segment(call.path))
        if page is not None:
            self.authorize_path(call)
            return await page(call)
        if (found := await self.handle_non_resource(call)) is not None:
            return found
        if call.method not in ("GET", "HEAD"):
            await self.verbs.store.wait_for_latest()  # it may be defined by now
        try:
            target = target_of(call.path, self.registry)
        except NotFound:
            missing = unserved_target(call.path)
            self.authorize_call(call, missing, verb_of(call, missing) if missing is not None else call.method.lower())
            raise
        return await self.handle_authorized(call, target)

    async def handle_authorized(self, call: Call, target: Target) -> ApiResponse | WatchResponse:
        """The answer, if its sender may have it; a body is not received before that is known."""
        if call.method not in ("GET", "HEAD"):  # these say themselves how new it must be what they read
            await self.verbs.store.wait_for_latest()
        verb = verb_of(call, target)
        self.authorize_call(call, target, verb)
        if call.method not in METHODS or not is_verb_supported(target, verb):
            raise api_errors.method_not_allowed()
        if call.method in WRITE_VERBS and has_pending_body(call):
            call = await receive_body(call)
        if target.info.deprecation_warning:
            return await self.handle_deprecated(call, target)
        return await self.handle_resource(call, target)

    async def handle_deprecated(self, call: Call, target: Target) -> ApiResponse | WatchResponse:
        """The same of a resource that is deprecated, with a word of warning; refusals have it, too."""
        try:
            found = await self.handle_resource(call, target)
        except ApiError as error:
            found = error_response(error)
        if isinstance(found, WatchResponse):
            return found
        said = found.headers.get("Warning", "")
        words = ", ".join(filter(None, (warning_header(target.info.deprecation_warning), said)))
        return structs.replace(found, headers={**found.headers, "Warning": words})

    async def handle_resource(self, call: Call, target: Target) -> ApiResponse | WatchResponse:
        name, subresource = target.info.resource.name, target.subresource
        handler = self.special_handlers.get((name, subresource))
        if handler is None and subresource:
            handler = self.special_handlers.get(("*", subresource))
        if handler is not None:
            return await handler(call, target)
        if target.name:
            return await self.handle_object(call, target)
        return await self.handle_collection(call, target)

    # -- the server itself

    async def handle_non_resource(self, call: Call) -> ApiResponse | None:
        """What is under paths that name no resource; None where the path may name one."""
        segments = call.path.strip("/").split("/")
        if segments[0] == "openapi":
            self.authorize_path(call)
            return await self.openapi_response(call, segments[1:])
        document = self.discovery_response(call, segments)
        if document is None:
            return None
        self.authorize_path(call)
        return document

    def authorize_path(self, call: Call) -> None:
        self.authorize_call(call, None, call.method.lower())
        if call.method not in ("GET", "HEAD"):
            raise api_errors.method_not_allowed()

    def authorize_call(self, call: Call, target: Target | None, verb: str) -> None:
        """Raise Forbidden if its sender may not do that, to a resource or to the path itself."""
        if target is not None and not target.name and verb in FIELD_SELECTOR_VERBS and "fieldSelector" in call.query:
            target = target._replace(name=selected_name(call.query["fieldSelector"]))
        asked = Attributes(call.user, verb, target, call.path, call.query.get("fieldSelector", ""))
        if self.authorize(asked):
            return
        if target is None:
            raise api_errors.forbidden_path(call.user.name, verb, call.path)
        raise api_errors.forbidden_resource(call.user.name, verb, target, self.denial_reason(asked))

    def discovery_response(self, call: Call, segments: list[str]) -> ApiResponse | None:
        match segments:
            case ["version"]:
                return json_response(200, self.version)
            case ["api" | "apis" as root]:
                return self.root_discovery(call, legacy=root == "api")
            case ["api", version]:
                return self.group_discovery("", version)
            case ["apis", group, *rest] if len(rest) < 2:
                return self.group_discovery(group, *rest)
        return None

    def group_discovery(self, group: str, version: str = "") -> ApiResponse | None:
        """A group, or one version of it, as the older form of discovery has it; None where it is not served."""
        versions = self.registry.groups().get(group)
        if versions is None or (version and version not in versions):
            return None
        if version:
            return json_response(200, discovery.api_resources(group, version, versions[version]))
        return json_response(200, discovery.api_group(group, list(versions)))

    async def openapi_response(self, call: Call, rest: list[str]) -> ApiResponse | None:
        with suppress(KeyError):  # a group or a version that is not served
            match rest:
                case ["v2"] if any(each.type in MEDIA_TYPES for each in accepted_types(call.headers.get("accept", ""))):
                    return etag_response(call, await self.documents.openapi_v2_protobuf(), CONTENT_TYPE)
                case ["v2"]:
                    negotiated_form(call.headers.get("accept", ""), frozenset())
                    return etag_response(call, await self.documents.openapi_v2())
                case ["v3"]:
                    return etag_response(call, await self.documents.openapi_v3_index())
                case ["v3", "api", version]:
                    return etag_response(call, await self.documents.openapi_v3_group("", version))
                case ["v3", "apis", group, version]:
                    return etag_response(call, await self.documents.openapi_v3_group(group, version))
        return None

    def root_discovery(self, call: Call, *, legacy: bool) -> ApiResponse:
        for each in accepted_types(call.headers.get("accept", "")):
            if each.form == discovery.AGGREGATED and each.parameters.get("v") == "v2":
                content_type = f"{JSON};g=apidiscovery.k8s.io;v=v2;as={discovery.AGGREGATED}"
                return etag_response(call, self.documents.aggregated_discovery(legacy=legacy), content_type)
            if not each.form:
                break
        return json_response(
            200, discovery.api_versions(self.address) if legacy else discovery.api_groups(self.registry)
        )

    # -- resources

    async def handle_collection(self, call: Call, target: Target) -> ApiResponse | WatchResponse:
        if call.method == "GET":
            form, include = requested_form(call)
            if call.query.get("watch") in TRUE_VALUES:
                return await self.start_watch(call, target, form, include)
            listing = await self.verbs.list(target, call.query)
            return list_response(await views.encode_collection(target.info, listing, form, include))
        request, body = self.write_request(call, target)
        if call.method == "POST":
            return response_with_warnings(request, 201, await self.verbs.create(request, body))
        if call.method == "DELETE":
            return ApiResponse(200, await self.verbs.delete_collection(request, delete_options_of(body, call)))
        raise api_errors.method_not_allowed()

    async def start_watch(self, call: Call, target: Target, form: str, include: str) -> ApiResponse | WatchResponse:
        try:
            return await self.verbs.watch(target, call.query, views.watch_encoder(target.info, form, include))
        except Gone as error:  # said in the stream: clients look for it there
            return ApiResponse(200, watch_line("ERROR", msgspec.json.encode(error.status())))

    async def handle_object(self, call: Call, target: Target) -> ApiResponse | WatchResponse:
        if target.subresource and target.subresource not in OBJECT_SUBRESOURCES:
            raise api_errors.method_not_allowed()
        if call.method == "GET":
            form, include = requested_form(call)
            if call.query.get("watch") in TRUE_VALUES:
                if target.subresource:
                    raise api_errors.method_not_allowed()
                return await self.start_watch(call, target, form, include)
            raw = await self.verbs.get(target, call.query)
            if form == views.TABLE:
                return ApiResponse(
                    200, await run_if_large(len(raw), views.encode_object, target.info, raw, form, include)
                )
            return ApiResponse(200, views.encode_object(target.info, raw, form, include))
        request, body = self.write_request(call, target)
        match call.method:
            case "PUT":
                return response_with_warnings(request, 200, await self.verbs.replace(request, body))
            case "PATCH" if request.content_type == APPLY_PATCH:
                await run_if_large(len(call.body), report_duplicate_keys, request)
                return response_with_warnings(request, *await self.verbs.apply(request, body))
            case "PATCH":
                if "force" in call.query:
                    why = "Forbidden: may not be specified for non-apply patch"
                    raise api_errors.invalid_field(api_errors.PATCH_OPTIONS, "", "force", why)
                return response_with_warnings(request, 200, await self.verbs.patch(request, body))
            case "DELETE" if not target.subresource:
                return response_with_warnings(request, *await self.verbs.delete(request, delete_options_of(body, call)))
        raise api_errors.method_not_allowed()

    def write_request(self, call: Call, target: Target) -> tuple[WriteRequest, Any]:
        content_type = media_type(call.headers.get("content-type", "")) or JSON
        body = decoded_body(call)
        agent = call.headers.get("user-agent", "")
        verb, query = WRITE_VERBS[call.method], call.query
        options.validate_options(verb, query)
        if verb == "delete" and isinstance(body, dict) and body.get("dryRun"):
            query = {**query, "dryRun": "All"}
        request = WriteRequest(
            verb,
            target,
            call.user,
            query,
            content_type,
            call.body,
            body,
            agent,
            call.duplicate_keys,
            audit_annotations=call.audit_annotations,
        )
        return request, body


MAX_WARNING_LENGTH = 4096
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")
"""What would end a header, or is none of it."""
OBJECT_SUBRESOURCES = frozenset({"status", "finalize", "approval", "ephemeralcontainers", "resize"})
"""Subresources that are the object itself, of which a write may change a part."""
WRITE_VERBS: Mapping[str, Any] = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
METHODS = frozenset({"GET", *WRITE_VERBS})
FIELD_SELECTOR_VERBS = frozenset({"list", "watch"})
"""Verbs for which a field selector can name the one object that a right is about, as in Kubernetes."""
METHOD_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get", "HEAD": "get"}


def first_segment(path: str) -> str:
    return path.partition("/")[2].partition("/")[0]


def verb_of(call: Call, target: Target) -> str:
    """The verb that rights are about."""
    if call.method in ("GET", "HEAD") and (not target.name or call.query.get("watch") in TRUE_VALUES):
        return "watch" if call.query.get("watch") in TRUE_VALUES else "list"
    if call.method == "DELETE" and not target.name:
        return "deletecollection"
    return METHOD_VERBS.get(call.method, call.method.lower())


def is_verb_supported(target: Target, verb: str) -> bool:
    """Whether a resource has a verb; what a custom one has not says so itself, in words of its own."""
    row = target.info
    return row.is_custom or verb in (row.subresources[target.subresource] if target.subresource else row).verbs


def selected_name(field_selector: str) -> str:
    """The name of the one object that a field selector can choose: who may see that one may look for it so."""
    if len(field_selector) > MAX_SELECTOR_LENGTH:
        return ""
    try:
        terms = parse_field_selector(field_selector).terms
    except SelectorError:
        return ""
    return next((term.value for term in terms if term.field == NAME_FIELD and term.equal), "")


def requested_form(call: Call) -> tuple[str, str]:
    """In which form the client wants objects, and how much of them beside a table."""
    return negotiated_form(call.headers.get("accept", ""), views.FORMS), call.query.get("includeObject") or "Metadata"


@dataclass(frozen=True)
class ChunkedBody:
    """A long answer that is there already, in pieces: all of it is never copied."""

    chunk_parts: Sequence[bytes | memoryview]

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        waiting: list[bytes | memoryview] = []
        size = 0
        for part in self.chunk_parts:
            waiting.append(part)
            size += len(part)
            if size >= CHUNK_BYTES:
                yield b"".join(waiting)
                waiting, size = [], 0
        if waiting:
            yield b"".join(waiting)

    def end(self) -> None:
        """There is nothing to give back."""


def list_response(parts: Sequence[bytes | memoryview]) -> ApiResponse:
    """The answer with a list; one that is long goes out in pieces."""
    if sum(map(len, parts)) <= MAX_UNCHUNKED_BYTES:
        return ApiResponse(200, b"".join(parts))
    return ApiResponse(200, b"", stream=ChunkedBody(parts))


def json_response(status: int, body: Any, content_type: str = JSON) -> ApiResponse:
    return ApiResponse(status, msgspec.json.encode(body), content_type)


def etag_response(call: Call, document: Document, content_type: str = JSON) -> ApiResponse:
    """A document, unless the client has it already; one that was asked for by its tag stays what it is."""
    headers = {"ETag": f'"{document.etag}"', "Vary": "Accept"}
    if call.query.get("hash") == document.etag:
        headers["Cache-Control"] = "public, immutable, max-age=31536000"
    if document.etag in call.headers.get("if-none-match", ""):
        return ApiResponse(304, b"", content_type, headers)
    return ApiResponse(200, document.body, content_type, headers)


def response_with_warnings(request: WriteRequest, status: int, raw: bytes) -> ApiResponse:
    """An answer with the warnings that came up."""
    if not request.warnings:
        return ApiResponse(status, raw)
    texts = ", ".join(map(warning_header, request.warnings))
    if len(texts) > MAX_WARNING_LENGTH:  # clients take no longer headers: of many, the beginnings of some
        texts = ", ".join(warning_header(each[:256]) for each in request.warnings[:15])
    return ApiResponse(status, raw, headers={"Warning": texts})


def warning_header(text: str) -> str:
    """What a `Warning` header says of one thing."""
    escaped = CONTROL_CHARACTERS.sub(" ", text).replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{escaped}"'


def error_response(error: ApiError) -> ApiResponse:
    wait = error.retry_after
    headers = {"Retry-After": str(int(wait))} if wait is not None else {}
    return ApiResponse(error.code, msgspec.json.encode({"metadata": {}, **error.status()}), headers=headers)


def delete_options_of(body: Any, call: Call) -> Mapping[str, Any]:
    """The options of a deletion: in the body, or in the query."""
    found: Object = dict(body or {})
    if "gracePeriodSeconds" in call.query:
        found["gracePeriodSeconds"] = parse_number(call.query["gracePeriodSeconds"], "gracePeriodSeconds")
    if "propagationPolicy" in call.query:
        found["propagationPolicy"] = call.query["propagationPolicy"]
    options.validate_delete_options(found)
    return found
