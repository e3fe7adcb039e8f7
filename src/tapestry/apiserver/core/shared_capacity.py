"""A capacity that the servers of a process share.

A server may hold as much as remains free after that. So one server gets at most half, each of two gets a third, and
there is always a part left for a server that holds nothing yet.
"""

from collections import Counter


class SharedCapacity:
    def __init__(self, capacity: int) -> None:
        self._capacity = self._free = capacity
        self._held: Counter[str] = Counter()

    def held(self, owner: str) -> int:
        return self._held[owner]

    def has_capacity(self, owner: str, amount: int = 1) -> bool:
        return self._held[owner] + amount <= self._free - amount

    def acquire(self, owner: str, amount: int = 1) -> None:
        """Take an amount, also if it exceeds the share of the owner."""
        self._held[owner] += amount
        self._free -= amount

    def release(self, owner: str, amount: int = 1) -> None:
        self._free += amount
        self._held[owner] -= amount
        if not self._held[owner]:
            del self._held[owner]
