"""The verbs that write, over one store: each returns encoded bytes, or raises the same error as Kubernetes.

A write reads the newest version, computes the next one with pure functions, admits and validates it, and replaces
exactly that version. If another write came first, it is retried, unless the client named a resourceVersion.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import Any

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Attributes,
    Authorize,
    DeleteStep,
    Step,
    Target,
    WriteRequest,
    allow_all,
    forbidden_resource,
    object_from_body,
)
from tapestry.apiserver.core.resource_registry import ALLOWS_CREATE_ON_UPDATE, RETURNS_DELETED_OBJECT, ResourceInfo
from tapestry.apiserver.core.storage_codec import DECODER, ENCODER, StorageCodec, encode_for_storage
from tapestry.apiserver.core.storage_limits import StorageLimits
from tapestry.apiserver.core.store import Key, ObjectVersion, Store, VersionConflict
from tapestry.apiserver.core.workers import LARGE_BYTES, reserve_memory, run_if_large
from tapestry.apiserver.handlers import writes
from tapestry.apiserver.handlers.selections import matching_versions, parse_selection
from tapestry.apiserver.handlers.views import encode_list
from tapestry.kube.errors import AlreadyExists, ApiError
from tapestry.kube.names import generated_suffix
from tapestry.kube.objects import Object, is_deleting, name_of, uid_from_bits, uid_of, with_value, without_field
from tapestry.kube.patches import PatchError, apply_json_patch, apply_merge_patch
from tapestry.kube.strategic_merge import apply_strategic_merge_patch

DELETE_COLLECTION_WORKERS = 16
"""Number of objects of a collection that are deleted concurrently."""
MAX_ATTEMPTS = 200
"""Maximum number of attempts of a write without resourceVersion; concurrent writes may come first."""
APPROVED_IN_STATUS = frozenset({"certificatesigningrequests.certificates.k8s.io"})
"""Resources whose status grants credentials: writing it always requires the right to approve or to sign."""
Apply = Callable[[WriteRequest, Object | None, Any], Object]
"""Server-side apply: (current object, applied configuration) to the desired object."""


async def object_unchanged(_: WriteRequest, __: Object | None, new: Object) -> Object:
    return new


@dataclass(frozen=True)
class Verbs:
    store: Store
    codec: StorageCodec
    now: Callable[[], datetime]
    admit: Step
    """Decoding by type, defaults, managed fields and mutating admission, before the server sets its own fields."""
    validate: Step
    """Validation and validating admission of the object to be stored."""
    delete_steps: Sequence[DeleteStep]
    """Validation and validating admission of the object to be stored."""
    server_side_apply: Apply
    random: Random
    unrestricted: bool = False
    """Allow writes to an object to set its status too, except for an approval."""
    admission_validate: Step = object_unchanged
    """The part of `validate` that also runs for writes without changes: policies and webhooks."""
    authorize: Authorize = allow_all
    """Authorize the create that a PUT or an apply may result in; the server has authorized the verb itself."""
    storage_limits: StorageLimits | None = None

    async def create(self, request: WriteRequest, body: Any) -> bytes:
        """Admit, validate and store a new object; retry if its generated name is taken."""
        target = request.target
        info, resource = target.info, target.info.resource
        if resource.namespaced and not target.namespace:
            raise api_errors.method_not_allowed()
        desired = object_from_body(target, body)
        request.size = max(request.size, len(request.body), info.schema_size)
        if request.is_dry_run:
            desired = without_field(desired, "metadata", "resourceVersion")  # Kubernetes checks it only for real writes
        base = str(desired["metadata"].get("generateName", ""))
        for _ in range(MAX_ATTEMPTS):
            given_name = desired["metadata"].get("name")
            request.name = name = given_name or self.generated_name(info, base)
            named_object = desired if given_name else with_value(desired, ("metadata", "name"), name)
            admitted = await self.admit(request, None, named_object)
            request.name = name = name_of(admitted)  # admission may have changed it
            created = writes.created_object(
                info, admitted, uid=self.new_uid(), now=self.now(), unrestricted=self.is_unrestricted(info)
            )
            validated = await self.validate(request, None, created)
            key = Key(info.storage, target.namespace, name)
            if (head := self.store.head(*key)) is not None:
                if base and not given_name:
                    continue
                raise api_errors.already_exists(resource, name, is_deleting=is_deleting(await decode_object(head.raw)))
            if request.is_dry_run:
                return ENCODER.encode(validated)
            try:
                encoder = (
                    await self.codec.to_storage(info, validated)
                    if info.conversion_webhook
                    else encode_for_storage(info, validated)
                )
                raw = (await self.limited_store.put(key, None, encoder, request.claim)).raw
                return raw if info.is_plain else await self.codec.from_storage(info, raw)
            except VersionConflict:
                continue
        raise api_errors.already_exists(resource, base)

    async def replace(self, request: WriteRequest, body: Any) -> bytes:
        target = request.target
        desired = object_from_body(target, body)
        if (
            self.store.head(*target.key) is None
            and target.info.resource.name in ALLOWS_CREATE_ON_UPDATE
            and not target.subresource
        ):
            return await self.create(self.as_create_request(request), body)
        return await self.update(request, lambda _: desired)

    async def patch(self, request: WriteRequest, patch: Any) -> bytes:
        """Patch an object, except by server-side apply (see `apply`)."""

        def patched(current: Object) -> Object:
            result = object_from_body(
                request.target, self.apply_patch(request.target.info, current, request.content_type, patch)
            )
            if uid_of(result) and uid_of(result) != uid_of(current):
                raise api_errors.uid_mismatch(
                    request.target.info.resource, name_of(current), uid_of(result), uid_of(current)
                )
            return result

        return await self.update(request, patched)

    async def apply(self, request: WriteRequest, body: Any) -> tuple[int, bytes]:
        """Apply a configuration by server-side apply; the status is 201 if the object was created."""
        target = request.target
        for _ in range(MAX_ATTEMPTS):
            if target.subresource or self.store.head(*target.key) is not None:
                return 200, await self.update(
                    request,
                    lambda current: object_from_body(target, self.server_side_apply(request, current, body)),
                )
            try:
                create_request = self.as_create_request(request)
                config = await run_if_large(len(request.body), self.server_side_apply, request, None, body)
                return 201, await self.create(create_request, config)
            except AlreadyExists:
                continue
        raise api_errors.conflict(target.info.resource, target.name, api_errors.OBJECT_MODIFIED)

    def as_create_request(self, request: WriteRequest) -> WriteRequest:
        """Return a create request for the target of a write. Raises Forbidden if the user may not create it."""
        if not self.authorize(Attributes(request.user, "create", request.target)):
            raise forbidden_resource(request.user.name, "create", request.target)
        return replace(request, verb="create")

    async def update(
        self, request: WriteRequest, change: Callable[[Object], Object], *, unrestricted: bool = False
    ) -> bytes:
        """Replace an object with the result of `change`; `unrestricted` lets it change the status too."""
        target = request.target
        info, key = target.info, target.key
        for _ in range(MAX_ATTEMPTS):
            head = self.store.head(*key)
            if head is None:
                raise api_errors.not_found(info.resource, target.name)
            request.size = max(len(request.body), len(head.raw), info.schema_size)
            raw = head.raw if info.is_plain else await self.codec.from_storage(info, head.raw)
            if request.size < LARGE_BYTES:
                current: Object = DECODER.decode(raw)
                changed = change(current)
            else:
                await reserve_memory(request.size)
                current = await run_if_large(request.size, DECODER.decode, raw)
                changed = await run_if_large(request.size, change, current)
            admitted = await self.admit(request, current, changed)
            new = writes.updated_object(
                info, current, admitted, target.subresource, unrestricted=unrestricted or self.is_unrestricted(info)
            )
            validated = await (self.validate if new is not current else self.admission_validate)(request, current, new)
            if validated == current:
                await self.store.wait_for_pending_write(key)
                return await self.codec.from_storage(info, head.raw)
            if request.is_dry_run:
                return ENCODER.encode(validated)
            try:
                encoder = await self.codec.to_storage(info, validated)
                if writes.is_removable(validated):
                    return await self.codec.from_storage(info, (await self.store.delete(key, head, encoder)).raw)
                return await self.codec.from_storage(
                    info, (await self.limited_store.put(key, head, encoder, request.claim)).raw
                )
            except VersionConflict:
                continue
        raise api_errors.conflict(info.resource, target.name, api_errors.OBJECT_MODIFIED)

    def apply_patch(self, info: ResourceInfo, current: Object, content_type: str, patch: Any) -> Any:
        if content_type != JSON_PATCH:
            api_errors.check_patch_type(patch, dict, "map[string]interface {}")
        else:
            api_errors.check_patch_type(patch, list, "[]handlers.jsonPatchOp")
            for each in patch:
                api_errors.check_patch_type(each, dict, "handlers.jsonPatchOp")
        try:
            match content_type:
                case "application/json-patch+json":
                    return apply_json_patch(current, patch)
                case "application/merge-patch+json":
                    return apply_merge_patch(current, patch)
                case "application/strategic-merge-patch+json" if info.patch_schema is not None:
                    return apply_strategic_merge_patch(current, patch, info.patch_schema)
        except PatchError as error:
            raise api_errors.invalid_patch(str(error)) from error
        accepted = (
            JSON_PATCH,
            MERGE_PATCH,
            *((STRATEGIC_PATCH,) if info.patch_schema is not None else ()),
            APPLY_PATCH,
        )
        raise api_errors.unsupported_patch_type(", ".join(accepted))

    async def delete(self, request: WriteRequest, options: Mapping[str, Any]) -> bytes:
        """Delete an object, or mark it as deleting; return the response body."""
        target = request.target
        info, key = target.info, target.key
        for _ in range(MAX_ATTEMPTS):
            head = self.store.head(*key)
            if head is None:
                raise api_errors.not_found(info.resource, target.name)
            current = await decode_object(await self.codec.from_storage(info, head.raw))
            remaining = writes.deleted_object(info, current, options, self.now())
            for step in self.delete_steps:
                await step(request, current)
            if remaining is current or request.is_dry_run:
                return self.delete_response(info, current, head.raw, is_deleted=remaining is None)
            try:
                if remaining is None:
                    deleted = await self.store.delete(key, head, await self.codec.to_storage(info, current))
                    return self.delete_response(
                        info, current, await self.codec.from_storage(info, deleted.raw), is_deleted=True
                    )
                encoder = await self.codec.to_storage(info, remaining)
                marked = await self.store.put(key, head, encoder, request.claim)
                return await self.codec.from_storage(info, marked.raw)
            except VersionConflict:
                continue
        raise api_errors.conflict(info.resource, target.name, api_errors.OBJECT_MODIFIED)

    def delete_response(self, info: ResourceInfo, obj: Object, raw: bytes, *, is_deleted: bool) -> bytes:
        if not is_deleted or info.resource.name in RETURNS_DELETED_OBJECT:
            return raw
        details = {**api_errors.status_details(info.resource, name_of(obj)), "uid": uid_of(obj)}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return ENCODER.encode(status)

    async def delete_collection(self, request: WriteRequest, options: Mapping[str, Any]) -> bytes:
        target = request.target
        selection = await parse_selection(target.info, request.query)
        items = await matching_versions(self.store.list_objects(target.info.storage, target.namespace), selection)
        remaining = iter(items)

        async def delete_next() -> None:
            for version in remaining:
                await self.delete_if_exists(request, version, options)
                await asyncio.sleep(0)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(DELETE_COLLECTION_WORKERS, len(items))):
                    group.create_task(delete_next())
        except ExceptionGroup as errors:
            api_error = next((each for each in errors.exceptions if isinstance(each, ApiError)), None)
            if api_error is None:
                raise
            raise api_error from None
        metadata = {"resourceVersion": str(self.store.revision)}
        return encode_list(target.info, metadata, await self.codec.all_from_storage(target.info, items))

    async def delete_if_exists(self, request: WriteRequest, version: ObjectVersion, options: Mapping[str, Any]) -> None:
        target = Target(request.target.info, version.key.namespace, version.key.name)
        try:
            await self.delete(
                WriteRequest("delete", target, request.user, request.query, origin=request.origin), options
            )
        except ApiError as error:
            if error.code != 404:
                raise

    @property
    def limited_store(self) -> Store | StorageLimits:
        return self.storage_limits or self.store

    def is_unrestricted(self, info: ResourceInfo) -> bool:
        return self.unrestricted and info.resource.name not in APPROVED_IN_STATUS

    def new_uid(self) -> str:
        return uid_from_bits(self.random.getrandbits(128))

    def generated_name(self, info: ResourceInfo, base: str) -> str:
        if not base:
            why = "Required value: name or generateName is required"
            raise api_errors.invalid_field(info.resource, "", "metadata.name", why)
        return base[:58] + generated_suffix(self.random.random())


async def decode_object(raw: bytes) -> Object:
    """Decode an object, in the worker thread if it is large."""
    result: Object
    if len(raw) < LARGE_BYTES:
        result = DECODER.decode(raw)
    else:
        await reserve_memory(len(raw))
        result = await run_if_large(len(raw), DECODER.decode, raw)
    return result
