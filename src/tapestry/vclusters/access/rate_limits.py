"""Rate limits: token buckets for addresses before authentication, and for identities and methods after it."""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_BUCKETS = 100_000
"""Buckets that are kept. Beyond that, the one that was unused for the longest time is removed."""


@dataclass(frozen=True)
class Rate:
    """Requests a second on average, and requests at once."""

    per_second: float
    burst: int


READ, WRITE, EXPENSIVE = "read", "write", "expensive"
RATES = {READ: Rate(50, 100), WRITE: Rate(5, 20), EXPENSIVE: Rate(1, 5)}
"""Limits of one identity, over all instances of the service."""
ADDRESS_RATE = Rate(100, 200)
"""Limit of one address. IPv6 addresses count by their network of 64 bits."""

EXPENSIVE_METHODS = frozenset({"CreateVCluster", "RestoreVCluster", "GetVClusterKubeconfig", "SnapshotVCluster"})
READ_PREFIXES = ("Get", "List", "Watch", "Wait", "Proxy", "Check")


def class_of(method: str) -> str:
    """Return the class of a method, which decides about its limit."""
    if method in EXPENSIVE_METHODS:
        return EXPENSIVE
    return READ if method.startswith(READ_PREFIXES) else WRITE


@dataclass(frozen=True)
class Allowance:
    """Result of one request to a bucket, as the headers RateLimit-Limit, -Remaining and -Reset report it."""

    is_allowed: bool
    limit: int
    remaining: int
    reset_seconds: int
    """Seconds until the bucket is full."""
    retry_seconds: int = 0
    """Seconds until the next request is allowed."""


@dataclass(slots=True)
class Bucket:
    tokens: float
    refilled_at: float


@dataclass
class RateLimiter:
    """Token buckets by key."""

    clock: Callable[[], float]
    instances: Callable[[], int] = lambda: 1
    """Number of live instances of the service: each allows an equal part."""
    max_buckets: int = MAX_BUCKETS
    _buckets: OrderedDict[tuple[str, ...], Bucket] = field(default_factory=OrderedDict, init=False)

    def take(self, rate: Rate, *key: str) -> Allowance:
        """Take one token from the bucket of a key. Without a token, nothing changes."""
        now, part = self.clock(), max(1, self.instances())
        per_second, burst = rate.per_second / part, max(1.0, rate.burst / part)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(burst, now)
            if len(self._buckets) > self.max_buckets:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
            bucket.tokens = min(burst, bucket.tokens + max(0.0, now - bucket.refilled_at) * per_second)
            bucket.refilled_at = now
        is_allowed = bucket.tokens >= 1
        if is_allowed:
            bucket.tokens -= 1
        retry = 0 if is_allowed else max(1, math.ceil((1 - bucket.tokens) / per_second))
        reset = math.ceil((burst - bucket.tokens) / per_second)
        return Allowance(is_allowed, int(burst), int(bucket.tokens), reset, retry)
