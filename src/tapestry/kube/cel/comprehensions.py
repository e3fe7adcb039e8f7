"""Run-time code of comprehension macros and logical operators.

Each element is charged with the cost of its body, so that nested loops terminate. `all`, `exists`, `&&` and `||` ignore
an error if another operand decides the result.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tapestry.kube.cel.errors import EvaluationError, no_overload_error

METER_VARIABLE = "@meter"
Activation = dict[str, Any]
Code = Callable[[Activation], Any]
Macro = Callable[[Code, Sequence[str], Code, Code | None, int], Code]


def logical_operator(codes: Sequence[Code], *, deciding_value: bool) -> Code:
    """Return the code of `&&`, or of `||` if the deciding value is True."""

    def run(frame: Activation) -> Any:
        first_error: EvaluationError | None = None
        for code in codes:
            try:
                value = code(frame)
            except EvaluationError as error:
                first_error = first_error or error
                continue
            if value is deciding_value:
                return deciding_value
            if value is not (not deciding_value):
                first_error = first_error or no_overload_error()
        if first_error is not None:
            raise first_error
        return not deciding_value

    return run


def element_iterator(source: Code, slots: Sequence[str], cost: int) -> Callable[[Activation], Iterable[Any]]:
    """Return a generator function that stores each element in the activation and yields it."""

    def iterate(frame: Activation) -> Iterable[Any]:
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

    return iterate


def quantifier(*, deciding_value: bool) -> Macro:
    """Return the macro `exists` if the deciding value is True, else `all`."""

    def macro(source: Code, slots: Sequence[str], body: Code, _: Code | None, cost: int) -> Code:
        elements = element_iterator(source, slots, cost)

        def run(frame: Activation) -> Any:
            last_error: EvaluationError | None = None
            for _ in elements(frame):
                try:
                    value = body(frame)
                except EvaluationError as error:
                    last_error = error
                    continue
                if value is deciding_value:
                    return deciding_value
                if value is not (not deciding_value):
                    last_error = no_overload_error()
            if last_error is not None:
                raise last_error
            return not deciding_value

        return run

    return macro


def exists_one_macro(source: Code, slots: Sequence[str], body: Code, _: Code | None, cost: int) -> Code:
    elements = element_iterator(source, slots, cost)
    return lambda frame: sum(require_bool(body(frame)) for _ in elements(frame)) == 1


def filter_macro(source: Code, slots: Sequence[str], body: Code, _: Code | None, cost: int) -> Code:
    elements = element_iterator(source, slots, cost)
    return lambda frame: [each for each in elements(frame) if require_bool(body(frame))]


def map_macro(source: Code, slots: Sequence[str], body: Code, condition: Code | None, cost: int) -> Code:
    elements = element_iterator(source, slots, cost)
    if condition is None:
        return lambda frame: [body(frame) for _ in elements(frame)]
    return lambda frame: [body(frame) for _ in elements(frame) if require_bool(condition(frame))]


def transform_map_macro(source: Code, slots: Sequence[str], body: Code, condition: Code | None, cost: int) -> Code:
    elements = element_iterator(source, slots, cost)
    return lambda frame: {
        key: body(frame) for key in elements(frame) if condition is None or require_bool(condition(frame))
    }


def transform_map_entry_macro(
    source: Code, slots: Sequence[str], body: Code, condition: Code | None, cost: int
) -> Code:
    elements = element_iterator(source, slots, cost)

    def run(frame: Activation) -> Any:
        result: dict[Any, Any] = {}
        for _ in elements(frame):
            if condition is not None and not require_bool(condition(frame)):
                continue
            for key, value in body(frame).items():
                if key in result:
                    raise EvaluationError(f"insert failed: key {key} already exists")
                result[key] = value
        return result

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
