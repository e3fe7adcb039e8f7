"""Resolver of one cluster: answers the names of the cluster itself, and forwards others as far as rules allow."""

import ipaddress
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tapestry.dns.cluster_names import IN_ADDR, IP6, ClusterNames, reverse_address
from tapestry.dns.forwarding import Forwarder, Server
from tapestry.dns.messages import META_TYPES, Answer, Code, Query, Record, Type, is_within

MAX_ALIASES = 8
"""Names of Services of type ExternalName that may lead to each other."""
TYPES_WITH_HINTS = (Type.SVCB, Type.HTTPS)
"""Types whose records may contain addresses. They are not forwarded; clients ask for A and AAAA then."""
ADDRESS_TYPES = (Type.A, Type.AAAA)

Range = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Rules:
    """Rules of a resolver: what it forwards, and which answers it returns."""

    servers: tuple[Server, ...] = ()
    """Servers to which names outside of the cluster are forwarded."""
    refused_domains: tuple[bytes, ...] = ()
    """Domains of the network of this process, whose names are not forwarded."""
    refused_ranges: tuple[Range, ...] = ()
    """Answers of other servers with addresses in these ranges are not returned, nor are their names asked for."""
    source_ranges: tuple[Range, ...] = ()
    """Ranges of clients. Queries of others get no answer."""
    allows_external_names: bool = True

    def refuses(self, address: bytes | str) -> bool:
        return is_in(ipaddress.ip_address(address), self.refused_ranges)

    def accepts(self, source: str) -> bool:
        """Return whether a client may use the resolver, by its address."""
        try:
            parsed = ipaddress.ip_address(source.partition("%")[0])
        except ValueError:
            return False
        return is_in(getattr(parsed, "ipv4_mapped", None) or parsed, self.source_ranges)


def is_in(address: ipaddress.IPv4Address | ipaddress.IPv6Address, ranges: Sequence[Range]) -> bool:
    return any(address.version == each.version and address in each for each in ranges)


class Forwarded(NamedTuple):
    """A name that other servers resolve, and the aliases that lead to it."""

    aliases: list[Record]
    name: bytes


@dataclass(frozen=True)
class Resolver:
    """Resolver of one cluster."""

    client: str
    """Id of the cluster."""
    domain: bytes
    """Domain of the names of the cluster, in wire format."""
    names: Callable[[], ClusterNames | None]
    """Return the names of the cluster; None if they are not known now."""
    rules: Callable[[], Rules | None]
    """Return the rules; None if no name may be resolved now."""
    is_foreign: Callable[[str], bool] = lambda _: False
    """Return whether the client with an address belongs to another cluster, as far as that is known."""
    forwarder: Forwarder = field(default_factory=Forwarder)

    def state(self) -> object:
        """Return a value that is equal as long as no answer about the cluster changes."""
        names = self.names()
        return names, names.version if names is not None else 0, self.rules()

    def accepts(self, source: str) -> bool:
        rules = self.rules()
        return rules is not None and rules.accepts(source) and not self.is_foreign(source)

    def known_answer(self, query: Query) -> Answer | Forwarded:
        """Return the answer to a query, or the name that other servers have to resolve."""
        rules, names = self.rules(), self.names()
        if rules is None:
            return Answer(Code.SERVFAIL)
        found = self._own_answer(query, names, rules)
        if not isinstance(found, Forwarded):
            return found
        aliases, name = found
        if not rules.servers:
            return Answer(Code.SERVFAIL)
        if is_single_label(name) or any(is_within(name, each) for each in rules.refused_domains):
            return Answer(Code.NXDOMAIN, records=aliases)
        if query.type in TYPES_WITH_HINTS:
            return Answer(records=aliases)
        cached = self.forwarder.cached_answer(self.client, name, query.type)
        return found if cached is None else allowed_answer(cached, aliases, rules)

    def _own_answer(self, query: Query, names: ClusterNames | None, rules: Rules) -> Answer | Forwarded:
        if query.type in META_TYPES or query.type in (0, Type.OPT):
            return Answer(Code.REFUSED)
        is_of_cluster = is_within(query.name, self.domain)
        if not (is_of_cluster or is_within(query.name, IN_ADDR) or is_within(query.name, IP6)):
            return Forwarded([], query.name)
        if names is None:
            return Answer(Code.SERVFAIL)
        return self._cluster_answer(names, query) if is_of_cluster else self._reverse_answer(names, query, rules)

    def _cluster_answer(self, names: ClusterNames, query: Query) -> Answer | Forwarded:
        """Follow aliases within the cluster."""
        aliases: list[Record] = []
        name = query.name
        while len(aliases) < MAX_ALIASES:
            answer = names.answer(name, query.type)
            if query.type == Type.CNAME or not answer.records or answer.records[0].type != Type.CNAME:
                records = [*aliases, *rotated(answer.records)]
                return replace(answer, records=records) if len(records) > 1 else answer
            aliases += answer.records
            name = answer.records[0].data
            if not is_within(name, self.domain):
                return Forwarded(aliases, name)
        return Answer(Code.SERVFAIL)

    def _reverse_answer(self, names: ClusterNames, query: Query, rules: Rules) -> Answer | Forwarded:
        zone, address = IN_ADDR if is_within(query.name, IN_ADDR) else IP6, reverse_address(query.name)
        if address is None:
            return names.negative(Code.NXDOMAIN, zone)
        found = names.pointer(query.name, address)
        if found is not None:
            return found if query.type == Type.PTR else names.negative(owner=zone)
        is_private = rules.refuses(address) or ipaddress.ip_address(address).is_private
        return names.negative(Code.NXDOMAIN, zone) if is_private else Forwarded([], query.name)

    async def forwarded_answer(self, query: Query, forwarded: Forwarded) -> Answer:
        """Return the answer of other servers, as far as the rules allow it."""
        rules, (aliases, name) = self.rules(), forwarded
        if rules is None:
            return Answer(Code.SERVFAIL)
        answer = await self.forwarder.answer(self.client, rules.servers, name, query.type)
        return allowed_answer(answer, aliases, rules)


def allowed_answer(answer: Answer, aliases: list[Record], rules: Rules) -> Answer:
    """Return the answer of another server after the aliases that lead to it; these alone if it is not allowed."""
    records = (*answer.records, *answer.authority)
    if any(each.type in ADDRESS_TYPES and rules.refuses(each.data) for each in records):
        return Answer(records=aliases)
    return replace(answer, records=[*aliases, *answer.records]) if aliases else answer


def rotated(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records in an order that begins with any of them: many clients use only the first one."""
    start = random.randrange(len(records)) if len(records) > 1 else 0
    return [*records[start:], *records[:start]]


def is_single_label(name: bytes) -> bool:
    """Return whether a name is that of the root or has one label: such names exist in private networks only."""
    return len(name) <= 1 or name[0] + 2 == len(name)
