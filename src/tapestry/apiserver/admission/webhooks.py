"""Admission webhooks: others that have a say in writes, one after the other to change them, then all at once to judge.

When a hook has changed an object, the server's own admission has another look at it, and so have, once, those hooks
before it that asked for that (`reinvocationPolicy: IfNeeded`).  A write that concerns no hook costs one look-up.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import uuid4

import msgspec
from msgspec import structs

from tapestry.apiserver import api_errors
from tapestry.apiserver.admission.core_plugins import admission_forbidden
from tapestry.apiserver.admission.match_conditions import expression_variables
from tapestry.apiserver.admission.matching import AdmissionAttributes, admission_attributes, subresource_kind
from tapestry.apiserver.admission.reviews import (
    REVIEW_VERSIONS,
    AdmissionResponse,
    ReviewError,
    admission_response,
    admission_review,
    operation_options,
    webhook_denied_error,
)
from tapestry.apiserver.admission.webhook_client import WebhookCallError, WebhookClient
from tapestry.apiserver.admission.webhook_configurations import MUTATING, VALIDATING, Webhook, WebhookConfigurations
from tapestry.apiserver.bootstrap import BOOTSTRAP_USER
from tapestry.apiserver.request_bodies import decoded_body
from tapestry.apiserver.requests import Call, Target
from tapestry.apiserver.resource_registry import ResourceRegistry
from tapestry.apiserver.server import ApiResponse, Authorize, ResourceHandler, response_with_warnings
from tapestry.apiserver.storage.store import Store
from tapestry.apiserver.verbs import Convert, Step, WriteRequest
from tapestry.apiserver.workers import run_if_large
from tapestry.apiserver.writes import object_from_body
from tapestry.kube.cel.errors import EvaluationError
from tapestry.kube.errors import ApiError, BadRequest
from tapestry.kube.objects import Object, name_of, value_at, without_field
from tapestry.kube.patches import PatchError, apply_json_patch
from tapestry.kube.resources import Resource
from tapestry.process.logs import logger

log = logger(__name__)


class WebhookFailed(Exception):
    """A hook gave no verdict: its `failurePolicy` decides what that means."""


class AdmissionWebhooks:
    """Steps that ask webhooks, and the same for what is not written through the pipeline.

    `read` is how the server reads what a client writes, `plugins` its own admission: what a hook has changed passes
    through both again.
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

    async def mutate(self, request: WriteRequest, old: Object | None, new: Object | None) -> Object:
        """A step, the last of those that change an object."""
        if new is None:
            return old or {}
        hooks = matching_webhooks(self._mutating, request, old, new)
        if not hooks:
            return new
        attempt = without_generated_name(request, admission_attributes(request, old, new))
        changed, due, waiting = await self._call_mutating(hooks, request, attempt)
        if changed.new is None or changed.new is attempt.new:
            return new
        metadata = changed.new["metadata"]
        named = {**changed.new, "metadata": {**metadata, "name": metadata.get("name") or name_of(new)}}
        again = await self._plugins(request, old, named)
        due += waiting if again != named else []
        found, _, _ = await self._call_mutating(due, request, replace(changed, new=again))
        return found.new or {}

    async def validate(self, request: WriteRequest, old: Object | None, new: Object | None) -> Object:
        """A step, the last of all.  Of deletions, those hooks are told here, too, that would change objects."""
        if new is None and (hooks := matching_webhooks(self._mutating, request, old, new)):
            await self._call_mutating(hooks, request, admission_attributes(request, old, new))
        if hooks := matching_webhooks(self._validating, request, old, new):
            await self._call_validating(hooks, request, admission_attributes(request, old, new))
        return new if new is not None else old or {}

    async def admit(self, request: WriteRequest, attributes: AdmissionAttributes) -> Object | None:
        """What becomes of an attempt that is no write of an object as it is stored: of a Scale, a Binding, a stream."""
        kind = attributes.operation, attributes.resource, attributes.subresource
        if hooks := self._mutating.webhooks_for(kind, lambda: attributes):
            attributes, _, _ = await self._call_mutating(hooks, request, attributes)
        if hooks := self._validating.webhooks_for(kind, lambda: attributes):
            await self._call_validating(hooks, request, attributes)
        return attributes.new

    def admitted_handler(self, handler: ResourceHandler) -> ResourceHandler:
        """A handler of what is posted to a subresource, with what hooks say to that."""

        async def guard(call: Call, target: Target) -> ApiResponse:
            if self._mutating.is_empty and self._validating.is_empty:
                return await handler(call, target)
            request, attempt = posted_attributes(call, target)
            changed = await self.admit(request, attempt)
            if changed != attempt.new:
                call = structs.replace(call, decoded_body=changed)
            answer = await handler(call, target)
            return structs.replace(
                answer, headers={**answer.headers, **response_with_warnings(request, 0, b"").headers}
            )

        return guard

    # -- one after the other

    async def _call_mutating(
        self, hooks: Sequence[Webhook], request: WriteRequest, attributes: AdmissionAttributes
    ) -> tuple[AdmissionAttributes, list[Webhook], list[Webhook]]:
        """What the hooks make of an attempt; those to ask again, and those to ask again if anything else changes it."""
        due: list[Webhook] = []
        waiting: list[Webhook] = []
        for hook in hooks:
            meant = await self._match(self._mutating, hook, request, attributes)
            if meant is None:
                continue
            changed = await self._patched_object(hook, request, attributes, *meant)
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
            why = "attempted to modify the object, which is not supported for this operation"
            raise api_errors.internal_error(f'admission webhook "{hook.name}" {why}')
        try:
            patched = await run_if_large(request.size, apply_json_patch, versioned_attributes.new, operations)
        except PatchError as error:
            raise api_errors.internal_error(str(error)) from error
        return await self._read_again(request, attributes, matched_resource, patched)

    async def _read_again(
        self, request: WriteRequest, attributes: AdmissionAttributes, matched_resource: Resource, patched: Object
    ) -> Object:
        """What a hook has made of an object, as the server would have read it from a client."""
        if matched_resource != attributes.resource:
            [patched] = await self._convert(request.target.info, [patched], attributes.resource.api_version)
        if attributes.kind.kind != attributes.resource.kind:
            return patched
        quiet = replace(request, query={**request.query, "fieldValidation": "Ignore"})
        wanted = object_from_body(request.target, patched)
        try:
            return await self._read(quiet, attributes.old, wanted)
        except BadRequest as error:  # of the webhook, not of the client
            raise api_errors.internal_error(error.message) from error

    # -- all at once

    async def _call_validating(
        self, hooks: Sequence[Webhook], request: WriteRequest, attributes: AdmissionAttributes
    ) -> None:
        meant = [(hook, await self._match(self._validating, hook, request, attributes)) for hook in hooks]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._validation_error(hook, request, *found))
                for hook, found in meant
                if found is not None
            ]
        for task in tasks:
            if (objection := task.result()) is not None:
                raise objection

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

    # -- one hook

    async def _match(
        self, hooks: WebhookConfigurations, hook: Webhook, request: WriteRequest, attributes: AdmissionAttributes
    ) -> tuple[Resource, AdmissionAttributes] | None:
        """What a hook knows the object as, and the attempt as it is shown to it; None where it is not meant."""
        known_as = hook.criteria.matches(attributes, hooks.equivalents, self._namespace_labels)
        if known_as is None:
            return None
        shown = await self._converted_attributes(request, attributes, known_as)
        if hook.conditions is not None:
            try:
                if not await run_if_large(
                    0, hook.conditions.all_hold, expression_variables(shown, known_as, self._authorize)
                ):
                    return None
            except EvaluationError as error:
                if hook.fails_open:
                    return None
                raise admission_forbidden(request, str(error)) from error
        return known_as, shown

    def _namespace_labels(self, namespace: str) -> Mapping[str, str]:
        version = self._store.get("namespaces", "", namespace)
        return version.labels if version is not None else {}

    async def _converted_attributes(
        self, request: WriteRequest, attributes: AdmissionAttributes, matched_resource: Resource
    ) -> AdmissionAttributes:
        """The attempt with its objects in the version that a hook knows them in."""
        if matched_resource == attributes.resource or attributes.kind.kind != attributes.resource.kind:
            return attributes
        there = [obj for obj in (attributes.new, attributes.old) if obj is not None]
        converted = iter(await self._convert(request.target.info, there, matched_resource.api_version))
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
        """What a hook says to an attempt; raises its denial, or HookFailed where it says nothing."""
        if attributes.is_dry_run and hook.has_side_effects:
            raise api_errors.bad_request(f'admission webhook "{hook.name}" does not support dry run')
        version = next((each for each in hook.review_versions if each in REVIEW_VERSIONS), None)
        if version is None:
            why = "webhook does not accept known AdmissionReview versions (v1, v1beta1)"
            raise WebhookFailed(f"could not create admission objects: {why}")
        uid = str(uuid4())
        review = admission_review(attributes, matched_resource, version, uid, operation_options(request, attributes))
        try:
            answer = await self._client.post(hook.client_config, msgspec.json.encode(review), hook.timeout_seconds)
            found = admission_response(answer, version, uid, mutating=mutating)
        except WebhookCallError as error:
            raise WebhookFailed(f"failed to call webhook: {error}") from error
        except ReviewError as error:
            raise WebhookFailed(f"received invalid webhook response: {error}") from error
        request.warnings.extend(found.warnings)
        request.audit_annotations.update({f"{hook.name}/{key}": value for key, value in found.annotations.items()})
        if not found.allowed:
            raise webhook_denied_error(hook.name, found.result)
        return found


