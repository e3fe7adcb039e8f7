"""Names of a cluster and their records, by the Kubernetes DNS specification."""

import ipaddress
from typing import Any

import msgspec
import pytest

from tapestry.dns.cluster_names import ClusterNames, reverse_address
from tapestry.dns.messages import Answer, Code, Type, labels_of_name, wire_name

WEB = {
    "clusterIP": "10.96.0.7",
    "clusterIPs": ["10.96.0.7", "fd00::7"],
    "ports": [{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}],
}
HEADLESS = {"clusterIP": "None", "ports": [{"name": "db", "port": 5432}]}


def service(**spec: Any) -> bytes:
    return msgspec.json.encode({"spec": spec})


def slice(*endpoints: dict[str, Any], family: str = "IPv4") -> bytes:
    ports = [{"name": "db", "port": 15432, "protocol": "TCP"}]
    return msgspec.json.encode({"addressType": family, "endpoints": endpoints, "ports": ports})


def endpoint(address: str, *, ready: bool | None = True, hostname: str | None = None) -> dict[str, Any]:
    return {"addresses": [address], "conditions": {"ready": ready}, "hostname": hostname}


@pytest.fixture
def names() -> ClusterNames:
    found = ClusterNames("cluster.local")
    found.put_service("default", "web", service(**WEB))
    found.put_service("default", "waiting", service(ports=[{"port": 80}]))
    found.put_service("default", "db", service(**HEADLESS))
    found.put_service("default", "empty", service(**HEADLESS))
    found.put_service("shop", "outside", service(type="ExternalName", externalName="api.example.com"))
    found.put_slice("default", "db-1", "db", slice(endpoint("10.1.0.2", hostname="db-0"), endpoint("10.1.0.3")))
    found.put_slice("default", "db-2", "db", slice(endpoint("10.1.0.4", ready=False, hostname="db-1")))
    found.put_slice("default", "db-6", "db", slice(endpoint("fd00:1::2", hostname="db-0"), family="IPv6"))
    return found


def text(answer: Answer) -> list[str]:
    return [readable(each.type, each.data) for each in answer.records]


def readable(type: int, data: bytes) -> str:
    if type in (Type.A, Type.AAAA):
        return str(ipaddress.ip_address(data))
    if type == Type.SRV:
        numbers = " ".join(str(int.from_bytes(data[at : at + 2], "big")) for at in (0, 2, 4))
        return f"{numbers} {dotted(data[6:])}"
    return data[1:].decode() if type == Type.TXT else dotted(data)


def dotted(name: bytes) -> str:
    return ".".join(each.decode() for each in labels_of_name(name))


@pytest.mark.parametrize(
    ("name", "type", "expected"),
    [
        ("web.default.svc", Type.A, ["10.96.0.7"]),
        ("web.default.svc", Type.AAAA, ["fd00::7"]),
        ("WEB.Default.svc", Type.A, ["10.96.0.7"]),
        ("_http._tcp.web.default.svc", Type.SRV, ["0 100 80 web.default.svc.cluster.local"]),
        ("_dns._udp.web.default.svc", Type.SRV, ["0 100 53 web.default.svc.cluster.local"]),
        ("db.default.svc", Type.A, ["10.1.0.2", "10.1.0.3"]),
        ("db.default.svc", Type.AAAA, ["fd00:1::2"]),
        ("db-0.db.default.svc", Type.A, ["10.1.0.2"]),
        ("10-1-0-3.db.default.svc", Type.A, ["10.1.0.3"]),
        (
            "_db._tcp.db.default.svc",
            Type.SRV,
            ["0 50 15432 db-0.db.default.svc.cluster.local", "0 50 15432 10-1-0-3.db.default.svc.cluster.local"],
        ),
        ("outside.shop.svc", Type.A, ["api.example.com"]),
        ("10-1-0-9.default.pod", Type.A, ["10.1.0.9"]),
        ("fd00--9.default.pod", Type.AAAA, ["fd00::9"]),
        ("dns-version", Type.TXT, ["1.1.0"]),
    ],
)
def test_name_has_records(names: ClusterNames, name: str, type: int, expected: list[str]) -> None:
    answer = names.answer(wire_name(f"{name}.cluster.local"), type)
    assert text(answer) == expected
    assert answer.code == Code.NOERROR
    assert answer.is_authoritative


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("web.default.svc", Type.TXT),
        ("web.default.svc", Type.SRV),
        ("waiting.default.svc", Type.A),
        ("_http._tcp.web.default.svc", Type.A),
        ("10-1-0-9.default.pod", Type.AAAA),
        ("default.svc", Type.A),
        ("svc", Type.A),
    ],
)
def test_name_exists_without_records(names: ClusterNames, name: str, type: int) -> None:
    answer = names.answer(wire_name(f"{name}.cluster.local"), type)
    assert (answer.code, list(answer.records)) == (Code.NOERROR, [])
    assert [each.type for each in answer.authority] == [Type.SOA]


