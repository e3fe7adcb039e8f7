"""The steps of a write: each step may change the object, reject it, or add warnings."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import groupby

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.field_validation import duplicate_fields, may_have_duplicate_fields, report_field_errors
from tapestry.apiserver.core.requests import Step, WriteRequest
from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.core.spec_cache import SpecCache
from tapestry.apiserver.core.type_decoders import TypeDecoders
from tapestry.apiserver.core.workers import LARGE_BYTES, current_request_budget, run_if_large, run_sync
from tapestry.kube.budget import SliceExceeded, checkpoint
from tapestry.kube.errors import BadRequest
from tapestry.kube.objects import Object

NO_SLICE = nullcontext()


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
        has_duplicates = may_have_duplicate_fields(request, result.get("spec"))
        report_field_errors(request, report.unknown, duplicate_fields(request.body) if has_duplicates else ())
        if changed is new:
            return result
        same = {key: each for key, each in new.items() if key not in changed}
        return {key: same.get(key, result.get(key)) for key in {**new, **result} if key in same or key in result}
