"""Rotation of the serving certificate: from files or a Secret, or requested from the cluster.

A request stays pending until it is approved or denied, or until the cluster deletes it.  Until then the server
keeps the certificate that it has.  At first, this is a self-signed one.
"""

import asyncio
import base64
import binascii
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from tapestry.apis.serving_certificates import signing_request
from tapestry.apiserver.access.certificates import private_key_pem
from tapestry.client.client import Client
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import SIGNING_REQUESTS
from tapestry.nodeproxy.serving_certificate import (
    RENEWAL_FRACTION,
    WARNING_FRACTION,
    KeyPair,
    ServingCertificate,
    lifetime_of,
)
from tapestry.process.logs import logger

log = logger(__name__)

CHECK_SECONDS = 10.0
"""Seconds between two checks of files and of the expiry."""
POLL_SECONDS, POLL_PERIOD = 2.0, timedelta(minutes=1)
"""Seconds between two reads of a new request, and how long it counts as new."""
RETRY_AFTER = timedelta(minutes=10)
"""Time after which a failed or denied request is repeated."""


def key_pair_in_files(certificate: Path, key: Path) -> KeyPair | None:
    """Return the content of two files, or None if one of them does not exist."""
    try:
        return KeyPair(certificate.read_bytes(), key.read_bytes())
    except FileNotFoundError:
        return None


def key_pair_in_secret(secret: Object | None) -> KeyPair | None:
    """Return the content of a Secret of the type `kubernetes.io/tls`, or None if there is none."""
    data = (secret or {}).get("data") or {}
    try:
        return KeyPair(*(base64.b64decode(data[name], validate=True) for name in ("tls.crt", "tls.key")))
    except (KeyError, binascii.Error):
        return None


@dataclass(frozen=True, slots=True)
class PendingRequest:
    name: str
    names: frozenset[str]
    key: bytes = field(repr=False)
    since: datetime


@dataclass
class CertificateRotation:
    """Keep the serving certificate current, in every replica."""

    serving: ServingCertificate
    syncer: str
    """Name of the syncer, for requests."""
    names: Callable[[], frozenset[str]]
    """Return the names and addresses that the certificate must have."""
    provided: Callable[[], KeyPair | None]
    """Return the certificate in files or in a Secret, if there is one."""
    client: Client
    """Client of the virtual cluster, without a fence: each replica requests its own certificate."""
    report: Callable[[str], None]
    """Record an event with this message."""
    now: Callable[[], datetime]
    changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when the names or the provided certificate may have changed, for an immediate check."""
    _used: KeyPair | None = field(default=None, init=False)  # the provided certificate that was used last
    _requested: frozenset[str] = field(default=frozenset(), init=False)  # names of a requested certificate in use
    _pending: PendingRequest | None = field(default=None, init=False)
    _retry_at: datetime | None = field(default=None, init=False)
    _warned: KeyPair | None = field(default=None, init=False)
    _error: str = field(default="", init=False)  # last problem of a request

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            self.changed.clear()
            seconds = await self.check()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.changed.wait()

    async def check(self) -> float:
        """Do what is necessary now, and return the seconds until the next check."""
        pair = self.provided()
        if pair is not None:
            self._pending = None
            self._use_provided(pair)
        else:
            try:
                await self._request()
                self._error = ""
            except KubeError as error:
                self._fail_request(str(error))
        self._warn_before_expiry()
        is_new = self._pending is not None and self.now() - self._pending.since < POLL_PERIOD
        return POLL_SECONDS if is_new else CHECK_SECONDS

    def _use_provided(self, pair: KeyPair) -> None:
        if pair == self._used:
            return
        self._used, self._requested = pair, frozenset()
        try:
            self.serving.use(pair)
        except ValueError as error:
            log.warning("serving certificate not reloaded, keeping the previous one", error=str(error))
        else:
            log.info("serving certificate loaded", expires=str(lifetime_of(pair).end))

    async def _request(self) -> None:
        """Request a certificate if one is needed, or read the pending request."""
        self._used, names = None, self.names()
        if self._pending is not None and self._pending.names == names:
            await self._read_pending(self._pending)
        elif self._needs_request(names):
            key = ec.generate_private_key(ec.SECP256R1())
            name = f"{self.syncer}-{secrets.token_hex(8)}"
            await self.client.create(SIGNING_REQUESTS, signing_request(name, self.syncer, names, key))
            self._pending = PendingRequest(name, names, private_key_pem(key), self.now())

    def _fail_request(self, error: str) -> None:
        """Report each problem once: an API server may be unreachable for long."""
        if error != self._error:
            log.warning("serving certificate not requested", error=error)
        self._error, self._retry_at = error, self.now() + RETRY_AFTER

    def _needs_request(self, names: frozenset[str]) -> bool:
        if self._retry_at is not None and self.now() < self._retry_at:
            return False
        return names != self._requested or self.now() >= lifetime_of(self.serving.pair).after(RENEWAL_FRACTION)

    async def _read_pending(self, pending: PendingRequest) -> None:
        request = await self.client.find(SIGNING_REQUESTS, pending.name)
        problem = "the request was deleted before it was approved" if request is None else request_failure(request)
        certificate = value_at(request, "status", "certificate") if request is not None else None
        if certificate and not problem:
            try:
                self.serving.use(KeyPair(base64.b64decode(certificate), pending.key))
            except ValueError as error:  # not for our key
                problem = str(error)
        if problem:
            self._pending, self._retry_at = None, self.now() + RETRY_AFTER
            log.warning("serving certificate not issued", request=pending.name, error=problem)
        elif certificate:
            self._pending, self._retry_at, self._requested = None, None, pending.names
            log.info("serving certificate issued", expires=str(lifetime_of(self.serving.pair).end))

    def _warn_before_expiry(self) -> None:
        pair = self.serving.pair
        lifetime = lifetime_of(pair)
        if pair != self._warned and self.now() >= lifetime.after(WARNING_FRACTION):
            self._warned = pair
            self.report(f"the serving certificate of the virtual nodes expires at {lifetime.end:%Y-%m-%dT%H:%M:%SZ}")


def request_failure(request: Object) -> str:
    """Return why a request will never have a certificate, or an empty string."""
    for condition in value_at(request, "status", "conditions", default=()):
        if condition["type"] in ("Denied", "Failed"):
            return f"{condition['type']}: {condition.get('message') or condition.get('reason') or 'no reason given'}"
    return ""
