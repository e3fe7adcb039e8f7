"""Metrics of the DNS of tenants: a few series for each, with the id of the plane as a label."""

from collections.abc import Iterator, Mapping

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from tapestry.dns.listener import QueryCounts

PREFIX = "tapestry_dns"
SERIES = {
    "queries": ("queries", "Number of DNS queries."),
    "limited": ("limited", "Number of times that DNS queries were not accepted because of a limit."),
    "forwarded": ("forwarded", "Number of DNS queries that were forwarded."),
    "failed": ("forwarding_failures", "Number of forwarded DNS queries that failed."),
}
"""Names and descriptions by the field of QueryCounts."""


class DnsCollector(Collector):
    """Collect the numbers of queries by the id of the plane."""

    def __init__(self, counts: Mapping[str, QueryCounts]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts = dict(self._counts)
        for field, (name, text) in SERIES.items():
            family = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=["plane"])
            for plane_id, each in counts.items():
                family.add_metric([plane_id], getattr(each, field))
            yield family

    def describe(self) -> Iterator[Metric]:
        return iter(())


COUNTS: dict[str, QueryCounts] = {}
"""Numbers of queries of the planes whose names this process resolves, by id."""
REGISTRY.register(DnsCollector(COUNTS))
