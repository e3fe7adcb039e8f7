"""Addresses for nodes and pods of this machine: each has one of its own, and keeps it."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Network

from tapestry.kube.objects import Object, key_of, uid_of

NODE_NETWORK = IPv4Network("127.64.0.0/11")
"""All of 127.0.0.0/8 is this machine, on Linux."""
PROCESS_POD_NETWORK = IPv4Network("127.96.0.0/11")
SIMULATED_POD_NETWORK = IPv4Network("10.128.0.0/10")
"""For pods that are only simulated."""


@dataclass(slots=True)
class AddressAllocator:
    """Gives addresses of a network to objects that show none yet; `holders` are those that do."""

    network: IPv4Network
    reported_address: Callable[[Object], str]
    holders: Callable[[str], Iterable[Object]]
    _by_key: dict[str, str] = field(default_factory=dict, init=False)  # key -> address; it may not be shown yet
    _by_address: dict[str, str] = field(default_factory=dict, init=False)  # and the reverse

    def allocate(self, obj: Object) -> str:
        """The address that the object shows, or one that is free; the same at each call."""
        key = key_of(obj)
        address = self.reported_address(obj) or self._by_key.get(key)
        if not address:
            address = next(each for each in candidate_addresses(self.network, uid_of(obj)) if self._is_free(each, key))
        self._by_key[key], self._by_address[address] = address, key
        return address

    def release(self, key: str) -> None:
        """Forget what was given under a key."""
        address = self._by_key.pop(key, None)
        if address is not None and self._by_address.get(address) == key:
            del self._by_address[address]

    def _is_free(self, address: str, key: str) -> bool:
        return self._by_address.get(address, key) == key and all(key_of(each) == key for each in self.holders(address))


def candidate_addresses(network: IPv4Network, uid: str) -> Iterator[str]:
    """Addresses to try, in an order that depends on the object alone."""
    for salt in itertools.count():
        digest = hashlib.sha256(f"{uid}/{salt}".encode()).digest()
        yield str(network[int.from_bytes(digest[:4], "big") % (network.num_addresses - 2) + 1])
