"""The configuration of the resolver of a machine."""

from pathlib import Path

import pytest

from tapestry.dns.forwarding import Server
from tapestry.dns.messages import wire_name
from tapestry.dns.resolver_config import parse_resolver_config, parsed_server, read_resolver_config

IN_CLUSTER = """# a pod of a cluster
search tapestry.svc.host.example svc.host.example host.example svc.\u00e9
nameserver 10.96.0.10
nameserver fd00::10
nameserver example.com
options ndots:5
"""


def test_file_of_a_pod_is_read() -> None:
    config = parse_resolver_config(IN_CLUSTER)
    assert config.servers == (Server("10.96.0.10"), Server("fd00::10"))
    assert config.cluster_domains == (wire_name("host.example"),)


def test_missing_file_has_no_servers(tmp_path: Path) -> None:
    assert read_resolver_config(tmp_path / "resolv.conf").servers == ()


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("192.0.2.1", Server("192.0.2.1", 53)),
        ("192.0.2.1:5353", Server("192.0.2.1", 5353)),
        ("2001:db8::1", Server("2001:db8::1", 53)),
        ("[2001:db8::1]", Server("2001:db8::1", 53)),
        ("[2001:db8::1]:5353", Server("2001:db8::1", 5353)),
        ("192.0.2.1:99999", None),
        ("192.0.2.1:x", None),
        ("dns.example.com", None),
    ],
)
def test_server_has_an_address_and_a_port(text: str, server: Server | None) -> None:
    assert parsed_server(text) == server
