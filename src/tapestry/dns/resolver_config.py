"""The configuration of the resolver of this machine: its DNS servers, and the domain of the cluster that it is in."""

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from tapestry.dns.forwarding import DNS_PORT, Server
from tapestry.dns.messages import wire_name

RESOLV_CONF = Path("/etc/resolv.conf")
CLUSTER_SEARCH = "svc."
"""Start of the search domain of pods with the names of all Services. The domain of the cluster follows."""


@dataclass(frozen=True)
class ResolverConfig:
    """Settings of a resolver."""

    servers: tuple[Server, ...] = ()
    cluster_domains: tuple[bytes, ...] = ()
    """Domains of the cluster whose pod this machine is, in wire format."""


def read_resolver_config(path: Path = RESOLV_CONF) -> ResolverConfig:
    """Return the configuration in a file; an empty one if it cannot be read."""
    try:
        return parse_resolver_config(path.read_text(errors="replace"))
    except OSError:
        return ResolverConfig()


def parse_resolver_config(text: str) -> ResolverConfig:
    servers: list[Server] = []
    domains: list[bytes] = []
    for line in text.splitlines():
        match line.split():
            case ["nameserver", address, *_]:
                servers += parsed_servers([address])
            case ["search", *searches]:
                domains += cluster_domains(searches)
    return ResolverConfig(tuple(servers), tuple(domains))


def cluster_domains(searches: list[str]) -> list[bytes]:
    found = []
    for each in searches:
        if each.startswith(CLUSTER_SEARCH):
            try:
                found.append(wire_name(each.removeprefix(CLUSTER_SEARCH)))
            except ValueError:
                continue
    return found


def parsed_servers(texts: list[str] | tuple[str, ...]) -> list[Server]:
    """Return the servers of texts like `192.0.2.1`, `192.0.2.1:53` and `[2001:db8::1]:53`. Others are left out."""
    return [server for text in texts if (server := parsed_server(text)) is not None]


def parsed_server(text: str) -> Server | None:
    address, port = text, str(DNS_PORT)
    if text.startswith("["):
        address, _, port = text[1:].partition("]")
        port = port.removeprefix(":") or str(DNS_PORT)
    elif text.count(":") == 1:
        address, _, port = text.partition(":")
    try:
        ip_address(address.partition("%")[0])
        return Server(address, int(port)) if 0 < int(port) < 65536 else None
    except ValueError:
        return None
