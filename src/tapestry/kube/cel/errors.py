"""What can go wrong with an expression: it cannot be meant, it fails, or it takes too long."""

from collections.abc import Iterable
from dataclasses import dataclass

from tapestry.kube.budget import charge

REPORT_INTERVAL_COST = 1_000
"""Cost after which the budget of the request is charged."""


@dataclass(frozen=True, slots=True)
class Issue:
    """Something that is wrong with the text of an expression, and where: an offset in it."""

    at: int
    message: str

    def to_display_string(self, text: str) -> str:
        """As people know it from Kubernetes: with the line, and a finger on the place."""
        before = text[: self.at]
        line, column = before.count("\n"), len(before) - (before.rfind("\n") + 1)
        lines = text.split("\n")
        return f"ERROR: <input>:{line + 1}:{column + 1}: {self.message}\n | {lines[line]}\n | {'.' * column}^"


class CompileError(ValueError):
    """The expression cannot be meant."""

    def __init__(self, text: str, issues: Iterable[Issue]) -> None:
        ordered = sorted(dict.fromkeys(issues), key=lambda each: each.at)
        super().__init__("\n".join(each.to_display_string(text) for each in ordered))


class FoldingError(CompileError):
    """A part of the expression that no data change cannot be evaluated."""

    def __init__(self, message: str) -> None:
        ValueError.__init__(self, message)


class EvaluationError(Exception):
    """The expression has no value for these data; `&&`, `||`, `all` and `exists` can do without."""


class CostExceeded(Exception):
    """The expression takes more than it may; nothing can do without."""


class Meter:
    """What an evaluation may still cost: a unit is about what one operator takes."""

    __slots__ = ("_mark", "_reported", "left")

    def __init__(self, left: int) -> None:
        self.left = self._reported = left
        self._mark = max(left - REPORT_INTERVAL_COST, 0)

    def charge(self, cost: float) -> None:
        """Call this before doing what costs, with what is made of texts and lists a tenth of their length."""
        self.left -= int(cost)
        if self.left < self._mark:
            self.report()
            if self.left < 0:
                raise CostExceeded("operation cancelled: actual cost limit exceeded")

    def report(self) -> None:
        """Charge the budget of the request with what was spent since the last time."""
        left = max(self.left, 0)
        spent, self._reported = self._reported - left, left
        self._mark = max(left - REPORT_INTERVAL_COST, 0)
        charge(spent)


def no_overload_error() -> EvaluationError:
    return EvaluationError("no such overload")
