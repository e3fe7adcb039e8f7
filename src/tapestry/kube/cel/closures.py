"""Run-time code of constants, calls and field selections, as Python closures."""

from collections.abc import Sequence
from typing import Any

from tapestry.kube.cel.comprehensions import METER_VARIABLE, Activation, Code
from tapestry.kube.cel.errors import EvaluationError, no_overload_error
from tapestry.kube.cel.functions import Overload, dynamic_dispatch
from tapestry.kube.cel.values import OPTIONAL_NONE, OptionalValue


def constant(value: Any) -> Code:
    return lambda _: value


def call_code(fitting: list[Overload], codes: Sequence[Code], *, is_known: bool) -> Code:
    """Return the code of a call. It calls the overload directly if the types are known, else dispatches at run time."""
    if len(fitting) > 1 or not (is_known or fitting[0].takes_any_type):
        dispatch = dynamic_dispatch(fitting)
        return lambda frame: dispatch(frame[METER_VARIABLE], *[code(frame) for code in codes])
    run = fitting[0].run
    match fitting[0].metered, codes:
        case False, [argument]:
            return lambda frame: run(argument(frame))
        case False, [left, right]:
            return lambda frame: run(left(frame), right(frame))
        case True, [left, right]:
            return lambda frame: run(frame[METER_VARIABLE], left(frame), right(frame))
        case True, _:
            return lambda frame: run(frame[METER_VARIABLE], *[code(frame) for code in codes])
    return lambda frame: run(*[code(frame) for code in codes])


def select_code(operand: Code, name: str) -> Code:
    def run(frame: Activation) -> Any:
        value = operand(frame)
        if isinstance(value, dict):
            try:
                return value[name]
            except KeyError:
                raise EvaluationError(f"no such key: {name}") from None
        if isinstance(value, OptionalValue):
            return optional_field(value, name)
        raise no_overload_error()

    return run


def optional_select_code(operand: Code, name: str) -> Code:
    def run(frame: Activation) -> Any:
        value = operand(frame)
        return optional_field(value if isinstance(value, OptionalValue) else OptionalValue(value), name)

    return run


def optional_field(value: OptionalValue, name: str) -> OptionalValue:
    if not value.has_value:
        return OPTIONAL_NONE
    if not isinstance(value.value, dict):
        raise no_overload_error()
    return OptionalValue(value.value[name]) if name in value.value else OPTIONAL_NONE


def presence_code(operand: Code, name: str) -> Code:
    def run(frame: Activation) -> Any:
        value = operand(frame)
        if isinstance(value, OptionalValue):
            return optional_field(value, name).has_value
        if not isinstance(value, dict):
            raise no_overload_error()
        return name in value

    return run


def without_absent_optionals(values: list[Any], flags: Sequence[bool]) -> list[Any]:
    """Return the items of a list without optional items that have no value."""
    result = []
    for value, optional in zip(values, flags, strict=True):
        if not optional:
            result.append(value)
        elif value.has_value:
            result.append(value.value)
    return result
