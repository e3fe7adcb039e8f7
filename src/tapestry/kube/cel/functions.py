"""The table of functions: each overload says in its own words what it takes and gives.

    @declared("string.contains(string) -> bool")

is a member; without a type in front it is called by its name alone, which may have dots (`sets.contains`).  What is
declared as `metered` is given the Meter first, and charges for what it makes before it makes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tapestry.kube.cel.errors import EvaluationError, Meter, no_overload_error
from tapestry.kube.cel.types import Type, parse_type, split_type_arguments
from tapestry.kube.cel.values import type_name_of

Implementation = Callable[..., Any]
F = TypeVar("F", bound=Implementation)


@dataclass(frozen=True, slots=True)
class Overload:
    """One way to call a function; a member has what it is called on as its first argument."""

    args: tuple[Type, ...]
    result: Type
    run: Implementation
    metered: bool = False

    @property
    def takes_any_type(self) -> bool:
        """Whether it takes values of any type."""
        return all(wanted.name == "dyn" or wanted.is_variable for wanted in self.args)

    def accepts(self, values: tuple[Any, ...]) -> bool:
        return all(
            wanted.name == "dyn" or wanted.is_variable or wanted.name == type_name_of(value)
            for wanted, value in zip(self.args, values, strict=True)
        )


GLOBALS: dict[str, list[Overload]] = {}
MEMBERS: dict[str, list[Overload]] = {}


def cel_function(*signatures: str, metered: bool = False) -> Callable[[F], F]:
    def declare(run: F) -> F:
        for text in signatures:
            register_overload(text, run, metered=metered)
        return run

    return declare


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
    """Where the arguments begin: at the parenthesis that the last one closes."""
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
    """A function of (meter, *values) that looks for the overload that takes the values, as they turn out to be."""

    def run(meter: Meter, *values: Any) -> Any:
        for each in overloads:
            if each.accepts(values):
                return each.run(meter, *values) if each.metered else each.run(*values)
        raise no_overload_error()

    return run


def as_evaluation_error(message: str) -> Callable[[Implementation], Implementation]:
    """Have ValueError and OverflowError of Python's be an error of the expression; `{}` is the first argument."""

    def guard(run: Implementation) -> Implementation:
        def guarded(*args: Any) -> Any:
            try:
                return run(*args)
            except (ValueError, OverflowError):
                raise EvaluationError(message.format(*args)) from None

        return guarded

    return guard
