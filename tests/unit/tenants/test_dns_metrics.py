"""Series of the DNS of tenants."""

from prometheus_client import CollectorRegistry

from tapestry.dns.listener import QueryCounts
from tapestry.process.metrics import render
from tapestry.tenants.dns_metrics import DnsCollector


def test_each_tenant_has_its_own_series() -> None:
    registry = CollectorRegistry()
    registry.register(DnsCollector({"blue": QueryCounts(7, 3, 2, 1), "green": QueryCounts()}))
    page = render(registry)[0].decode()
    lines = {line for line in page.splitlines() if "blue" in line}
    assert lines == {
        'tapestry_dns_queries_total{plane="blue"} 7.0',
        'tapestry_dns_limited_total{plane="blue"} 3.0',
        'tapestry_dns_forwarded_total{plane="blue"} 2.0',
        'tapestry_dns_forwarding_failures_total{plane="blue"} 1.0',
    }
    assert 'tapestry_dns_queries_total{plane="green"} 0.0' in page
