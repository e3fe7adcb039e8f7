"""Scales: how many replicas a workload has and should have, in one shape for all of them, custom resources included."""

from dataclasses import dataclass
from typing import Any

import msgspec

from tapestry.apiserver import refusals, views
from tapestry.apiserver.admission.matching import Attempt, kind_of
from tapestry.apiserver.admission.webhooks import Webhooks
from tapestry.apiserver.codec import JSON, media_type
from tapestry.apiserver.payloads import sent_in
from tapestry.apiserver.requests import Call, Target
from tapestry.apiserver.rows import Row
from tapestry.apiserver.server import Answer, answered, form_of, warned
from tapestry.apiserver.verbs import JSON_PATCH, TRIES, Request, Verbs
from tapestry.kube.errors import Conflict
from tapestry.kube.objects import Object, value_at, with_value
from tapestry.kube.patches import PatchError, json_patched, merged
from tapestry.kube.resources import Resource
from tapestry.kube.selectors import label_selector

SCALE = Resource("autoscaling", "v1", "Scale", "scales")
METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
REPLICAS = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
"""Where built-in workloads have them."""


@dataclass(frozen=True)
class Scales:
    """Answers what is asked of a `scale`."""

    verbs: Verbs
    webhooks: Webhooks

    async def handle(self, call: Call, target: Target) -> Answer:
        if call.method == "GET":
            form, include = form_of(call)
            return answered(200, views.scale(scale_of(target.row, await self.current(target)), form, include))
        if call.method not in ("PUT", "PATCH"):
            raise refusals.not_allowed()
        content_type = media_type(call.headers.get("content-type", "")) or JSON
        sent = sent_in(call)
        for _ in range(TRIES):
            agent = call.headers.get("user-agent", "")
            request = Request("update", target, call.user, call.query, content_type, agent=agent, notes=call.notes)
            try:
                return await self.scaled(request, sent, is_patch=call.method == "PATCH")
            except Conflict:
                if value_at(sent if isinstance(sent, dict) else {}, "metadata", "resourceVersion"):
                    raise
        raise refusals.conflict(target.row.resource, target.name, refusals.MODIFIED)

    async def current(self, target: Target) -> Object:
        main = Target(target.row, target.namespace, target.name)
        found: Object = msgspec.json.decode(await self.verbs.get(main, {}))
        return found

    async def newest(self, target: Target) -> Object:
        """As it is to be changed: with writes that are under way, which nobody is shown yet."""
        head = self.verbs.store.head(*target.key)
        if head is None:
            raise refusals.not_found(target.row.resource, target.name)
        found: Object = msgspec.json.decode(await self.verbs.shown(target.row, head.raw))
        return found

    async def scaled(self, request: Request, sent: Any, *, is_patch: bool) -> Answer:
        target = request.target
        row, path = target.row, replicas_path(target.row)
        current = await self.newest(target)
        old = scale_of(row, current)
        before = old if value_at(current, *path) is not None else {**old, "spec": {}}
        wanted = patched(before, sent, request.content_type) if is_patch else sent
        check(wanted, row, target.name, is_patch=is_patch)
        attempt = Attempt(
            "UPDATE",
            row.resource,
            "scale",
            kind_of(row, "scale"),
            target.namespace,
            target.name,
            request.user,
            request.is_dry,
            {**old, **wanted, "metadata": {**old["metadata"], **(wanted.get("metadata") or {})}},
            old,
        )
        scale = await self.webhooks.admit(request, attempt) or {}
        version = value_at(scale, "metadata", "resourceVersion", default="")
        replicas = value_at(scale, "spec", "replicas", default=0)

        def changed(obj: Object) -> Object:
            return with_value(with_value(obj, ("metadata", "resourceVersion"), version), path, replicas)

        raw = await self.verbs.update(request, changed)
        return warned(request, 200, msgspec.json.encode(scale_of(row, msgspec.json.decode(raw))))


def patched(scale: Object, patch: Any, content_type: str) -> Any:
    try:
        return json_patched(scale, patch) if content_type == JSON_PATCH else merged(scale, patch)
    except PatchError as error:
        raise refusals.rejected_patch(str(error)) from error


def check(wanted: Any, row: Row, name: str, *, is_patch: bool) -> None:
    fields = ("metadata", "spec")
    if not isinstance(wanted, dict) or not all(isinstance(wanted.get(each), dict | None) for each in fields):
        raise refusals.bad_request("the body is not a Scale")
    replicas = value_at(wanted, "spec", "replicas")
    if replicas is None and is_patch and row.scale:
        path = row.scale.get("specReplicasPath", "")
        raise refusals.bad_request(f'the spec replicas field "{path}" cannot be empty')
    if not isinstance(replicas or 0, int) or isinstance(replicas, bool):
        raise refusals.bad_request(f"Scale: spec.replicas: {msgspec.json.encode(replicas).decode()} is not a number")
    if (replicas or 0) < 0:
        why = f"Invalid value: {replicas}: must be greater than or equal to 0"
        raise refusals.invalid(SCALE, name, "spec.replicas", why)


def scale_of(row: Row, obj: Object) -> Object:
    metadata = {key: value for key, value in obj["metadata"].items() if key in METADATA}
    status: Object = {"replicas": at(row, obj, "statusReplicasPath") or 0}
    if selector := selector_of(row, obj):
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": at(row, obj, "specReplicasPath") or 0},
        "status": status,
    }


def selector_of(row: Row, obj: Object) -> str:
    if row.scale:
        return str(at(row, obj, "labelSelectorPath") or "")
    selector = value_at(obj, "spec", "selector", default={})
    return str(label_selector(selector if row.resource.group else {"matchLabels": selector}))


def at(row: Row, obj: Object, field: str) -> Any:
    path = (row.scale or REPLICAS).get(field)
    return value_at(obj, *steps(path)) if path else None


def replicas_path(row: Row) -> tuple[str, ...]:
    return steps((row.scale or REPLICAS)["specReplicasPath"])


def steps(path: str) -> tuple[str, ...]:
    return tuple(path.lstrip(".").split("."))
