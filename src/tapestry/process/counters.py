"""Lightweight counters that do not import prometheus_client, for short-lived commands.

    REQUESTS = Counter("tapestry_client_requests_total", "Requests by verb.", "verb")
    REQUESTS.inc("get")

`tapestry.process.metrics` serves them together with the metrics of prometheus_client.
"""

from collections import defaultdict
from collections.abc import Mapping

COUNTERS: "list[Counter]" = []
"""All counters of this process, in the order of definition."""

Values = Mapping[tuple[str, ...], float]
"""Totals by label values."""


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
        return dict(self._values)
