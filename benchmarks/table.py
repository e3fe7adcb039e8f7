"""Rows of the table, and the bars they are held against."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One answer.  `value` is None where nothing could be measured; `detail` then says why."""

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
        met = (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )
        return "pass" if met else "MISS"

    @property
    def bar(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return "" if self.at_most is None else f"<= {self.at_most:g}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def table(rows: Iterable[Row]) -> str:
    """The rows as aligned text."""
    lines = [("", "measured", "bar", "", "")]
    lines += [(row.what, shown(row.value, row.unit), row.bar, row.verdict, row.detail) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        f"{what:<{widths[0]}}  {value:>{widths[1]}}  {bar:<{widths[2]}}  {verdict:<{widths[3]}}  {detail}".rstrip()
        for what, value, bar, verdict, detail in lines
    )


def shown(value: float | None, unit: str) -> str:
    """Three significant digits, and the unit."""
    if value is None:
        return "-"
    number = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{number} {unit}"


def say(line: str) -> None:
    """Progress, apart from the table."""
    print(line, file=sys.stderr, flush=True)


def alone(rows: Callable[[], Iterable[Row]]) -> None:
    """Answer one question by itself."""
    print(table(rows()))
