"""Counters that load no metrics library: commands that start, ask and end count with them at no cost.

    REQUESTS = Counter("tapestry_client_requests_total", "Requests by verb.", "verb")
    REQUESTS.inc("get")

`tapestry.process.metrics` serves all of them, together with what is defined by prometheus_client.
"""

from collections import defaultdict
from collections.abc import Mapping

COUNTERS: "list[Counter]" = []
"""Every counter of this process, in the order of definition."""

Values = Mapping[tuple[str, ...], float]
"""Totals by the values of the labels."""


class Counter:
    """A total for each combination of label values."""

    def __init__(self, name: str, help: str, *labels: str) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        self._values: defaultdict[tuple[str, ...], float] = defaultdict(float)
        COUNTERS.append(self)

    def inc(self, *labels: str, by: float = 1) -> None:
        self._values[labels] += by

    def values(self) -> Values:
        """The totals as they are now."""
        return dict(self._values)
