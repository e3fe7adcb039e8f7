"""What runs over the elements of a list or a map, and what joins conditions.

Every element is charged for, with what looking at it takes, so that loops within loops end.  `all`, `exists`, `&&` and
`||` forgive an error where another element decides anyway.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tapestry.kube.cel.errors import EvaluationError, no_overload_error

METER_VARIABLE = "@meter"
Activation = dict[str, Any]
Code = Callable[[Activation], Any]
Macro = Callable[[Code, Sequence[str], Code, Code | None, int], Code]


def logical_operator(codes: Sequence[Code], *, deciding_value: bool) -> Code:
    """`&&`, or `||` where True decides."""

    def run(frame: Activation) -> Any:
        failed: EvaluationError | None = None
        for code in codes:
            try:
                value = code(frame)
            except EvaluationError as error:
                failed = failed or error
                continue
            if value is deciding_value:
                return deciding_value
            if value is not (not deciding_value):
                failed = failed or no_overload_error()
        if failed is not None:
            raise failed
        return not deciding_value

    return run


def element_iterator(source: Code, slots: Sequence[str], cost: int) -> Callable[[Activation], Iterable[Any]]:
    """A walk over the elements that puts each into the frame, and yields it."""

    def steps(frame: Activation) -> Iterable[Any]:
        value, meter = source(frame), frame[METER_VARIABLE]
        if not isinstance(value, list | dict):
            raise no_overload_error()
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


def quantifier(*, deciding_value: bool) -> Macro:
    """`exists` where True decides, or `all`."""

    def macro(source: Code, slots: Sequence[str], body: Code, _: Code | None, cost: int) -> Code:
        steps = element_iterator(source, slots, cost)

        def run(frame: Activation) -> Any:
            failed: EvaluationError | None = None
            for _ in steps(frame):
                try:
                    value = body(frame)
                except EvaluationError as error:
                    failed = error
                    continue
                if value is deciding_value:
                    return deciding_value
                if value is not (not deciding_value):
                    failed = no_overload_error()
            if failed is not None:
                raise failed
            return not deciding_value

        return run

    return macro


def exists_one_macro(source: Code, slots: Sequence[str], body: Code, _: Code | None, cost: int) -> Code:
    steps = element_iterator(source, slots, cost)
    return lambda frame: sum(require_bool(body(frame)) for _ in steps(frame)) == 1


def filter_macro(source: Code, slots: Sequence[str], body: Code, _: Code | None, cost: int) -> Code:
    steps = element_iterator(source, slots, cost)
    return lambda frame: [each for each in steps(frame) if require_bool(body(frame))]


def map_macro(source: Code, slots: Sequence[str], body: Code, condition: Code | None, cost: int) -> Code:
    steps = element_iterator(source, slots, cost)
    if condition is None:
        return lambda frame: [body(frame) for _ in steps(frame)]
    return lambda frame: [body(frame) for _ in steps(frame) if require_bool(condition(frame))]


def transform_map_macro(source: Code, slots: Sequence[str], body: Code, condition: Code | None, cost: int) -> Code:
    steps = element_iterator(source, slots, cost)
    return lambda frame: {
        key: body(frame) for key in steps(frame) if condition is None or require_bool(condition(frame))
    }


def transform_map_entry_macro(
    source: Code, slots: Sequence[str], body: Code, condition: Code | None, cost: int
) -> Code:
    steps = element_iterator(source, slots, cost)

    def run(frame: Activation) -> Any:
        found: dict[Any, Any] = {}
        for _ in steps(frame):
            if condition is not None and not require_bool(condition(frame)):
                continue
            for key, value in body(frame).items():
                if key in found:
                    raise EvaluationError(f"insert failed: key {key} already exists")
                found[key] = value
        return found

    return run


def require_bool(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise no_overload_error()


COMPREHENSIONS: Mapping[str, Macro] = {
    "all": quantifier(deciding_value=False),
    "exists": quantifier(deciding_value=True),
    "exists_one": exists_one_macro,
    "filter": filter_macro,
    "map": map_macro,
    "transformList": map_macro,
    "transformMap": transform_map_macro,
    "transformMapEntry": transform_map_entry_macro,
}
