"""Rows of the result table, with the bars that they must meet."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One result. `value` is None if nothing could be measured; `detail` then contains the reason."""

    what: str
    value: float | None
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    detail: str = ""

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "skipped"
        if self.at_least is None and self.at_most is None:
            return ""
        is_passed = (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )
        return "pass" if is_passed else "MISS"

    @property
    def bar(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return "" if self.at_most is None else f"<= {self.at_most:g}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def table(rows: Iterable[Row]) -> str:
    """Return the rows as aligned text."""
    lines = [("", "measured", "bar", "", "")]
    lines += [(row.what, formatted_value(row.value, row.unit), row.bar, row.verdict, row.detail) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        f"{what:<{widths[0]}}  {value:>{widths[1]}}  {bar:<{widths[2]}}  {verdict:<{widths[3]}}  {detail}".rstrip()
        for what, value, bar, verdict, detail in lines
    )


def formatted_value(value: float | None, unit: str) -> str:
    """Return the value with three significant digits and its unit."""
    if value is None:
        return "-"
    number = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{number} {unit}"


def say(line: str) -> None:
    """Print progress to standard error."""
    print(line, file=sys.stderr, flush=True)


def alone(rows: Callable[[], Iterable[Row]]) -> None:
    """Run one benchmark and print its table."""
    print(table(rows()))
