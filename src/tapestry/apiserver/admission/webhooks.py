"""Admission webhooks: mutating webhooks are called in order, validating webhooks concurrently.

After a webhook changed an object, the built-in admission runs again, and so do earlier webhooks with
`reinvocationPolicy: IfNeeded`, once. A write that matches no webhook costs one lookup.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import uuid4

import msgspec
from msgspec import structs

from tapestry.apiserver.admission.expression_variables import expression_variables
from tapestry.apiserver.admission.matching import AdmissionAttributes, admission_attributes, posted_attributes
from tapestry.apiserver.admission.reviews import (
    REVIEW_VERSIONS,
    AdmissionResponse,
    ReviewError,
    admission_response,
    admission_review,
    operation_options,
    webhook_denied_error,
)
from tapestry.apiserver.admission.webhook_configurations import MUTATING, VALIDATING, Webhook, WebhookConfigurations
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.outgoing_http import WebhookCallError, WebhookClient
from tapestry.apiserver.core.requests import (
    BOOTSTRAP_USER,
    Authorize,
    Call,
    CallOrigin,
    Convert,
    Step,
    Target,
    WriteRequest,
    admission_forbidden,
    object_from_body,
)
from tapestry.apiserver.core.resource_registry import ResourceRegistry
from tapestry.apiserver.core.responses import ApiResponse, ResourceHandler, response_with_warnings
from tapestry.apiserver.core.store import Store
from tapestry.apiserver.core.workers import run_if_large
from tapestry.kube.cel.errors import EvaluationError
from tapestry.kube.errors import ApiError, BadRequest
from tapestry.kube.objects import Object, name_of, value_at, without_field
from tapestry.kube.patches import PatchError, apply_json_patch
from tapestry.kube.resources import Resource
from tapestry.process.logs import logger

log = logger(__name__)


class WebhookFailed(Exception):
    """Error if a webhook gives no decision. Its `failurePolicy` decides the result."""


class AdmissionWebhooks:
    """Pipeline steps that call webhooks, and admission of requests that do not use the pipeline.

    `read` decodes and defaults what a client writes, and `plugins` is the built-in admission. An object that a webhook
    changed passes both again.
    """

    def __init__(
        self,
        store: Store,
        registry: ResourceRegistry,
        webhook_client: WebhookClient,
        convert: Convert,
        authorize: Authorize,
        read: Step,
        plugins: Step,
    ) -> None:
        self._store, self._client, self._convert, self._authorize = store, webhook_client, convert, authorize
        self._read, self._plugins = read, plugins
        self._mutating, self._validating = (
            WebhookConfigurations(store, MUTATING, registry),
            WebhookConfigurations(store, VALIDATING, registry),
        )

    # -- steps

    async def mutate(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        """The last step that changes objects."""
        hooks = matching_webhooks(self._mutating, request, old, new)
        if not hooks:
            return new
        attributes = without_generated_name(request, admission_attributes(request, old, new))
        changed, due, waiting = await self._call_mutating(hooks, request, attributes)
        if changed.new is None or changed.new is attributes.new:
            return new
        metadata = changed.new["metadata"]
        named = {**changed.new, "metadata": {**metadata, "name": metadata.get("name") or name_of(new)}}
        readmitted = await self._plugins(request, old, named)
        due += waiting if readmitted != named else []
        final, _, _ = await self._call_mutating(due, request, replace(changed, new=readmitted))
        return final.new or {}

    async def validate(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        """The last step of all."""
        if hooks := matching_webhooks(self._validating, request, old, new):
            await self._call_validating(hooks, request, admission_attributes(request, old, new))
        return new

    async def validate_delete(self, request: WriteRequest, old: Object) -> None:
        """Call the mutating webhooks, whose patches are rejected, and the validating ones."""
        if hooks := matching_webhooks(self._mutating, request, old, None):
            await self._call_mutating(hooks, request, admission_attributes(request, old, None))
        if hooks := matching_webhooks(self._validating, request, old, None):
            await self._call_validating(hooks, request, admission_attributes(request, old, None))

    async def admit(self, request: WriteRequest, attributes: AdmissionAttributes) -> Object | None:
        """Admit a request that does not write a stored object, for example a Scale, a Binding or a stream."""
        if request.origin is CallOrigin.SYNCER:
            return attributes.new
        kind = attributes.operation, attributes.resource, attributes.subresource
        if hooks := self._mutating.webhooks_for(kind, lambda: attributes):
            attributes, _, _ = await self._call_mutating(hooks, request, attributes)
        if hooks := self._validating.webhooks_for(kind, lambda: attributes):
            await self._call_validating(hooks, request, attributes)
        return attributes.new

    def admitted_handler(self, handler: ResourceHandler) -> ResourceHandler:
        """Wrap a handler of posts to a subresource with admission by webhooks."""

        async def admit_and_handle(call: Call, target: Target) -> ApiResponse:
            if self._mutating.is_empty and self._validating.is_empty:
                return await handler(call, target)
            request, attributes = posted_attributes(call, target)
            changed = await self.admit(request, attributes)
            if changed != attributes.new:
                call = structs.replace(call, decoded_body=changed)
            response = await handler(call, target)
            return structs.replace(
                response, headers={**response.headers, **response_with_warnings(request, 0, b"").headers}
            )

        return admit_and_handle

    # -- mutating webhooks

    async def _call_mutating(
        self, hooks: Sequence[Webhook], request: WriteRequest, attributes: AdmissionAttributes
    ) -> tuple[AdmissionAttributes, list[Webhook], list[Webhook]]:
        """Call webhooks in order. Returns the attributes, webhooks to reinvoke, and those to reinvoke on a change."""
        due: list[Webhook] = []
        waiting: list[Webhook] = []
        for hook in hooks:
            match = await self._match(self._mutating, hook, request, attributes)
            if match is None:
                continue
            changed = await self._patched_object(hook, request, attributes, *match)
            if changed != attributes.new:
                attributes = replace(attributes, new=changed)
                due, waiting = [*due, *waiting], []
            if hook.is_reinvocable:
                waiting.append(hook)
        return attributes, due, waiting

    async def _patched_object(
        self,
        hook: Webhook,
        request: WriteRequest,
        attributes: AdmissionAttributes,
        matched_resource: Resource,
        versioned_attributes: AdmissionAttributes,
    ) -> Object | None:
        try:
            operations = patch_operations(
                await self._call_webhook(hook, request, versioned_attributes, matched_resource, mutating=True)
            )
        except WebhookFailed as error:
            if (failure := failure_error(hook, error)) is not None:
                raise failure from error
            return attributes.new
        if not operations:
            return attributes.new
        if versioned_attributes.new is None:
            reason = "attempted to modify the object, which is not supported for this operation"
            raise api_errors.internal_error(f'admission webhook "{hook.name}" {reason}')
        try:
            patched = await run_if_large(request.size, apply_json_patch, versioned_attributes.new, operations)
        except PatchError as error:
            raise api_errors.internal_error(str(error)) from error
        return await self._read_again(request, attributes, matched_resource, patched)

    async def _read_again(
        self, request: WriteRequest, attributes: AdmissionAttributes, matched_resource: Resource, patched: Object
    ) -> Object:
        """Decode and default an object that a webhook changed, as if a client had sent it."""
        if matched_resource != attributes.resource:
            [patched] = await self._convert(request.target.info, [patched], attributes.resource.api_version)
        if attributes.kind.kind != attributes.resource.kind:
            return patched
        lenient_request = replace(request, query={**request.query, "fieldValidation": "Ignore"})
        obj = object_from_body(request.target, patched)
        try:
            return await self._read(lenient_request, attributes.old, obj)
        except BadRequest as error:  # the webhook's error, not the client's
            raise api_errors.internal_error(error.message) from error

    # -- validating webhooks

    async def _call_validating(
        self, hooks: Sequence[Webhook], request: WriteRequest, attributes: AdmissionAttributes
    ) -> None:
        matches = [(hook, await self._match(self._validating, hook, request, attributes)) for hook in hooks]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._validation_error(hook, request, *match))
                for hook, match in matches
                if match is not None
            ]
        for task in tasks:
            if (error := task.result()) is not None:
                raise error

    async def _validation_error(
        self,
        hook: Webhook,
        request: WriteRequest,
        matched_resource: Resource,
        versioned_attributes: AdmissionAttributes,
    ) -> ApiError | None:
        try:
            await self._call_webhook(hook, request, versioned_attributes, matched_resource, mutating=False)
        except WebhookFailed as error:
            return failure_error(hook, error)
        except ApiError as error:
            return error
        return None

    # -- one webhook

    async def _match(
        self, hooks: WebhookConfigurations, hook: Webhook, request: WriteRequest, attributes: AdmissionAttributes
    ) -> tuple[Resource, AdmissionAttributes] | None:
        """The matched resource and the attributes converted to it, or None if the webhook does not match."""
        matched = hook.criteria.matches(attributes, hooks.equivalents, self._namespace_labels)
        if matched is None:
            return None
        converted = await self._converted_attributes(request, attributes, matched)
        if hook.conditions is not None:
            try:
                if not await run_if_large(
                    0, hook.conditions.all_hold, expression_variables(converted, matched, self._authorize)
                ):
                    return None
            except EvaluationError as error:
                if hook.fails_open:
                    return None
                raise admission_forbidden(request, str(error)) from error
        return matched, converted

    def _namespace_labels(self, namespace: str) -> Mapping[str, str]:
        version = self._store.get("namespaces", "", namespace)
        return version.labels if version is not None else {}

    async def _converted_attributes(
        self, request: WriteRequest, attributes: AdmissionAttributes, matched_resource: Resource
    ) -> AdmissionAttributes:
        """The attributes with their objects converted to the version that a webhook matched."""
        if matched_resource == attributes.resource or attributes.kind.kind != attributes.resource.kind:
            return attributes
        objects = [obj for obj in (attributes.new, attributes.old) if obj is not None]
        converted = iter(await self._convert(request.target.info, objects, matched_resource.api_version))
        new = next(converted) if attributes.new is not None else None
        return replace(attributes, new=new, old=next(converted, None))

    async def _call_webhook(
        self,
        hook: Webhook,
        request: WriteRequest,
        attributes: AdmissionAttributes,
        matched_resource: Resource,
        *,
        mutating: bool,
    ) -> AdmissionResponse:
        """Call a webhook. Raises its denial, or WebhookFailed if it gives no decision."""
        if attributes.is_dry_run and hook.has_side_effects:
            raise api_errors.bad_request(f'admission webhook "{hook.name}" does not support dry run')
        version = next((each for each in hook.review_versions if each in REVIEW_VERSIONS), None)
        if version is None:
            reason = "webhook does not accept known AdmissionReview versions (v1, v1beta1)"
            raise WebhookFailed(f"could not create admission objects: {reason}")
        uid = str(uuid4())
        review = admission_review(attributes, matched_resource, version, uid, operation_options(request, attributes))
        try:
            content = await self._client.post(hook.client_config, msgspec.json.encode(review), hook.timeout_seconds)
            response = admission_response(content, version, uid, mutating=mutating)
        except WebhookCallError as error:
            raise WebhookFailed(f"failed to call webhook: {error}") from error
        except ReviewError as error:
            raise WebhookFailed(f"received invalid webhook response: {error}") from error
        request.warnings.extend(response.warnings)
        request.audit_annotations.update({f"{hook.name}/{key}": value for key, value in response.annotations.items()})
        if not response.allowed:
            raise webhook_denied_error(hook.name, response.result)
        return response


def matching_webhooks(
    hooks: WebhookConfigurations, request: WriteRequest, old: Object | None, new: Object | None
) -> tuple[Webhook, ...]:
    target = request.target
    info, subresource = target.info, target.subresource
    if request.user is BOOTSTRAP_USER:
        return ()
    if subresource and info.subresources[subresource].kind != info.resource.kind:
        return ()  # the handler of that subresource calls `admit` with the body
    operation = "DELETE" if new is None else "CREATE" if old is None else "UPDATE"
    return hooks.webhooks_for((operation, info.resource, subresource), lambda: admission_attributes(request, old, new))


def without_generated_name(request: WriteRequest, attributes: AdmissionAttributes) -> AdmissionAttributes:
    """The attributes without a name that the server generated, because webhooks may choose another."""
    if attributes.operation != "CREATE" or request.target.name or value_at(request.decoded_body, "metadata", "name"):
        return attributes
    return replace(attributes, name="", new=without_field(attributes.new or {}, "metadata", "name"))


def patch_operations(response: AdmissionResponse) -> list[Object]:
    """Decode the JSON Patch of a response."""
    if not response.patch:
        return []
    if response.patch_type != "JSONPatch":
        raise WebhookFailed(f'unsupported patch type "{response.patch_type}"')
    try:
        return msgspec.json.decode(response.patch, type=list[Object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WebhookFailed(f"received undecodable patch in webhook response: {error}") from error


def failure_error(hook: Webhook, error: WebhookFailed) -> ApiError | None:
    """The error for a webhook that gave no decision; None if its failurePolicy is Ignore."""
    if not hook.fails_open:
        return api_errors.internal_error(f'failed calling webhook "{hook.name}": {error}')
    log.warning("webhook call failed, request allowed by failurePolicy Ignore", webhook=hook.name, error=str(error))
    return None