def matching_webhooks(
    hooks: WebhookConfigurations, request: WriteRequest, old: Object | None, new: Object | None
) -> tuple[Webhook, ...]:
    target = request.target
    row, subresource = target.info, target.subresource
    if request.user is BOOTSTRAP_USER:
        return ()
    if subresource and row.subresources[subresource].kind != row.resource.kind:
        return ()  # whoever serves that asks `admit`, of what was sent
    operation = "DELETE" if new is None else "CREATE" if old is None else "UPDATE"
    return hooks.webhooks_for((operation, row.resource, subresource), lambda: admission_attributes(request, old, new))


def posted_attributes(call: Call, target: Target) -> tuple[WriteRequest, AdmissionAttributes]:
    """What is posted to a subresource, as an attempt."""
    sent = decoded_body(call) or {}
    kind = subresource_kind(target.info, target.subresource)
    metadata = {**(sent.get("metadata") or {}), "namespace": target.namespace}
    body = {"kind": kind.kind, "apiVersion": kind.api_version, **sent, "metadata": metadata}
    request = WriteRequest("create", target, call.user, call.query, audit_annotations=call.audit_annotations)
    attempt = AdmissionAttributes(
        "CREATE",
        target.info.resource,
        target.subresource,
        kind,
        target.namespace,
        target.name or metadata.get("name", ""),
        call.user,
        request.is_dry_run,
        body,
        None,
    )
    return request, attempt


def without_generated_name(request: WriteRequest, attributes: AdmissionAttributes) -> AdmissionAttributes:
    """An attempt without the name that the server has just made up: hooks may choose another."""
    if attributes.operation != "CREATE" or request.target.name or value_at(request.decoded_body, "metadata", "name"):
        return attributes
    return replace(attributes, name="", new=without_field(attributes.new or {}, "metadata", "name"))


def patch_operations(response: AdmissionResponse) -> list[Object]:
    """The operations of a JSON Patch."""
    if not response.patch:
        return []
    if response.patch_type != "JSONPatch":
        raise WebhookFailed(f'unsupported patch type "{response.patch_type}"')
    try:
        return msgspec.json.decode(response.patch, type=list[Object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WebhookFailed(f"received undecodable patch in webhook response: {error}") from error


def failure_error(hook: Webhook, error: WebhookFailed) -> ApiError | None:
    """What it means that a hook said nothing: None where it may fail."""
    if not hook.fails_open:
        return api_errors.internal_error(f'failed calling webhook "{hook.name}": {error}')
    log.warning("webhook failed open", webhook=hook.name, error=str(error))
    return None
