"""Scale subresource of built-in workloads and custom resources."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from tapestry.apiserver.admission.matching import AdmissionAttributes, admission_attributes
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.codec import JSON, media_type
from tapestry.apiserver.core.request_bodies import decoded_body
from tapestry.apiserver.core.requests import JSON_PATCH, Call, Target, WriteRequest
from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.core.responses import ApiResponse, json_response, response_with_warnings
from tapestry.apiserver.handlers import views
from tapestry.apiserver.handlers.reader import Reader
from tapestry.apiserver.handlers.verbs import MAX_ATTEMPTS, Verbs
from tapestry.kube.errors import Conflict
from tapestry.kube.objects import Object, value_at, with_value
from tapestry.kube.patches import PatchError, apply_json_patch, apply_merge_patch
from tapestry.kube.resources import Resource
from tapestry.kube.selectors import label_selector

SCALE = Resource("autoscaling", "v1", "Scale", "scales")
METADATA_FIELDS = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
BUILT_IN_PATHS = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
"""Paths of the replicas in built-in workloads."""


@dataclass(frozen=True)
class ScaleHandler:
    """Handle requests for the `scale` subresource."""

    reader: Reader
    verbs: Verbs
    admit: Callable[[WriteRequest, AdmissionAttributes], Awaitable[Object | None]]
    """Call the admission webhooks and return the admitted Scale."""

    async def handle(self, call: Call, target: Target) -> ApiResponse:
        if call.method == "GET":
            form, include = views.requested_form(call)
            return json_response(
                200, views.scale_view(scale_object(target.info, await self.current_object(target)), form, include)
            )
        if call.method not in ("PUT", "PATCH"):
            raise api_errors.method_not_allowed()
        content_type = media_type(call.headers.get("content-type", "")) or JSON
        body = decoded_body(call)
        for _ in range(MAX_ATTEMPTS):
            request = WriteRequest(
                *("update", target, call.user, call.query, content_type),
                user_agent=call.headers.get("user-agent", ""),
                audit_annotations=call.audit_annotations,
                origin=call.origin,
            )
            try:
                return await self.update_scale(request, body, is_patch=call.method == "PATCH")
            except Conflict:
                if value_at(body if isinstance(body, dict) else {}, "metadata", "resourceVersion"):
                    raise
        raise api_errors.conflict(target.info.resource, target.name, api_errors.OBJECT_MODIFIED)

    async def current_object(self, target: Target) -> Object:
        main = Target(target.info, target.namespace, target.name)
        obj: Object = msgspec.json.decode(await self.reader.get(main, {}))
        return obj

    async def latest_object(self, target: Target) -> Object:
        """The object as the next write sees it, including pending writes."""
        head = self.verbs.store.head(*target.key)
        if head is None:
            raise api_errors.not_found(target.info.resource, target.name)
        obj: Object = msgspec.json.decode(await self.verbs.codec.from_storage(target.info, head.raw))
        return obj

    async def update_scale(self, request: WriteRequest, sent: Any, *, is_patch: bool) -> ApiResponse:
        target = request.target
        info, path = target.info, replicas_path(target.info)
        current = await self.latest_object(target)
        old = scale_object(info, current)
        before = old if value_at(current, *path) is not None else {**old, "spec": {}}
        desired = patched_scale(before, sent, request.content_type) if is_patch else sent
        check_scale(desired, info, target.name, is_patch=is_patch)
        new = {**old, **desired, "metadata": {**old["metadata"], **(desired.get("metadata") or {})}}
        scale = await self.admit(request, admission_attributes(request, old, new)) or {}
        version = value_at(scale, "metadata", "resourceVersion", default="")
        replicas = value_at(scale, "spec", "replicas", default=0)

        def with_replicas(obj: Object) -> Object:
            return with_value(with_value(obj, ("metadata", "resourceVersion"), version), path, replicas)

        raw = await self.verbs.update(request, with_replicas)
        return response_with_warnings(request, 200, msgspec.json.encode(scale_object(info, msgspec.json.decode(raw))))


def patched_scale(scale: Object, patch: Any, content_type: str) -> Any:
    try:
        return apply_json_patch(scale, patch) if content_type == JSON_PATCH else apply_merge_patch(scale, patch)
    except PatchError as error:
        raise api_errors.invalid_patch(str(error)) from error


def check_scale(scale: Any, info: ResourceInfo, name: str, *, is_patch: bool) -> None:
    fields = ("metadata", "spec")
    if not isinstance(scale, dict) or not all(isinstance(scale.get(each), dict | None) for each in fields):
        raise api_errors.bad_request("the body is not a Scale")
    replicas = value_at(scale, "spec", "replicas")
    if replicas is None and is_patch and info.scale:
        path = info.scale.get("specReplicasPath", "")
        raise api_errors.bad_request(f'the spec replicas field "{path}" cannot be empty')
    if not isinstance(replicas or 0, int) or isinstance(replicas, bool):
        raise api_errors.bad_request(f"Scale: spec.replicas: {msgspec.json.encode(replicas).decode()} is not a number")
    if (replicas or 0) < 0:
        message = f"Invalid value: {replicas}: must be greater than or equal to 0"
        raise api_errors.invalid_field(SCALE, name, "spec.replicas", message)


def scale_object(info: ResourceInfo, obj: Object) -> Object:
    metadata = {key: value for key, value in obj["metadata"].items() if key in METADATA_FIELDS}
    status: Object = {"replicas": scale_value(info, obj, "statusReplicasPath") or 0}
    if selector := selector_text(info, obj):
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": scale_value(info, obj, "specReplicasPath") or 0},
        "status": status,
    }


def selector_text(info: ResourceInfo, obj: Object) -> str:
    if info.scale:
        return str(scale_value(info, obj, "labelSelectorPath") or "")
    selector = value_at(obj, "spec", "selector", default={})
    return str(label_selector(selector if info.resource.group else {"matchLabels": selector}))


def scale_value(info: ResourceInfo, obj: Object, field: str) -> Any:
    path = (info.scale or BUILT_IN_PATHS).get(field)
    return value_at(obj, *path_steps(path)) if path else None


def replicas_path(info: ResourceInfo) -> tuple[str, ...]:
    return path_steps((info.scale or BUILT_IN_PATHS)["specReplicasPath"])


def path_steps(path: str) -> tuple[str, ...]:
    return tuple(path.lstrip(".").split("."))
