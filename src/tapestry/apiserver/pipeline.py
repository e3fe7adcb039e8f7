"""What happens to a write on its way in: a list of steps, each of which may change the object, refuse it, or warn."""

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
from tapestry.apiserver.type_decoders import TypeDecoders
from tapestry.apiserver.verbs import Step, WriteRequest
from tapestry.apiserver.workers import LARGE_BYTES, current_request_budget, run_if_large, run_sync
from tapestry.kube.budget import SliceExceeded, checkpoint
from tapestry.kube.errors import BadRequest
from tapestry.kube.objects import Object

MAX_REPORTED_FIELDS = 100
"""Fields that a refusal or a warning lists, as in Kubernetes."""
NO_SLICE = nullcontext()
encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class PureStep:
    """A step that never waits and looks at nothing but what it is given: it may run in a thread."""

    step: Step


@dataclass(frozen=True, slots=True)
class ResourceStep:
    """A step that concerns some resources, and of which the others see nothing."""

    applies_to: Callable[[ResourceInfo], bool]
    step: Step | PureStep


def is_one_of(*resources: str) -> Callable[[ResourceInfo], bool]:
    """Whether a row is one of these."""
    return lambda row: row.storage in resources


def is_custom(info: ResourceInfo) -> bool:
    return info.is_custom


def is_built_in(info: ResourceInfo) -> bool:
    return not info.is_custom


@dataclass(frozen=True, slots=True)
class StepGroup:
    """Steps that follow each other, all of them pure or none; pure ones never wait, so they are also one slice."""

    steps: Sequence[Step]
    is_pure: bool

    def run_pure(self, request: WriteRequest, old: Object | None, new: Object, warning_count: int) -> Object:
        """What pure steps make of an object; they may begin again, so `warnings` is how many there were before."""
        del request.warnings[warning_count:]
        checkpoint()
        for step in self.steps:
            new = run_sync(step(request, old, new))
        return new


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Steps one after the other, as one."""

    steps: Sequence[Step | ResourceStep | PureStep]
    _groups_by_resource: dict[str, Sequence[StepGroup]] = field(default_factory=dict)
    """Those that concern a resource."""

    def groups_for(self, info: ResourceInfo) -> Sequence[StepGroup]:
        found = self._groups_by_resource.get(info.storage)
        if found is None:
            concerned = [each for each in self.steps if not isinstance(each, ResourceStep) or each.applies_to(info)]
            steps = [each.step if isinstance(each, ResourceStep) else each for each in concerned]
            found = self._groups_by_resource[info.storage] = [
                StepGroup([each.step if isinstance(each, PureStep) else each for each in group], is_pure)
                for is_pure, group in groupby(steps, lambda each: isinstance(each, PureStep))
            ]
        return found

    async def __call__(self, request: WriteRequest, old: Object | None, new: Object | None) -> Object:
        stretches, work = self.groups_for(request.target.info), current_request_budget()
        if new is None:
            assert old is not None
            for stretch in stretches:
                for step in stretch.steps:
                    await step(request, old, None)
            return old
        for stretch in stretches:
            if not stretch.is_pure:
                for step in stretch.steps:
                    new = await step(request, old, new)
                continue
            warnings, given = len(request.warnings), new
            if work is None or request.size < LARGE_BYTES:
                try:
                    with work or NO_SLICE:
                        for step in stretch.steps:
                            new = await step(request, old, new)
                    continue
                except SliceExceeded:
                    pass
            new = await run_if_large(LARGE_BYTES, stretch.run_pure, request, old, given, warnings)
        return new


@dataclass(frozen=True, slots=True)
class BuiltInDecoder:
    """A step: objects of built-in kinds have the fields of their type and no others, and no nulls."""

    types: TypeDecoders

    async def __call__(self, request: WriteRequest, old: Object | None, new: Object | None) -> Object:
        if new is None:
            return old or {}
        row = request.target.info
        # What a patch has left alone was read when it was written.
        changed = (
            new if old is None else {key: each for key, each in new.items() if each is None or each is not old.get(key)}
        )
        try:
            found, reading = self.types.decode(row.schema_name, changed, row.resource.kind)
        except BadRequest as error:
            if request.verb == "patch":
                raise api_errors.invalid_patch_result(error.message) from error
            raise
        report_field_errors(
            request, reading.unknown, duplicate_fields(request.body) if may_have_duplicate_fields(request) else ()
        )
        if changed is new:
            return found
        kept = {key: each for key, each in new.items() if key not in changed}
        return {key: kept.get(key, found.get(key)) for key in {**new, **found} if key in kept or key in found}


def may_have_duplicate_fields(request: WriteRequest) -> bool:
    """Whether the body may name a field twice: its text has more keys than what was read of it."""
    return request.verb in ("create", "update") and request.body.count(b'":') > encode(request.decoded_body).count(
        b'":'
    )


def report_duplicate_keys(request: WriteRequest) -> None:
    """Refuse or warn of keys that a body in YAML has twice."""
    mode = request.query.get("fieldValidation") or "Warn"
    if mode == "Ignore" or not request.duplicate_keys:
        return
    why = "error strict decoding YAML: yaml: unmarshal errors:\n  " + "\n  ".join(request.duplicate_keys)
    if mode == "Strict":
        raise api_errors.bad_request(why)
    request.warnings.append(why.replace("\n", ""))


def report_field_errors(request: WriteRequest, unknown: Sequence[str], duplicates: Sequence[str]) -> None:
    """Refuse, warn of, or ignore what was not understood, as the client asked for; warn unless told otherwise."""
    if not unknown and not duplicates:
        return
    complaints = [f'unknown field "{path}"' for path in unknown[:MAX_REPORTED_FIELDS]]
    complaints += [f'duplicate field "{path}"' for path in duplicates[:MAX_REPORTED_FIELDS]]
    mode = request.query.get("fieldValidation") or "Warn"
    if mode == "Strict":
        listed = ", ".join(complaints)
        raise api_errors.bad_request(f"{decode_error_prefix(request)}strict decoding error: {listed}")
    if mode == "Warn":
        request.warnings.extend(complaints)


def decode_error_prefix(request: WriteRequest) -> str:
    """How a refusal of a whole body begins; that of a patch says nothing of a version."""
    if request.verb not in ("create", "update"):
        return ""
    resource = request.target.info.resource
    return f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '


class JsonPairs(list[tuple[str, Any]]):
    """A JSON object as it was written: keys in order, some perhaps twice."""


def duplicate_fields(body: bytes) -> list[str]:
    """The first paths that a JSON text sets more than once; none where it is no JSON."""
    try:
        written = json.loads(body, object_pairs_hook=JsonPairs)
    except (ValueError, RecursionError):
        return []
    return list(dict.fromkeys(islice(duplicate_fields_in(written, ""), MAX_REPORTED_FIELDS)))


def duplicate_fields_in(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, JsonPairs):
        seen: set[str] = set()
        for key, each in value:
            below = child_path(path, key)
            if key in seen:
                yield below
            seen.add(key)
            yield from duplicate_fields_in(each, below)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from duplicate_fields_in(each, f"{path}[{number}]")
