"""The steps of a write: each step may change the object, reject it, or add warnings."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

import msgspec

from tapestry.apiserver import api_errors
from tapestry.apiserver.customresources.structural_schema import child_path
from tapestry.apiserver.resource_registry import ResourceInfo
from tapestry.apiserver.spec_cache import SpecCache
from tapestry.apiserver.type_decoders import TypeDecoders
from tapestry.apiserver.verbs import Step, WriteRequest
from tapestry.apiserver.workers import LARGE_BYTES, current_request_budget, run_if_large, run_sync
from tapestry.kube.budget import SliceExceeded, checkpoint
from tapestry.kube.errors import BadRequest
from tapestry.kube.objects import Object

MAX_REPORTED_FIELDS = 100
"""Maximum number of fields that an error or a warning lists, as in Kubernetes."""
NO_SLICE = nullcontext()
encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class PureStep:
    """A step that never waits and depends on its arguments only, so it may run in a thread."""

    step: Step


@dataclass(frozen=True, slots=True)
class ResourceStep:
    """A step that applies to some resources only."""

    applies_to: Callable[[ResourceInfo], bool]
    step: Step | PureStep


def is_one_of(*resources: str) -> Callable[[ResourceInfo], bool]:
    """Return a predicate that matches the given resources."""
    return lambda info: info.storage in resources


def is_custom(info: ResourceInfo) -> bool:
    return info.is_custom


def is_built_in(info: ResourceInfo) -> bool:
    return not info.is_custom


@dataclass(frozen=True, slots=True)
class StepGroup:
    """Consecutive steps that are all pure, or all not. Pure steps never wait, so they form one slice of work."""

    steps: Sequence[Step]
    is_pure: bool

    def run_pure(self, request: WriteRequest, old: Object | None, new: Object, warning_count: int) -> Object:
        """Run pure steps; a rerun first drops the warnings after the first `warning_count`."""
        del request.warnings[warning_count:]
        checkpoint()
        for step in self.steps:
            new = run_sync(step(request, old, new))
        return new


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A sequence of steps that acts as one step."""

    steps: Sequence[Step | ResourceStep | PureStep]
    _groups_by_resource: dict[str, Sequence[StepGroup]] = field(default_factory=dict)
    """The step groups that apply to each resource."""

    def groups_for(self, info: ResourceInfo) -> Sequence[StepGroup]:
        result = self._groups_by_resource.get(info.storage)
        if result is None:
            applicable = [each for each in self.steps if not isinstance(each, ResourceStep) or each.applies_to(info)]
            steps = [each.step if isinstance(each, ResourceStep) else each for each in applicable]
            result = self._groups_by_resource[info.storage] = [
                StepGroup([each.step if isinstance(each, PureStep) else each for each in group], is_pure)
                for is_pure, group in groupby(steps, lambda each: isinstance(each, PureStep))
            ]
        return result

    async def __call__(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        groups, budget = self.groups_for(request.target.info), current_request_budget()
        for group in groups:
            if not group.is_pure:
                for step in group.steps:
                    new = await step(request, old, new)
                continue
            warnings, original = len(request.warnings), new
            if budget is None or request.size < LARGE_BYTES:
                try:
                    with budget or NO_SLICE:
                        for step in group.steps:
                            new = await step(request, old, new)
                    continue
                except SliceExceeded:
                    pass
            new = await run_if_large(LARGE_BYTES, group.run_pure, request, old, original, warnings)
        return new


@dataclass(frozen=True, slots=True)
class BuiltInDecoder:
    """A step that drops unknown fields and nulls from objects of built-in kinds."""

    types: TypeDecoders
    cache: SpecCache

    async def __call__(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        info = request.target.info
        # Fields that a patch left same were decoded when they were written.
        changed = (
            new if old is None else {key: each for key, each in new.items() if each is None or each is not old.get(key)}
        )
        try:
            result, report = self.types.decode(info.schema_name, changed, info.resource.kind, self.cache)
        except BadRequest as error:
            if request.verb == "patch":
                raise api_errors.invalid_patch_result(error.message) from error
            raise
        report_field_errors(
            request, report.unknown, duplicate_fields(request.body) if may_have_duplicate_fields(request) else ()
        )
        if changed is new:
            return result
        same = {key: each for key, each in new.items() if key not in changed}
        return {key: same.get(key, result.get(key)) for key in {**new, **result} if key in same or key in result}


def may_have_duplicate_fields(request: WriteRequest) -> bool:
    """Return whether the body may set a field twice: its text has more keys than the decoded data."""
    return request.verb in ("create", "update") and request.body.count(b'":') > encode(request.decoded_body).count(
        b'":'
    )


def report_duplicate_keys(request: WriteRequest) -> None:
    """Reject or warn about keys that a YAML body sets twice."""
    mode = request.query.get("fieldValidation") or "Warn"
    if mode == "Ignore" or not request.duplicate_keys:
        return
    why = "error strict decoding YAML: yaml: unmarshal errors:\n  " + "\n  ".join(request.duplicate_keys)
    if mode == "Strict":
        raise api_errors.bad_request(why)
    request.warnings.append(why.replace("\n", ""))


def report_field_errors(request: WriteRequest, unknown: Sequence[str], duplicates: Sequence[str]) -> None:
    """Reject, warn about, or ignore unknown and duplicate fields, as `fieldValidation` demands; the default is Warn."""
    if not unknown and not duplicates:
        return
    messages = [f'unknown field "{path}"' for path in unknown[:MAX_REPORTED_FIELDS]]
    messages += [f'duplicate field "{path}"' for path in duplicates[:MAX_REPORTED_FIELDS]]
    mode = request.query.get("fieldValidation") or "Warn"
    if mode == "Strict":
        listed = ", ".join(messages)
        raise api_errors.bad_request(f"{decode_error_prefix(request)}strict decoding error: {listed}")
    if mode == "Warn":
        request.warnings.extend(messages)


def decode_error_prefix(request: WriteRequest) -> str:
    """Return the prefix of decoding errors; empty for patches."""
    if request.verb not in ("create", "update"):
        return ""
    resource = request.target.info.resource
    return f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '


class JsonPairs(list[tuple[str, Any]]):
    """A JSON object as key-value pairs, in order and with duplicates."""


def duplicate_fields(body: bytes) -> list[str]:
    """Return the first paths that a JSON text sets more than once; empty if it is not JSON."""
    try:
        decoded = json.loads(body, object_pairs_hook=JsonPairs)
    except (ValueError, RecursionError):
        return []
    return list(dict.fromkeys(islice(duplicate_fields_in(decoded, ""), MAX_REPORTED_FIELDS)))


def duplicate_fields_in(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, JsonPairs):
        seen: set[str] = set()
        for key, each in value:
            child = child_path(path, key)
            if key in seen:
                yield child
            seen.add(key)
            yield from duplicate_fields_in(each, child)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from duplicate_fields_in(each, f"{path}[{number}]")
