"""Stable unique IP addresses for nodes and pods on this machine."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Network

from tapestry.kube.objects import Object, key_of, uid_of

NODE_NETWORK = IPv4Network("127.64.0.0/11")
"""Loopback addresses: on Linux, all of 127.0.0.0/8 is this machine."""
PROCESS_POD_NETWORK = IPv4Network("127.96.0.0/11")
SIMULATED_POD_NETWORK = IPv4Network("10.128.0.0/10")
"""Addresses of simulated pods."""


@dataclass(slots=True)
class AddressAllocator:
    """Assigns addresses of a network to objects without one; `holders` finds the objects that report an address."""

    network: IPv4Network
    reported_address: Callable[[Object], str]
    holders: Callable[[str], Iterable[Object]]
    _by_key: dict[str, str] = field(default_factory=dict, init=False)  # key -> address, possibly not reported yet
    _by_address: dict[str, str] = field(default_factory=dict, init=False)  # address -> key

    def allocate(self, obj: Object) -> str:
        """Return the object's reported address, or a free one; repeated calls return the same."""
        key = key_of(obj)
        address = self.reported_address(obj) or self._by_key.get(key)
        if not address:
            address = next(each for each in candidate_addresses(self.network, uid_of(obj)) if self._is_free(each, key))
        self._by_key[key], self._by_address[address] = address, key
        return address

    def release(self, key: str) -> None:
        """Free the address that was assigned under a key."""
        address = self._by_key.pop(key, None)
        if address is not None and self._by_address.get(address) == key:
            del self._by_address[address]

    def _is_free(self, address: str, key: str) -> bool:
        return self._by_address.get(address, key) == key and all(key_of(each) == key for each in self.holders(address))


def candidate_addresses(network: IPv4Network, uid: str) -> Iterator[str]:
    """Yield addresses to try, in an order that depends only on the UID."""
    for salt in itertools.count():
        digest = hashlib.sha256(f"{uid}/{salt}".encode()).digest()
        yield str(network[int.from_bytes(digest[:4], "big") % (network.num_addresses - 2) + 1])
