"""Errors of CEL compilation and evaluation, and the cost meter."""

from collections.abc import Iterable
from dataclasses import dataclass

from tapestry.kube.budget import charge

REPORT_INTERVAL_COST = 1_000
"""Cost after which the meter charges the budget of the request."""


@dataclass(frozen=True, slots=True)
class Issue:
    """Problem in the text of an expression. `at` is an offset in the text."""

    at: int
    message: str

    def to_display_string(self, text: str) -> str:
        """Return the message as kube-apiserver shows it: with the line and a marker at the position."""
        before = text[: self.at]
        line, column = before.count("\n"), len(before) - (before.rfind("\n") + 1)
        lines = text.split("\n")
        return f"ERROR: <input>:{line + 1}:{column + 1}: {self.message}\n | {lines[line]}\n | {'.' * column}^"


class CompileError(ValueError):
    """The expression is invalid."""

    def __init__(self, text: str, issues: Iterable[Issue]) -> None:
        ordered = sorted(dict.fromkeys(issues), key=lambda each: each.at)
        super().__init__("\n".join(each.to_display_string(text) for each in ordered))


class FoldingError(CompileError):
    """A constant subexpression cannot be evaluated."""

    def __init__(self, message: str) -> None:
        ValueError.__init__(self, message)


class EvaluationError(Exception):
    """The expression has no value for this input. `&&`, `||`, `all` and `exists` can ignore this error."""


class CostExceeded(Exception):
    """The evaluation exceeded its cost limit. Nothing can ignore this error."""


class Meter:
    """Remaining cost of an evaluation. A unit is about the cost of one operator."""

    __slots__ = ("_mark", "_reported", "left")

    def __init__(self, left: int) -> None:
        self.left = self._reported = left
        self._mark = max(left - REPORT_INTERVAL_COST, 0)

    def charge(self, cost: float) -> None:
        """Charge before doing the work. New strings and lists cost a tenth of their length."""
        self.left -= int(cost)
        if self.left < self._mark:
            self.report()
            if self.left < 0:
                raise CostExceeded("operation cancelled: actual cost limit exceeded")

    def report(self) -> None:
        """Charge the budget of the request with the cost since the last report."""
        left = max(self.left, 0)
        spent, self._reported = self._reported - left, left
        self._mark = max(left - REPORT_INTERVAL_COST, 0)
        charge(spent)


def no_overload_error() -> EvaluationError:
    return EvaluationError("no such overload")
