"""What happens to a write on its way in: a list of steps, each of which may change the object, refuse it, or warn."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tapestry.apiserver import refusals
from tapestry.apiserver.types import Types, keys_in
from tapestry.apiserver.verbs import Request, Step
from tapestry.kube.objects import Object


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Steps one after the other, as one."""

    steps: Sequence[Step]

    async def __call__(self, request: Request, old: Object | None, new: Object | None) -> Object:
        for step in self.steps:
            changed = await step(request, old, new)
            new = changed if new is not None else None
        found = new if new is not None else old
        assert found is not None
        return found


@dataclass(frozen=True, slots=True)
class TypedReading:
    """A step: objects of built-in kinds have the fields of their type and no others, and no nulls."""

    types: Types

    async def __call__(self, request: Request, old: Object | None, new: Object | None) -> Object:
        row = request.target.row
        if new is None or row.is_custom:
            return new or old or {}
        found, reading = self.types.read(row.type, new, row.resource.kind)
        report_fields(request, reading.unknown, duplicates(request))
        return found


def duplicates(request: Request) -> list[str]:
    """Fields that the body names twice: only looked for where its text has more keys than what was read of it."""
    if request.verb not in ("create", "update") or request.body.count(b'":') <= keys_in(request.sent):
        return []
    return twice(request.body)


def report_fields(request: Request, unknown: Sequence[str], repeated: Sequence[str]) -> None:
    """Refuse, warn of, or ignore what was not understood, as the client asked for; warn unless told otherwise."""
    complaints = [f'unknown field "{path}"' for path in unknown] + [f'duplicate field "{path}"' for path in repeated]
    mode = request.query.get("fieldValidation") or "Warn"
    if mode == "Strict" and complaints:
        raise refusals.bad_request("strict decoding error: " + ", ".join(complaints))
    if mode == "Warn":
        request.warnings.extend(complaints)


class Pairs(list[tuple[str, Any]]):
    """A JSON object as it was written: keys in order, some perhaps twice."""


def twice(body: bytes) -> list[str]:
    """The paths that a JSON text sets more than once; none where it is no JSON."""
    try:
        written = json.loads(body, object_pairs_hook=Pairs)
    except ValueError:
        return []
    return list(dict.fromkeys(repeated_in(written, "")))


def repeated_in(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Pairs):
        seen: set[str] = set()
        for key, each in value:
            below = f"{path}.{key}" if path else key
            if key in seen:
                yield below
            seen.add(key)
            yield from repeated_in(each, below)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from repeated_in(each, f"{path}[{number}]")
