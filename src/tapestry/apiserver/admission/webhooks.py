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

from tapestry.apiserver import refusals
from tapestry.apiserver.admission.callouts import CallError, Callouts
from tapestry.apiserver.admission.conditions import bindings
from tapestry.apiserver.admission.hooks import MUTATING, VALIDATING, Hook, Hooks
from tapestry.apiserver.admission.matching import Attempt, attempt_of, kind_of
from tapestry.apiserver.admission.plain import refused
from tapestry.apiserver.admission.reviews import VERSIONS, ReviewError, Verdict, denial, options_of, question, verdict
from tapestry.apiserver.bootstrap import STARTING
from tapestry.apiserver.payloads import sent_in
from tapestry.apiserver.requests import Call, Target
from tapestry.apiserver.rows import Rows
from tapestry.apiserver.server import Answer, Authorize, Handler, warned
from tapestry.apiserver.storage.store import Store
from tapestry.apiserver.verbs import Convert, Request, Step
from tapestry.apiserver.workers import run_if_large
from tapestry.apiserver.writes import placed
from tapestry.kube.cel.errors import EvaluationError
from tapestry.kube.errors import ApiError, BadRequest
from tapestry.kube.objects import Object, name_of, value_at, without
from tapestry.kube.patches import PatchError, json_patched
from tapestry.kube.resources import Resource
from tapestry.process.logs import logger

log = logger(__name__)


class HookFailed(Exception):
    """A hook gave no verdict: its `failurePolicy` decides what that means."""


