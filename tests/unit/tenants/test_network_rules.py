"""The addresses that the network policies of tenants allow: never the machine, the host's API or other tenants."""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tapestry.apis.clusterbindings import Isolation
from tapestry.kube.names import label_key_error
from tapestry.kube.objects import Object
from tapestry.tenants.network_rules import (
    DECIDED,
    Destination,
    Destinations,
    allowed_block,
    api_rules,
    dns_rules,
    forbidden_ranges,
    parsed_range,
    public_blocks,
    undecided_pods,
)

from .effective_bindings import HOST, tenant

DESTINATIONS = Destinations(Destination("10.1.1.1", 6444), Destination("10.1.1.1", 6053), ("203.0.113.10", "10.1.1.1"))
FULL = forbidden_ranges(tenant(), DESTINATIONS)
LITE = forbidden_ranges(tenant(isolation=Isolation("lite")), DESTINATIONS)


def allows(block: Object | None, address: str) -> bool:
    """Return whether an ipBlock allows an address, by the rules of Kubernetes."""
    if block is None:
        return False
    ip = ip_address(address)
    return ip in ip_network(block["cidr"]) and not any(ip in ip_network(each) for each in block.get("except", ()))


@pytest.mark.parametrize(
    "address",
    [
        *("169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254"),
        *("127.0.0.1", "::1", "0.0.0.0", "::", "255.255.255.255", "224.0.0.1", "fe80::1", "ff02::1"),
        *("::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1"),
        "203.0.113.10",  # the API of the host
        "10.1.1.1",  # other ports of the process
    ],
)
@pytest.mark.parametrize("forbidden", [FULL, LITE], ids=["full", "lite"])
def test_no_block_allows_machines_metadata_or_host_api(address: str, forbidden) -> None:
    bits = 32 if "." in address and ":" not in address else 128
    for cidr in ("0.0.0.0/0", "::/0", "0.0.0.0/1", "128.0.0.0/1", f"{address}/{bits}", f"{address}/{bits - 4}"):
        assert not allows(allowed_block(cidr, (), forbidden), address)


@pytest.mark.parametrize("address", ["10.0.0.1", "172.16.3.4", "192.168.1.1", "100.64.0.9", "fd12::1"])
def test_only_lite_allows_private_addresses(address: str) -> None:
    cidr = "::/0" if ":" in address else "0.0.0.0/0"
    assert not allows(allowed_block(cidr, (), FULL), address)
    assert allows(allowed_block(cidr, (), LITE), address)


def test_listed_ranges_of_host_are_forbidden() -> None:
    host = structs.replace(HOST, private_ranges=("198.51.100.0/24", "2001:db8::/32", "nonsense"))
    forbidden = forbidden_ranges(tenant(host=host), DESTINATIONS)
    assert allowed_block("198.51.100.7/32", (), forbidden) is None
    assert not allows(allowed_block("2000::/3", (), forbidden), "2001:db8::5")
    assert allows(allowed_block("2000::/3", (), forbidden), "2600::5")


def test_public_addresses_stay_allowed() -> None:
    four, six = (peer["ipBlock"] for peer in public_blocks(FULL))
    assert allows(four, "8.8.8.8")
    assert allows(six, "2600::1")
    assert not allows(four, "10.0.0.1")


def test_exceptions_of_tenants_stay() -> None:
    assert allowed_block("8.8.0.0/16", ["8.8.8.0/24"], FULL) == {"cidr": "8.8.0.0/16", "except": ["8.8.8.0/24"]}


def test_block_of_which_nothing_is_left_is_dropped() -> None:
    assert allowed_block("10.2.0.0/16", (), FULL) is None
    assert allowed_block("8.0.0.0/8", ["8.0.0.0/9", "8.128.0.0/9"], FULL) is None


@pytest.mark.parametrize("cidr", ["", "everything", "1.2.3.4/33", "010.0.0.0/8", "::1%eth0/64", None, 7, 0])
def test_unreadable_block_allows_nothing(cidr: object) -> None:
    assert allowed_block(cidr, (), ()) is None
    assert allowed_block("8.8.0.0/16", [cidr], ()) is None


def test_host_bits_are_cleared() -> None:
    assert allowed_block("8.8.8.8/16", (), FULL) == {"cidr": "8.8.0.0/16"}


blocks = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 32)).map(
    lambda pair: str(ip_network((pair[0], pair[1]), strict=False))
)


@given(blocks, st.lists(blocks, max_size=4), st.integers(0, 2**32 - 1))
def test_allowed_block_is_block_without_removed_ranges(cidr: str, excepted: list[str], number: int) -> None:
    address = ip_address(number)
    wanted = address in ip_network(cidr)
    removed = any(address in ip_network(each) for each in excepted) or any(address in each for each in FULL)
    block = allowed_block(cidr, excepted, FULL)
    assert allows(block, str(address)) == (wanted and not removed)
    for each in (block or {}).get("except", ()):  # an API server accepts it
        inner, outer = ip_network(each), ip_network(block["cidr"])
        assert inner.prefixlen > outer.prefixlen
        assert inner.network_address in outer


def test_rules_lead_to_ports_of_process_only() -> None:
    assert api_rules(DESTINATIONS) == [
        {"to": [{"ipBlock": {"cidr": "10.1.1.1/32"}}], "ports": [{"protocol": "TCP", "port": 6444}]}
    ]
    assert dns_rules(DESTINATIONS, ["UDP"]) == [
        {"to": [{"ipBlock": {"cidr": "10.1.1.1/32"}}], "ports": [{"protocol": "UDP", "port": 6053}]}
    ]
    assert api_rules(Destinations()) == dns_rules(Destinations()) == dns_rules(DESTINATIONS, []) == []


def test_undecided_pods_are_own_pods_without_label() -> None:
    selector = undecided_pods(tenant(), "Egress")
    assert selector["matchLabels"] == tenant().owner_labels()
    assert selector["matchExpressions"] == [{"key": DECIDED["Egress"], "operator": "DoesNotExist"}]
    assert all(label_key_error(each) is None for each in DECIDED.values())


def test_address_is_range_of_itself() -> None:
    assert str(parsed_range("10.1.1.1")) == "10.1.1.1/32"
    assert str(parsed_range("fd00::1")) == "fd00::1/128"