@pytest.mark.parametrize(
    "name",
    [
        *("missing.default.svc", "web.missing.svc", "missing.svc", "web", "a.b.c.d.e.f.svc"),
        *("empty.default.svc", "db-1.db.default.svc", "x.web.default.svc", "_x._tcp.web.default.svc"),
        *("_http._udp.web.default.svc", "_http._tcp.outside.shop.svc", "1-2-3.default.pod", "x.default.pod"),
        "web.default.svc.cluster.local",
    ],
)
def test_name_does_not_exist(names: ClusterNames, name: str) -> None:
    answer = names.answer(wire_name(f"{name}.cluster.local"), Type.A)
    assert answer.code == Code.NXDOMAIN
    assert [each.type for each in answer.authority] == [Type.SOA]


def test_external_name_may_be_forbidden(names: ClusterNames) -> None:
    names.allow_external_names(False)
    assert names.answer(wire_name("outside.shop.svc.cluster.local"), Type.A).code == Code.NXDOMAIN


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.96.0.7", ["web.default.svc.cluster.local"]),
        ("fd00::7", ["web.default.svc.cluster.local"]),
        ("10.1.0.2", ["db-0.db.default.svc.cluster.local"]),
        ("10.1.0.3", None),
        ("10.1.0.4", None),
        ("8.8.8.8", None),
    ],
)
def test_address_has_names(names: ClusterNames, address: str, expected: list[str] | None) -> None:
    name = wire_name(ipaddress.ip_address(address).reverse_pointer)
    assert reverse_address(name) == address
    answer = names.pointer(name, address)
    assert (text(answer) if answer is not None else None) == expected


def test_names_follow_changes(names: ClusterNames) -> None:
    def addresses(name: str) -> list[str]:
        return text(names.answer(wire_name(f"{name}.default.svc.cluster.local"), Type.A))

    def has_pointer(address: str) -> bool:
        return names.pointer(wire_name(ipaddress.ip_address(address).reverse_pointer), address) is not None

    assert addresses("db") == ["10.1.0.2", "10.1.0.3"]
    assert has_pointer("10.1.0.2")
    names.put_slice("default", "db-2", "db", slice(endpoint("10.1.0.4", hostname="db-1")))
    names.put_slice("default", "db-1", "", None)
    assert addresses("db") == ["10.1.0.4"]
    assert not has_pointer("10.1.0.2")
    assert has_pointer("10.1.0.4")
    names.put_slice("default", "db-2", "other", slice(endpoint("10.1.0.4")))
    assert addresses("db") == []
    names.put_service("default", "web", service(clusterIP="10.96.0.8"))
    assert addresses("web") == ["10.96.0.8"]
    assert not has_pointer("10.96.0.7")
    assert has_pointer("10.96.0.8")
    names.put_service("default", "web", None)
    assert addresses("web") == []
    assert not has_pointer("10.96.0.8")


def test_objects_that_cannot_be_read_have_no_names(names: ClusterNames) -> None:
    for number, raw in enumerate((b"{", b"{}", b'{"spec": 7}', b'{"spec": {"clusterIPs": ["x"]}}')):
        names.put_service("default", f"bad-{number}", raw)
    for number, endpoints in enumerate((7, [{}], [{"addresses": ["x"]}], [endpoint("10.1.0.8", hostname="a" * 64)])):
        raw = msgspec.json.encode({"addressType": "IPv4", "endpoints": endpoints})
        names.put_slice("default", f"bad-{number}", "empty", raw)
    names.pointer(wire_name("1.0.0.10.in-addr.arpa"), "10.0.0.1")
    for name in ("bad-0", "bad-1", "bad-2", "bad-3", "empty"):
        assert text(names.answer(wire_name(f"{name}.default.svc.cluster.local"), Type.A)) == []


@pytest.mark.parametrize(
    "name", ["10.in-addr.arpa", "x.0.0.10.in-addr.arpa", "300.0.0.10.in-addr.arpa", "1.ip6.arpa", "in-addr.arpa"]
)
def test_part_of_an_address_is_no_address(name: str) -> None:
    assert reverse_address(wire_name(name)) is None