class Webhooks:
    """Steps that ask webhooks, and the same for what is not written through the pipeline.

    `read` is how the server reads what a client writes, `plugins` its own admission: what a hook has changed passes
    through both again.
    """

    def __init__(
        self,
        store: Store,
        rows: Rows,
        callouts: Callouts,
        convert: Convert,
        authorize: Authorize,
        read: Step,
        plugins: Step,
    ) -> None:
        self._store, self._callouts, self._convert, self._authorize = store, callouts, convert, authorize
        self._read, self._plugins = read, plugins
        self._mutating, self._validating = Hooks(store, MUTATING, rows), Hooks(store, VALIDATING, rows)

    # -- steps

    async def mutate(self, request: Request, old: Object | None, new: Object | None) -> Object:
        """A step, the last of those that change an object."""
        if new is None:
            return old or {}
        hooks = concerned(self._mutating, request, old, new)
        if not hooks:
            return new
        attempt = unnamed(request, attempt_of(request, old, new))
        changed, due, waiting = await self._mutated(hooks, request, attempt)
        if changed.new is None or changed.new is attempt.new:
            return new
        metadata = changed.new["metadata"]
        named = {**changed.new, "metadata": {**metadata, "name": metadata.get("name") or name_of(new)}}
        again = await self._plugins(request, old, named)
        due += waiting if again != named else []
        found, _, _ = await self._mutated(due, request, replace(changed, new=again))
        return found.new or {}

    async def validate(self, request: Request, old: Object | None, new: Object | None) -> Object:
        """A step, the last of all.  Of deletions, those hooks are told here, too, that would change objects."""
        if new is None and (hooks := concerned(self._mutating, request, old, new)):
            await self._mutated(hooks, request, attempt_of(request, old, new))
        if hooks := concerned(self._validating, request, old, new):
            await self._judged(hooks, request, attempt_of(request, old, new))
        return new if new is not None else old or {}

    async def admit(self, request: Request, attempt: Attempt) -> Object | None:
        """What becomes of an attempt that is no write of an object as it is stored: of a Scale, a Binding, a stream."""
        kind = attempt.operation, attempt.resource, attempt.subresource
        if hooks := self._mutating.concerned(kind, lambda: attempt):
            attempt, _, _ = await self._mutated(hooks, request, attempt)
        if hooks := self._validating.concerned(kind, lambda: attempt):
            await self._judged(hooks, request, attempt)
        return attempt.new

    def guarded(self, handler: Handler) -> Handler:
        """A handler of what is posted to a subresource, with what hooks say to that."""

        async def guard(call: Call, target: Target) -> Answer:
            if self._mutating.is_empty and self._validating.is_empty:
                return await handler(call, target)
            request, attempt = posted(call, target)
            changed = await self.admit(request, attempt)
            if changed != attempt.new:
                call = structs.replace(call, sent=changed)
            answer = await handler(call, target)
            return structs.replace(answer, headers={**answer.headers, **warned(request, 0, b"").headers})

        return guard

    # -- one after the other

    async def _mutated(
        self, hooks: Sequence[Hook], request: Request, attempt: Attempt
    ) -> tuple[Attempt, list[Hook], list[Hook]]:
        """What the hooks make of an attempt; those to ask again, and those to ask again if anything else changes it."""
        due: list[Hook] = []
        waiting: list[Hook] = []
        for hook in hooks:
            meant = await self._meant(self._mutating, hook, request, attempt)
            if meant is None:
                continue
            changed = await self._patched(hook, request, attempt, *meant)
            if changed != attempt.new:
                attempt = replace(attempt, new=changed)
                due, waiting = [*due, *waiting], []
            if hook.is_repeatable:
                waiting.append(hook)
        return attempt, due, waiting

    async def _patched(
        self, hook: Hook, request: Request, attempt: Attempt, known_as: Resource, shown: Attempt
    ) -> Object | None:
        try:
            operations = patch_of(await self._verdict(hook, request, shown, known_as, mutating=True))
        except HookFailed as error:
            if (failure := failure_of(hook, error)) is not None:
                raise failure from error
            return attempt.new
        if not operations:
            return attempt.new
        if shown.new is None:
            why = "attempted to modify the object, which is not supported for this operation"
            raise refusals.internal(f'admission webhook "{hook.name}" {why}')
        try:
            patched = await run_if_large(request.size, json_patched, shown.new, operations)
        except PatchError as error:
            raise refusals.internal(str(error)) from error
        return await self._read_again(request, attempt, known_as, patched)

    async def _read_again(self, request: Request, attempt: Attempt, known_as: Resource, patched: Object) -> Object:
        """What a hook has made of an object, as the server would have read it from a client."""
        if known_as != attempt.resource:
            [patched] = await self._convert(request.target.row, [patched], attempt.resource.api_version)
        if attempt.kind.kind != attempt.resource.kind:
            return patched
        quiet = replace(request, query={**request.query, "fieldValidation": "Ignore"})
        wanted = placed(request.target, patched)
        try:
            return await self._read(quiet, attempt.old, wanted)
        except BadRequest as error:  # of the webhook, not of the client
            raise refusals.internal(error.message) from error

    # -- all at once

    async def _judged(self, hooks: Sequence[Hook], request: Request, attempt: Attempt) -> None:
        meant = [(hook, await self._meant(self._validating, hook, request, attempt)) for hook in hooks]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._objection(hook, request, *found)) for hook, found in meant if found is not None
            ]
        for task in tasks:
            if (objection := task.result()) is not None:
                raise objection

    async def _objection(self, hook: Hook, request: Request, known_as: Resource, shown: Attempt) -> ApiError | None:
        try:
            await self._verdict(hook, request, shown, known_as, mutating=False)
        except HookFailed as error:
            return failure_of(hook, error)
        except ApiError as error:
            return error
        return None

    # -- one hook

    async def _meant(
        self, hooks: Hooks, hook: Hook, request: Request, attempt: Attempt
    ) -> tuple[Resource, Attempt] | None:
        """What a hook knows the object as, and the attempt as it is shown to it; None where it is not meant."""
        known_as = hook.criteria.matches(attempt, hooks.equivalents, self._labels)
        if known_as is None:
            return None
        shown = await self._shown(request, attempt, known_as)
        if hook.conditions is not None:
            try:
                if not await run_if_large(0, hook.conditions.hold, bindings(shown, known_as, self._authorize)):
                    return None
            except EvaluationError as error:
                if hook.may_fail:
                    return None
                raise refused(request, str(error)) from error
        return known_as, shown

    def _labels(self, namespace: str) -> Mapping[str, str]:
        version = self._store.get("namespaces", "", namespace)
        return version.labels if version is not None else {}

    async def _shown(self, request: Request, attempt: Attempt, known_as: Resource) -> Attempt:
        """The attempt with its objects in the version that a hook knows them in."""
        if known_as == attempt.resource or attempt.kind.kind != attempt.resource.kind:
            return attempt
        there = [obj for obj in (attempt.new, attempt.old) if obj is not None]
        converted = iter(await self._convert(request.target.row, there, known_as.api_version))
        new = next(converted) if attempt.new is not None else None
        return replace(attempt, new=new, old=next(converted, None))

    async def _verdict(
        self, hook: Hook, request: Request, attempt: Attempt, known_as: Resource, *, mutating: bool
    ) -> Verdict:
        """What a hook says to an attempt; raises its denial, or HookFailed where it says nothing."""
        if attempt.dry and hook.has_effects:
            raise refusals.bad_request(f'admission webhook "{hook.name}" does not support dry run')
        version = next((each for each in hook.versions if each in VERSIONS), None)
        if version is None:
            why = "webhook does not accept known AdmissionReview versions (v1, v1beta1)"
            raise HookFailed(f"could not create admission objects: {why}")
        uid = str(uuid4())
        review = question(attempt, known_as, version, uid, options_of(request, attempt))
        try:
            answer = await self._callouts.post(hook.client, msgspec.json.encode(review), hook.seconds)
            found = verdict(answer, version, uid, mutating=mutating)
        except CallError as error:
            raise HookFailed(f"failed to call webhook: {error}") from error
        except ReviewError as error:
            raise HookFailed(f"received invalid webhook response: {error}") from error
        request.warnings.extend(found.warnings)
        request.notes.update({f"{hook.name}/{key}": value for key, value in found.annotations.items()})
        if not found.allowed:
            raise denial(hook.name, found.result)
        return found


