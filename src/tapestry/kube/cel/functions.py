"""The table of functions: each overload says in its own words what it takes and gives.

    @declared("string.contains(string) -> bool")

is a member; without a type in front it is called by its name alone, which may have dots (`sets.contains`).  What is
declared as `metered` is given the Meter first, and charges for what it makes before it makes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tapestry.kube.cel.errors import EvaluationError, Meter, no_overload
from tapestry.kube.cel.types import Type, split, type_named
from tapestry.kube.cel.values import kind_of

Run = Callable[..., Any]
F = TypeVar("F", bound=Run)


@dataclass(frozen=True, slots=True)
class Overload:
    """One way to call a function; a member has what it is called on as its first argument."""

    args: tuple[Type, ...]
    result: Type
    run: Run
    metered: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it takes values of any type."""
        return all(wanted.name == "dyn" or wanted.is_variable for wanted in self.args)

    def accepts(self, values: tuple[Any, ...]) -> bool:
        return all(
            wanted.name == "dyn" or wanted.is_variable or wanted.name == kind_of(value)
            for wanted, value in zip(self.args, values, strict=True)
        )


GLOBALS: dict[str, list[Overload]] = {}
MEMBERS: dict[str, list[Overload]] = {}


def declared(*signatures: str, metered: bool = False) -> Callable[[F], F]:
    def declare(run: F) -> F:
        for text in signatures:
            add(text, run, metered=metered)
        return run

    return declare


def add(text: str, run: Run, *, metered: bool = False) -> None:
    head, _, result = text.rpartition(" -> ")
    opening = opening_of(head)
    callee, args = head[:opening], [type_named(each) for each in split(head[opening + 1 : -1])]
    target, dot, name = callee.rpartition(".")
    if dot and (target in TYPE_NAMES or target.endswith(")")):
        MEMBERS.setdefault(name, []).append(Overload((type_named(target), *args), type_named(result), run, metered))
    else:
        GLOBALS.setdefault(callee, []).append(Overload(tuple(args), type_named(result), run, metered))


def opening_of(head: str) -> int:
    """Where the arguments begin: at the parenthesis that the last one closes."""
    depth = 0
    for at in range(len(head) - 1, -1, -1):
        depth += (head[at] == ")") - (head[at] == "(")
        if not depth:
            return at
    raise ValueError(f"{head} has no arguments")


OPAQUE = (
    *("net.IP", "net.CIDR", "kubernetes.URL", "kubernetes.Quantity", "kubernetes.Semver", "kubernetes.NamedFormat"),
    "kubernetes.authorization.Authorizer",
    *(f"kubernetes.authorization.{each}" for each in ("PathCheck", "GroupCheck", "ResourceCheck", "Decision")),
)
TYPE_NAMES = frozenset(
    {
        *("bool", "int", "uint", "double", "string", "bytes", "null_type", "dyn", "timestamp", "duration", "list"),
        *("map", "optional_type", *OPAQUE),
    }
)


def chosen(overloads: list[Overload]) -> Run:
    """A function of (meter, *values) that looks for the overload that takes the values, as they turn out to be."""

    def run(meter: Meter, *values: Any) -> Any:
        for each in overloads:
            if each.accepts(values):
                return each.run(meter, *values) if each.metered else each.run(*values)
        raise no_overload()

    return run


def failing(message: str) -> Callable[[Run], Run]:
    """Have ValueError and OverflowError of Python's be an error of the expression; `{}` is the first argument."""

    def guard(run: Run) -> Run:
        def guarded(*args: Any) -> Any:
            try:
                return run(*args)
            except (ValueError, OverflowError):
                raise EvaluationError(message.format(*args)) from None

        return guarded

    return guard
