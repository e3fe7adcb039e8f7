"""The stages of a request, without sockets. The caller has read the head and authenticated the user (`Call.user`).

Server.respond          runs the stages in this order
Server.authorize_call   rejects a call that the user may not make, before anything of its body is read
receive_body            reads the body, and decodes it if that is slow
Server.write_request    decodes the body of a write
Verbs                   admit, validate and store the object, or delete it
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import structs

from tapestry.apiserver.admission.syncer_restriction import SyncerRestriction
from tapestry.apiserver.aggregation.aggregator import Aggregator
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.codec import JSON, media_type
from tapestry.apiserver.core.field_validation import report_duplicate_keys
from tapestry.apiserver.core.host_access import HostAccess
from tapestry.apiserver.core.request_bodies import decoded_body, has_pending_body, receive_body
from tapestry.apiserver.core.requests import (
    APPLY_PATCH,
    CONNECT_SUBRESOURCES,
    PROXY_METHODS,
    TRUE_VALUES,
    WRITE_VERBS,
    Attributes,
    Authorize,
    Call,
    Target,
    WriteRequest,
    allow_all,
    first_segment,
    forbidden_resource,
    is_verb_supported,
    no_denial_reason,
    target_of,
    unserved_target,
    verb_of,
)
from tapestry.apiserver.core.resource_registry import ResourceRegistry
from tapestry.apiserver.core.responses import (
    ApiResponse,
    PathHandler,
    SessionResponse,
    SpecialHandler,
    list_response,
    response_or_status,
    response_with_warnings,
    warning_header,
)
from tapestry.apiserver.core.workers import run_if_large
from tapestry.apiserver.documents.document_handler import DocumentHandler
from tapestry.apiserver.handlers import options, views
from tapestry.apiserver.handlers.reader import Reader
from tapestry.apiserver.handlers.selections import NAME_FIELD
from tapestry.apiserver.handlers.verbs import Verbs
from tapestry.apiserver.handlers.watches import WatchResponse, error_line
from tapestry.kube.errors import ApiError, Gone, NotFound
from tapestry.kube.selectors import SelectorError, parse_field_selector

MAX_SELECTOR_LENGTH = 4 << 10
"""Maximum length of a field selector that is parsed for the authorization of a single object."""
Response = ApiResponse | SessionResponse | WatchResponse


class CallHandler(Protocol):
    """A server, or a wrapper that handles calls for one."""

    async def handle(self, call: Call) -> Response: ...


@dataclass(frozen=True)
class Server:
    """Handle API calls."""

    registry: ResourceRegistry
    reader: Reader
    verbs: Verbs
    documents: DocumentHandler
    aggregator: Aggregator
    authorize: Authorize = allow_all
    denial_reason: Callable[[Attributes], str] = no_denial_reason
    """Explain why `authorize` denies a call; empty if there is nothing to add."""
    special_handlers: Mapping[tuple[str, str], SpecialHandler] = field(default_factory=dict)
    """Handlers by resource (`*` for any) and subresource, which may be empty: `("pods", "eviction")`."""
    path_handlers: Mapping[str, PathHandler] = field(default_factory=dict)
    """Handlers by the first segment of a non-resource path: `metrics`, `readyz`."""
    close_callbacks: Sequence[Callable[[], Awaitable[None] | None]] = ()
    """Close connections to other servers, and clear caches."""
    syncer_restriction: SyncerRestriction = field(default_factory=SyncerRestriction)
    host_access: HostAccess = field(default_factory=HostAccess)
    """Rejection of writes to what the syncer of a tenant owns. It is disabled until the caller enables it."""

    async def close(self) -> None:
        for close in self.close_callbacks:
            if (closing := close()) is not None:
                await closing

    async def handle(self, call: Call) -> Response:
        """Return the response; errors are responses too."""
        return await response_or_status(call, self.respond(call))

    async def respond(self, call: Call, target: Target | None = None) -> Response:
        """Return the response, or raise its error. `target` is the parsed path, if the caller knows it."""
        if target is None:
            if (response := await self.non_resource_response(call)) is not None:
                return response
            target = await self.served_target(call)
        elif call.method not in ("GET", "HEAD"):  # reads state the required resourceVersion themselves
            await self.verbs.store.wait_for_latest()
        verb = verb_of(call, target)
        self.authorize_call(call, target, verb)
        if target.info.is_remote:
            return await self.aggregator.forward(call)
        if (call.method not in METHODS or not is_verb_supported(target, verb)) and not is_proxied(call, target):
            raise api_errors.method_not_allowed()
        if call.method in WRITE_VERBS and has_pending_body(call) and target.subresource not in CONNECT_SUBRESOURCES:
            call = await receive_body(call)
        if target.info.deprecation_warning:
            return await self.handle_deprecated(call, target)
        return await self.handler_of(call, target)(call, target)

    async def non_resource_response(self, call: Call) -> Response | None:
        """Return the response for a path that names no resource, or None."""
        if (handler := self.path_handlers.get(first_segment(call.path))) is not None:
            self.authorize_path(call)
            return await handler(call)
        if self.aggregator.is_group_version(call.path):
            self.authorize_path(call)
            return await self.aggregator.forward(call)
        if call.path.strip("/") == "apis":
            self.authorize_path(call)  # before documents of other servers are read
        if (document := await self.documents.discovery(call)) is not None:
            self.authorize_path(call)
        return document

    async def served_target(self, call: Call) -> Target:
        """Return the target of a call. Raises NotFound, or Forbidden if the user may not learn what is served."""
        if call.method not in ("GET", "HEAD"):
            await self.verbs.store.wait_for_latest()  # the resource may have been defined by another server
        try:
            return target_of(call.path, self.registry)
        except NotFound:
            if (remote := self.aggregator.services.target_of(call.path)) is not None:
                return remote
            missing = unserved_target(call.path)
            self.authorize_call(call, missing, verb_of(call, missing) if missing is not None else call.method.lower())
            raise

    def handler_of(self, call: Call, target: Target) -> Callable[[Call, Target], Awaitable[Response]]:
        subresource = target.subresource
        handler = self.special_handlers.get((target.info.resource.name, subresource))
        if handler is None and subresource:
            handler = self.special_handlers.get(("*", subresource))
            if handler is None and subresource not in OBJECT_SUBRESOURCES:
                raise api_errors.method_not_allowed()
        return handler or (self.handle_read if call.method == "GET" else self.handle_write)

    async def handle_deprecated(self, call: Call, target: Target) -> Response:
        """Handle a call to a deprecated resource, and add a warning to the response or the error."""
        warning = target.info.deprecation_warning
        try:
            result = await self.handler_of(call, target)(call, target)
        except ApiError as error:
            error.warning = warning
            raise
        if not isinstance(result, ApiResponse):
            return result
        warnings = ", ".join(filter(None, (warning_header(warning), result.headers.get("Warning", ""))))
        return structs.replace(result, headers={**result.headers, "Warning": warnings})

    # -- authorization

    def authorize_path(self, call: Call) -> None:
        self.authorize_call(call, None, call.method.lower())
        if call.method not in ("GET", "HEAD"):
            raise api_errors.method_not_allowed()

    def authorize_call(self, call: Call, target: Target | None, verb: str) -> None:
        """Raise Forbidden if the user may not use the verb on the target, or on the path if there is no target."""
        if target is not None and not target.name and verb in FIELD_SELECTOR_VERBS and "fieldSelector" in call.query:
            target = target._replace(name=selected_name(call.query["fieldSelector"]))
        attributes = Attributes(call.user, verb, target, call.path, call.query.get("fieldSelector", ""))
        if self.authorize(attributes):
            return
        if target is None:
            raise api_errors.forbidden_path(call.user.name, verb, call.path)
        raise forbidden_resource(call.user.name, verb, target, self.denial_reason(attributes))

    # -- resources

    async def handle_read(self, call: Call, target: Target) -> Response:
        info, query = target.info, call.query
        form, include = views.requested_form(call)
        if query.get("watch") in TRUE_VALUES:
            if target.subresource:
                raise api_errors.method_not_allowed()
            try:
                return await self.reader.watch(target, query, views.watch_encoder(info, form, include))
            except Gone as error:  # clients expect this error in the stream
                return ApiResponse(200, error_line(error))
        if not target.name:
            return list_response(
                await views.encode_collection(info, await self.reader.list(target, query), form, include)
            )
        raw = await self.reader.get(target, query)
        if form == views.TABLE:
            return ApiResponse(200, await run_if_large(len(raw), views.encode_object, info, raw, form, include))
        return ApiResponse(200, views.encode_object(info, raw, form, include))

    async def handle_write(self, call: Call, target: Target) -> ApiResponse:
        request, verbs = self.write_request(call, target), self.verbs
        body, query = request.decoded_body, call.query
        match call.method:
            case "POST" if not target.name:
                return response_with_warnings(request, 201, await verbs.create(request, body))
            case "PUT" if target.name:
                return response_with_warnings(request, 200, await verbs.replace(request, body))
            case "PATCH" if target.name and request.content_type == APPLY_PATCH:
                await run_if_large(len(call.body), report_duplicate_keys, request)
                return response_with_warnings(request, *await verbs.apply(request, body))
            case "PATCH" if target.name:
                if "force" in query:
                    why = "Forbidden: may not be specified for non-apply patch"
                    raise api_errors.invalid_field(api_errors.PATCH_OPTIONS, "", "force", why)
                return response_with_warnings(request, 200, await verbs.patch(request, body))
            case "DELETE" if not target.name:
                return ApiResponse(200, await verbs.delete_collection(request, options.delete_options(body, query)))
            case "DELETE" if not target.subresource:
                raw = await verbs.delete(request, options.delete_options(body, query))
                return response_with_warnings(request, 200, raw)
        raise api_errors.method_not_allowed()

    def write_request(self, call: Call, target: Target) -> WriteRequest:
        """Decode the body and check the options of a write."""
        content_type = media_type(call.headers.get("content-type", "")) or JSON
        body = decoded_body(call)
        agent = call.headers.get("user-agent", "")
        verb, query = WRITE_VERBS[call.method], call.query
        options.validate_options(verb, query)
        if verb == "delete" and isinstance(body, dict) and body.get("dryRun"):
            query = {**query, "dryRun": "All"}
        return WriteRequest(
            *(verb, target, call.user, query, content_type, call.body, body, agent, call.duplicate_keys),
            audit_annotations=call.audit_annotations,
            origin=call.origin,
        )


OBJECT_SUBRESOURCES = frozenset({"status", "finalize", "approval", "ephemeralcontainers", "resize"})
"""Subresources that are views of the object itself; a write may change a part of it."""
METHODS = frozenset({"GET", *WRITE_VERBS})
FIELD_SELECTOR_VERBS = frozenset({"list", "watch"})
"""Verbs for which a field selector can name the single object to authorize, as in Kubernetes."""


def is_proxied(call: Call, target: Target) -> bool:
    """Return whether a call is forwarded to another server, which also gets methods that have no verb."""
    return target.subresource == "proxy" and call.method in PROXY_METHODS


def selected_name(field_selector: str) -> str:
    """Return the only name that a field selector can match, or an empty string."""
    if len(field_selector) > MAX_SELECTOR_LENGTH:
        return ""
    try:
        terms = parse_field_selector(field_selector).terms
    except SelectorError:
        return ""
    return next((term.value for term in terms if term.field == NAME_FIELD and term.equal), "")
