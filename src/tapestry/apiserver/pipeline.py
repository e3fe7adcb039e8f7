"""What happens to a write on its way in: a list of steps, each of which may change the object, refuse it, or warn."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

import msgspec

from tapestry.apiserver import refusals
from tapestry.apiserver.customs.structural import path_below
from tapestry.apiserver.rows import Row
from tapestry.apiserver.types import Types
from tapestry.apiserver.verbs import Request, Step
from tapestry.apiserver.workers import LARGE, current_work, finished, run_if_large
from tapestry.kube.budget import OverSlice, checkpoint
from tapestry.kube.errors import BadRequest
from tapestry.kube.objects import Object

MOST_REPORTED = 100
"""Fields that a refusal or a warning lists, as in Kubernetes."""
NO_SLICE = nullcontext()
encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Pure:
    """A step that never waits and looks at nothing but what it is given: it may run in a thread."""

    step: Step


@dataclass(frozen=True, slots=True)
class Only:
    """A step that concerns some resources, and of which the others see nothing."""

    concerns: Callable[[Row], bool]
    step: Step | Pure


def stored(*resources: str) -> Callable[[Row], bool]:
    """Whether a row is one of these."""
    return lambda row: row.storage in resources


def is_custom(row: Row) -> bool:
    return row.is_custom


def is_built_in(row: Row) -> bool:
    return not row.is_custom


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps that follow each other, all of them pure or none; pure ones never wait, so they are also one slice."""

    steps: Sequence[Step]
    is_pure: bool

    def result(self, request: Request, old: Object | None, new: Object, warnings: int) -> Object:
        """What pure steps make of an object; they may begin again, so `warnings` is how many there were before."""
        del request.warnings[warnings:]
        checkpoint()
        for step in self.steps:
            new = finished(step(request, old, new))
        return new


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Steps one after the other, as one."""

    steps: Sequence[Step | Only | Pure]
    _of: dict[str, Sequence[Stretch]] = field(default_factory=dict)
    """Those that concern a resource."""

    def of(self, row: Row) -> Sequence[Stretch]:
        found = self._of.get(row.storage)
        if found is None:
            concerned = [each for each in self.steps if not isinstance(each, Only) or each.concerns(row)]
            steps = [each.step if isinstance(each, Only) else each for each in concerned]
            found = self._of[row.storage] = [
                Stretch([each.step if isinstance(each, Pure) else each for each in group], is_pure)
                for is_pure, group in groupby(steps, lambda each: isinstance(each, Pure))
            ]
        return found

    async def __call__(self, request: Request, old: Object | None, new: Object | None) -> Object:
        stretches, work = self.of(request.target.row), current_work()
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
            if work is None or request.size < LARGE:
                try:
                    with work or NO_SLICE:
                        for step in stretch.steps:
                            new = await step(request, old, new)
                    continue
                except OverSlice:
                    pass
            new = await run_if_large(LARGE, stretch.result, request, old, given, warnings)
        return new


@dataclass(frozen=True, slots=True)
class TypedReading:
    """A step: objects of built-in kinds have the fields of their type and no others, and no nulls."""

    types: Types

    async def __call__(self, request: Request, old: Object | None, new: Object | None) -> Object:
        if new is None:
            return old or {}
        row = request.target.row
        # What a patch has left alone was read when it was written.
        changed = (
            new if old is None else {key: each for key, each in new.items() if each is None or each is not old.get(key)}
        )
        try:
            found, reading = self.types.read(row.type, changed, row.resource.kind)
        except BadRequest as error:
            if request.verb == "patch":
                raise refusals.unfit_patch(error.message) from error
            raise
        report_fields(request, reading.unknown, twice(request.body) if may_repeat(request) else ())
        if changed is new:
            return found
        kept = {key: each for key, each in new.items() if key not in changed}
        return {key: kept.get(key, found.get(key)) for key in {**new, **found} if key in kept or key in found}


def may_repeat(request: Request) -> bool:
    """Whether the body may name a field twice: its text has more keys than what was read of it."""
    return request.verb in ("create", "update") and request.body.count(b'":') > encode(request.sent).count(b'":')


def report_repetitions(request: Request) -> None:
    """Refuse or warn of keys that a body in YAML has twice."""
    mode = request.query.get("fieldValidation") or "Warn"
    if mode == "Ignore" or not request.repeated:
        return
    why = "error strict decoding YAML: yaml: unmarshal errors:\n  " + "\n  ".join(request.repeated)
    if mode == "Strict":
        raise refusals.bad_request(why)
    request.warnings.append(why.replace("\n", ""))


def report_fields(request: Request, unknown: Sequence[str], repeated: Sequence[str]) -> None:
    """Refuse, warn of, or ignore what was not understood, as the client asked for; warn unless told otherwise."""
    if not unknown and not repeated:
        return
    complaints = [f'unknown field "{path}"' for path in unknown[:MOST_REPORTED]]
    complaints += [f'duplicate field "{path}"' for path in repeated[:MOST_REPORTED]]
    mode = request.query.get("fieldValidation") or "Warn"
    if mode == "Strict":
        listed = ", ".join(complaints)
        raise refusals.bad_request(f"{undecodable(request)}strict decoding error: {listed}")
    if mode == "Warn":
        request.warnings.extend(complaints)


def undecodable(request: Request) -> str:
    """How a refusal of a whole body begins; that of a patch says nothing of a version."""
    if request.verb not in ("create", "update"):
        return ""
    resource = request.target.row.resource
    return f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '


class Pairs(list[tuple[str, Any]]):
    """A JSON object as it was written: keys in order, some perhaps twice."""


def twice(body: bytes) -> list[str]:
    """The first paths that a JSON text sets more than once; none where it is no JSON."""
    try:
        written = json.loads(body, object_pairs_hook=Pairs)
    except (ValueError, RecursionError):
        return []
    return list(dict.fromkeys(islice(repeated_in(written, ""), MOST_REPORTED)))


def repeated_in(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Pairs):
        seen: set[str] = set()
        for key, each in value:
            below = path_below(path, key)
            if key in seen:
                yield below
            seen.add(key)
            yield from repeated_in(each, below)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from repeated_in(each, f"{path}[{number}]")
