"""What runs over the elements of a list or a map, and what joins conditions.

Every element is charged for, with what looking at it takes, so that loops within loops end.  `all`, `exists`, `&&` and
`||` forgive an error where another element decides anyway.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tapestry.kube.cel.errors import EvaluationError, no_overload

METER = "@meter"
Frame = dict[str, Any]
Code = Callable[[Frame], Any]
Macro = Callable[[Code, Sequence[str], Code, Code | None, int], Code]


def conjunction(codes: Sequence[Code], *, decided: bool) -> Code:
    """`&&`, or `||` where True decides."""

    def run(frame: Frame) -> Any:
        failed: EvaluationError | None = None
        for code in codes:
            try:
                value = code(frame)
            except EvaluationError as error:
                failed = failed or error
                continue
            if value is decided:
                return decided
            if value is not (not decided):
                failed = failed or no_overload()
        if failed is not None:
            raise failed
        return not decided

    return run


def stepped(source: Code, slots: Sequence[str], cost: int) -> Callable[[Frame], Iterable[Any]]:
    """A walk over the elements that puts each into the frame, and yields it."""

    def steps(frame: Frame) -> Iterable[Any]:
        value, meter = source(frame), frame[METER]
        if not isinstance(value, list | dict):
            raise no_overload()
        if len(slots) == 1:
            [slot] = slots
            for each in value:
                meter.charge(cost)
                frame[slot] = each
                yield each
            return
        first, second = slots
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            meter.charge(cost)
            frame[first], frame[second] = key, each
            yield key

    return steps


def quantified(*, decided: bool) -> Macro:
    """`exists` where True decides, or `all`."""

    def macro(source: Code, slots: Sequence[str], body: Code, _: Code | None, cost: int) -> Code:
        steps = stepped(source, slots, cost)

        def run(frame: Frame) -> Any:
            failed: EvaluationError | None = None
            for _ in steps(frame):
                try:
                    value = body(frame)
                except EvaluationError as error:
                    failed = error
                    continue
                if value is decided:
                    return decided
                if value is not (not decided):
                    failed = no_overload()
            if failed is not None:
                raise failed
            return not decided

        return run

    return macro


def exists_one(source: Code, slots: Sequence[str], body: Code, _: Code | None, cost: int) -> Code:
    steps = stepped(source, slots, cost)
    return lambda frame: sum(truth(body(frame)) for _ in steps(frame)) == 1


def filtered(source: Code, slots: Sequence[str], body: Code, _: Code | None, cost: int) -> Code:
    steps = stepped(source, slots, cost)
    return lambda frame: [each for each in steps(frame) if truth(body(frame))]


def mapped(source: Code, slots: Sequence[str], body: Code, condition: Code | None, cost: int) -> Code:
    steps = stepped(source, slots, cost)
    if condition is None:
        return lambda frame: [body(frame) for _ in steps(frame)]
    return lambda frame: [body(frame) for _ in steps(frame) if truth(condition(frame))]


def mapped_values(source: Code, slots: Sequence[str], body: Code, condition: Code | None, cost: int) -> Code:
    steps = stepped(source, slots, cost)
    return lambda frame: {key: body(frame) for key in steps(frame) if condition is None or truth(condition(frame))}


def mapped_entries(source: Code, slots: Sequence[str], body: Code, condition: Code | None, cost: int) -> Code:
    steps = stepped(source, slots, cost)

    def run(frame: Frame) -> Any:
        found: dict[Any, Any] = {}
        for _ in steps(frame):
            if condition is not None and not truth(condition(frame)):
                continue
            for key, value in body(frame).items():
                if key in found:
                    raise EvaluationError(f"insert failed: key {key} already exists")
                found[key] = value
        return found

    return run


def truth(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise no_overload()


FOLDS: Mapping[str, Macro] = {
    "all": quantified(decided=False),
    "exists": quantified(decided=True),
    "exists_one": exists_one,
    "filter": filtered,
    "map": mapped,
    "transformList": mapped,
    "transformMap": mapped_values,
    "transformMapEntry": mapped_entries,
}
