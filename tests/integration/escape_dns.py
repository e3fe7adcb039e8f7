"""Attempts of a tenant to learn names and addresses of others through DNS.

The DNS server beyond the resolvers of the tenants is that of the host cluster. It knows the names of all Services
there, and an attacker on the internet has names with addresses of others.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from tests.unit.dns.dns_servers import sent, sent_over_tcp

from tapestry.dns.messages import (
    HEADER,
    QUESTION_TAIL,
    Type,
    encode_query,
    parse_query,
    parse_response,
    wire_name,
)
from tapestry.tenants.network_rules import PRIVATE, SPECIAL

from .escape_objects import ACCEPTED
from .escape_requests import SERVICES
from .escaping_tenant import EscapingTenant

PUBLIC_NAME = "www.example.com"
DOMAIN, HOST_DOMAIN = "cluster.local", "svc.host.example"
IXFR, AXFR, TKEY = 251, 252, 249
HOST_NAMES = {
    f"foreign.foreign.{HOST_DOMAIN}": "10.96.0.77",
    f"kubernetes.default.{HOST_DOMAIN}": "10.96.0.1",
    f"<victim-service>.<victim-namespace>.{HOST_DOMAIN}": "<victim-service-ip>",
    "metadata.google.internal": "169.254.169.254",
    "loopback.evil.example": "127.0.0.1",
    "unspecified.evil.example": "0.0.0.0",
    "service.evil.example": "<victim-service-ip>",
    "pod.evil.example": "<victim-ip>",
    "node.evil.example": "192.168.7.7",
    "intranet": "10.0.0.7",
}
"""Names that the other server resolves to addresses of others."""
PUBLIC_NAMES = {PUBLIC_NAME: "192.0.2.7"}


@dataclass(frozen=True)
class DnsAttempt:
    """A query whose response must show nothing of others."""

    name: str
    type: int = Type.A
    port: str = "dns-port"
    """Value with the port that is queried."""
    is_forwarded: bool = False
    """True if the other server may learn the name."""


def names_of_others() -> Iterable[DnsAttempt]:
    """Yield queries for names of the victim and of the host in the domain of the attacker's cluster."""
    for name in ("shop.default", "Shop.Default", "shop.<victim-namespace>", "<victim-service>.<victim-namespace>"):
        yield DnsAttempt(f"{name}.svc.{DOMAIN}")
        yield DnsAttempt(f"{name}.svc.{DOMAIN}", Type.AAAA)
        yield DnsAttempt(f"_http._tcp.{name}.svc.{DOMAIN}", Type.SRV)
    yield DnsAttempt(f"foreign.foreign.svc.{DOMAIN}")
    yield DnsAttempt(f"shop.default.svc.<victim-id>.{DOMAIN}")
    yield DnsAttempt(f"<victim-twin>.<victim-namespace>.pod.{DOMAIN}")
    yield DnsAttempt("1.0.96.10.in-addr.arpa", Type.PTR)
    yield DnsAttempt("96.10.in-addr.arpa", Type.NS)
    yield DnsAttempt("10.in-addr.arpa", Type.SOA)
    yield DnsAttempt("254.169.254.169.in-addr.arpa", Type.PTR)
    for type in (Type.ANY, AXFR, IXFR, TKEY):
        yield DnsAttempt(DOMAIN, type)
        yield DnsAttempt(f"svc.{DOMAIN}", type)


def names_of_other_servers() -> Iterable[DnsAttempt]:
    """Yield queries for names that lead to addresses of others."""
    for name in HOST_NAMES:
        for type in (Type.A, Type.HTTPS, Type.ANY):
            yield DnsAttempt(name, type, is_forwarded=True)


def names_of_the_attacker() -> Iterable[DnsAttempt]:
    """Yield queries to the resolver of the victim for what the attacker has written to its own plane."""
    for name in ("own", "kube-dns", "to-host"):
        yield DnsAttempt(f"{name}.default.svc.{DOMAIN}", port="victim-dns-port")


EXTERNAL_NAMES = {
    "to-host": f"foreign.foreign.{HOST_DOMAIN}",
    "to-victim": f"shop.default.svc.<victim-id>.{DOMAIN}",
    "to-metadata": "metadata.google.internal",
    "to-itself": f"to-itself.default.svc.{DOMAIN}",
}
"""Services of type ExternalName of the attacker."""
DNS_ATTEMPTS = [*names_of_others(), *names_of_other_servers(), *names_of_the_attacker()]
DNS_ATTEMPTS += [DnsAttempt(f"{name}.default.svc.{DOMAIN}", is_forwarded=True) for name in EXTERNAL_NAMES]
MALFORMED = (
    b"",
    b"\0",
    HEADER.pack(1, 0x8180, 1, 1, 0, 0) + wire_name("a.b") + QUESTION_TAIL.pack(1, 1),
    HEADER.pack(1, 0, 65535, 65535, 65535, 65535),
    HEADER.pack(1, 0x2800, 1, 0, 0, 0) + wire_name(DOMAIN) + QUESTION_TAIL.pack(Type.SOA, 1),
)
"""Packets after which the resolver still answers: responses, updates and others that are no queries."""


async def learned_names(tenant: EscapingTenant) -> list[str]:
    """Take all attempts, and return those that showed an address of others or let the other server learn a name."""
    for name, target in EXTERNAL_NAMES.items():
        spec = {"type": "ExternalName", "externalName": tenant.filled(target)}
        status, text = await tenant.request("POST", SERVICES, {"metadata": {"name": name}, "spec": spec})
        assert status in ACCEPTED, text
    names = {**HOST_NAMES, **PUBLIC_NAMES}
    tenant.upstream.answers |= {tenant.filled(name): [tenant.filled(each)] for name, each in names.items()}
    upstream, port = tenant.upstream, int(tenant.values["dns-port"])
    for packet in MALFORMED[2:]:
        await sent_over_tcp_or_closed(port, packet)
    for name, count in ((f"own.default.svc.{DOMAIN}", 1), (PUBLIC_NAME, 1), ("missing.example.com", 0)):
        assert len(await answered_addresses(tenant, DnsAttempt(name))) == count, "names that it may resolve"
    found = []
    for each in DNS_ATTEMPTS:
        before = len(upstream.queries)
        addresses = filter(is_of_others, await answered_addresses(tenant, each))
        found += [f"DNS {each.name} {each.type}: {address}" for address in addresses]
        if not each.is_forwarded and upstream.queries[before:]:
            found.append(f"DNS {each.name} {each.type}: it was forwarded")
    return found


def is_of_others(address: IPv4Address | IPv6Address) -> bool:
    return any(address in block for block in (*PRIVATE, *SPECIAL) if block.version == address.version)


async def sent_over_tcp_or_closed(port: int, packet: bytes) -> None:
    try:
        await sent_over_tcp(port, packet)
    except EOFError:
        return


async def answered_addresses(tenant: EscapingTenant, attempt: DnsAttempt) -> list[IPv4Address | IPv6Address]:
    """Return the addresses in the response to a query, and those of names that it shows."""
    message = encode_query(7, wire_name(tenant.filled(attempt.name)), attempt.type)
    response = await sent(int(tenant.values[attempt.port]), message)
    answer, _ = parse_response(response, 7, parse_query(message).question)
    records = (*answer.records, *answer.authority)
    assert not any(each.type == Type.PTR for each in records), attempt
    return [ipaddress.ip_address(each.data) for each in records if each.type in (Type.A, Type.AAAA)]