def concerned(hooks: Hooks, request: Request, old: Object | None, new: Object | None) -> tuple[Hook, ...]:
    target = request.target
    row, subresource = target.row, target.subresource
    if request.user is STARTING:
        return ()
    if subresource and row.subresources[subresource].kind != row.resource.kind:
        return ()  # whoever serves that asks `admit`, of what was sent
    operation = "DELETE" if new is None else "CREATE" if old is None else "UPDATE"
    return hooks.concerned((operation, row.resource, subresource), lambda: attempt_of(request, old, new))


def posted(call: Call, target: Target) -> tuple[Request, Attempt]:
    """What is posted to a subresource, as an attempt."""
    sent = sent_in(call) or {}
    kind = kind_of(target.row, target.subresource)
    metadata = {**(sent.get("metadata") or {}), "namespace": target.namespace}
    body = {"kind": kind.kind, "apiVersion": kind.api_version, **sent, "metadata": metadata}
    request = Request("create", target, call.user, call.query, notes=call.notes)
    attempt = Attempt(
        "CREATE",
        target.row.resource,
        target.subresource,
        kind,
        target.namespace,
        target.name or metadata.get("name", ""),
        call.user,
        request.is_dry,
        body,
        None,
    )
    return request, attempt


def unnamed(request: Request, attempt: Attempt) -> Attempt:
    """An attempt without the name that the server has just made up: hooks may choose another."""
    if attempt.operation != "CREATE" or request.target.name or value_at(request.sent, "metadata", "name"):
        return attempt
    return replace(attempt, name="", new=without(attempt.new or {}, "metadata", "name"))


def patch_of(said: Verdict) -> list[Object]:
    """The operations of a JSON Patch."""
    if not said.patch:
        return []
    if said.patch_type != "JSONPatch":
        raise HookFailed(f'unsupported patch type "{said.patch_type}"')
    try:
        return msgspec.json.decode(said.patch, type=list[Object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HookFailed(f"received undecodable patch in webhook response: {error}") from error


def failure_of(hook: Hook, error: HookFailed) -> ApiError | None:
    """What it means that a hook said nothing: None where it may fail."""
    if not hook.may_fail:
        return refusals.internal(f'failed calling webhook "{hook.name}": {error}')
    log.warning("webhook failed open", webhook=hook.name, error=str(error))
    return None
