"""Function registry of CEL: overloads declared by their signature.

    @cel_function("string.contains(string) -> bool")

This declares a member function. Without a receiver type it declares a global function, whose name may contain dots
(`sets.contains`). A `metered` function gets the Meter as its first argument and charges before it creates values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tapestry.kube.cel.errors import EvaluationError, Meter, no_overload_error
from tapestry.kube.cel.types import Type, parse_type, split_type_arguments
from tapestry.kube.cel.values import type_name_of

Implementation = Callable[..., Any]
F = TypeVar("F", bound=Implementation)


@dataclass(frozen=True, slots=True)
class Overload:
    """One overload of a function. The first argument of a member function is its receiver."""

    args: tuple[Type, ...]
    result: Type
    run: Implementation
    metered: bool = False

    @property
    def takes_any_type(self) -> bool:
        return all(expected.name == "dyn" or expected.is_variable for expected in self.args)

    def accepts(self, values: tuple[Any, ...]) -> bool:
        return all(
            expected.name == "dyn" or expected.is_variable or expected.name == type_name_of(value)
            for expected, value in zip(self.args, values, strict=True)
        )


GLOBALS: dict[str, list[Overload]] = {}
MEMBERS: dict[str, list[Overload]] = {}


def cel_function(*signatures: str, metered: bool = False) -> Callable[[F], F]:
    def declare(run: F) -> F:
        for text in signatures:
            register_overload(text, run, metered=metered)
        return run

    return declare


def register_functions(functions: Mapping[str, Implementation]) -> None:
    """Declare functions that are one expression, by signature."""
    for signature, run in functions.items():
        register_overload(signature, run)


def register_overload(signature: str, run: Implementation, *, metered: bool = False) -> None:
    head, _, result = signature.rpartition(" -> ")
    opening = arguments_start(head)
    callee, args = head[:opening], [parse_type(each) for each in split_type_arguments(head[opening + 1 : -1])]
    target, dot, name = callee.rpartition(".")
    if dot and (target in TYPE_NAMES or target.endswith(")")):
        MEMBERS.setdefault(name, []).append(Overload((parse_type(target), *args), parse_type(result), run, metered))
    else:
        GLOBALS.setdefault(callee, []).append(Overload(tuple(args), parse_type(result), run, metered))


def arguments_start(head: str) -> int:
    """Return the position of the parenthesis that starts the argument list."""
    depth = 0
    for at in range(len(head) - 1, -1, -1):
        depth += (head[at] == ")") - (head[at] == "(")
        if not depth:
            return at
    raise ValueError(f"{head} has no arguments")


OPAQUE_TYPES = (
    *("net.IP", "net.CIDR", "kubernetes.URL", "kubernetes.Quantity", "kubernetes.Semver", "kubernetes.NamedFormat"),
    "kubernetes.authorization.Authorizer",
    *(f"kubernetes.authorization.{each}" for each in ("PathCheck", "GroupCheck", "ResourceCheck", "Decision")),
)
TYPE_NAMES = frozenset(
    {
        *("bool", "int", "uint", "double", "string", "bytes", "null_type", "dyn", "timestamp", "duration", "list"),
        *("map", "optional_type", *OPAQUE_TYPES),
    }
)


def dynamic_dispatch(overloads: list[Overload]) -> Implementation:
    """Return a function of (meter, *values) that selects the overload by the types of the values."""

    def run(meter: Meter, *values: Any) -> Any:
        for each in overloads:
            if each.accepts(values):
                return each.run(meter, *values) if each.metered else each.run(*values)
        raise no_overload_error()

    return run


def as_evaluation_error(message: str) -> Callable[[Implementation], Implementation]:
    """Return a decorator that converts ValueError and OverflowError to EvaluationError. `{}` is the first argument."""

    def guard(run: Implementation) -> Implementation:
        def guarded(*args: Any) -> Any:
            try:
                return run(*args)
            except (ValueError, OverflowError):
                raise EvaluationError(message.format(*args)) from None

        return guarded

    return guard


def is_valid(parse: Implementation, error: type[Exception]) -> Implementation:
    """Return a function that returns False if `parse` raises the error, else True."""

    def run(*args: Any) -> bool:
        try:
            parse(*args)
        except error:
            return False
        return True

    return run
