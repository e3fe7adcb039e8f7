"""Who is behind a kubeconfig, and what it lets us do there.

Three questions within half a minute: does the server answer, which cluster is it, and does it grant every right that a
syncer needs.  Nothing is written there.
"""

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from tapestry.apis.clusterbindings import AllowedVolumes, ClusterBindingSpec, SecretReference
from tapestry.apis.rights import IDENTITY_NAMESPACE, Place, Right, attributes, placed, single, syncer_below
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.errors import KubeconfigError
from tapestry.client.strict_kubeconfig import from_secret
from tapestry.client.transport import SmallAnswers, Transport
from tapestry.kube.errors import Forbidden, KubeError, Unauthorized
from tapestry.kube.objects import Object, uid_of, value_at, version_of
from tapestry.kube.resources import NAMESPACES, SELF_ACCESS_REVIEWS
from tapestry.manager.faults import Fault, Patience

if TYPE_CHECKING:
    from tapestry.controller import Informer

KEY = "kubeconfig"
SECONDS = 30.0
"""For all questions together."""
FRESH_SECONDS = 60.0
"""How long a good answer stands for the next one, as long as Secret and mount namespace are the same."""
REVIEWS_AT_ONCE = 8
ACCOUNT_PREFIX = "system:serviceaccount:"

Connect = Callable[[Access], Transport]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a physical cluster answered."""

    version: str
    identity: str | None
    """None where we may not even ask: then that right is among the missing."""
    missing: tuple[Right, ...]
    expires: datetime | None
    """When the credentials do, where they say so."""
    mount: Object | None = None
    """The mount namespace; None where it is not there, or we may not look."""


def access_in(secret: Object | None, reference: SecretReference, *, allow_loopback: bool) -> Access:
    """The access that a binding's Secret gives; raises a Fault that waits for the Secret to change."""
    place = f"Secret {reference.namespace}/{reference.name}"
    if secret is None:
        raise unusable(f"{place} is not there; create it with a kubeconfig under the key {KEY}")
    data = value_at(secret, "data", KEY)
    if data is None:
        raise unusable(f"{place} has no key {KEY}; put the kubeconfig there")
    try:
        return from_secret(base64.b64decode(data, validate=True), allow_loopback=allow_loopback)
    except (KubeconfigError, binascii.Error) as error:
        raise unusable(f"{place}: {KEY}: {error}") from error


def secret_at(caches: "Iterable[Informer]", key: str) -> Object | None:
    """The Secret of that key, in whichever namespace's cache it is."""
    return next((found for each in caches if (found := each.store.get(key)) is not None), None)


def unusable(message: str) -> Fault:
    return Fault("ConnectivityFailed", message, condition="Connected")


@dataclass(frozen=True)
class Examiner:
    """Asks physical clusters, and does not ask again for a minute when nothing changed: passes come in flocks."""

    connect: Connect
    allow_loopback: bool = False
    _known: dict[str, tuple[object, float, Finding]] = field(default_factory=dict)

    async def finding(self, binding: str, secret: Object | None, spec: ClusterBindingSpec) -> Finding:
        """What the cluster behind the kubeconfig in `secret` answers; raises a Fault where it cannot be asked."""
        mount_namespace = spec.mount_namespace or ""
        asked = mount_namespace, spec.allowed_volumes
        about = (uid_of(secret), version_of(secret), *asked) if secret is not None else None
        now = asyncio.get_running_loop().time()
        known = self._known.get(binding)
        if known is not None and known[0] == about and now - known[1] < FRESH_SECONDS:
            return known[2]
        self.forget(binding)
        found = await examined(
            access_in(secret, spec.secret_ref, allow_loopback=self.allow_loopback), *asked, self.connect
        )
        if not found.missing:
            self._known[binding] = (about, now, found)
        return found

    def forget(self, binding: str) -> None:
        self._known.pop(binding, None)


async def examined(access: Access, mount_namespace: str, allowed: AllowedVolumes, connect: Connect) -> Finding:
    """Ask everything, once; a Fault that is tried again says that the cluster did not answer."""
    try:
        claims = claims_of(await access.credentials.headers())
        transport = connect(access)
        try:
            async with asyncio.timeout(SECONDS):
                return await answers(Client(SmallAnswers(transport)), claims, mount_namespace, allowed)
        finally:
            await transport.close()
    except Unauthorized as error:
        message = f"{access.server} refuses the credentials: {error.message}; put a new kubeconfig into the Secret"
    except KubeError as error:
        message = str(error)
    except TimeoutError:
        message = f"{access.server} did not answer within {SECONDS:g} s"
    raise Fault("ConnectivityFailed", message, condition="Connected", patience=Patience.BACKOFF)


async def answers(client: Client, claims: Object, mount_namespace: str, allowed: AllowedVolumes) -> Finding:
    version = str((await client.version()).get("gitVersion", "of no version"))
    try:
        identity = uid_of(await client.get(NAMESPACES, IDENTITY_NAMESPACE))
    except Forbidden:
        identity = None
    try:
        found = await client.list(NAMESPACES, fields=f"metadata.name={mount_namespace}")
    except Forbidden:
        found = []
    needed = single(placed(syncer_below(allowed), {Place.MOUNT: mount_namespace, **account_in(claims)}))
    missing = await refused(client, needed)
    if identity is None and not missing:
        raise KubeError(f"the server refuses to show namespace {IDENTITY_NAMESPACE}, and says that we may see it")
    return Finding(version, identity, missing, expiry_in(claims), found[0] if found else None)


async def refused(client: Client, rights: Iterable[Right]) -> tuple[Right, ...]:
    """Which of the rights we lack, in their order; one review each, a few at a time."""
    slots = asyncio.Semaphore(REVIEWS_AT_ONCE)

    async def may(right: Right) -> bool:
        async with slots:
            review = await client.review(SELF_ACCESS_REVIEWS, {"resourceAttributes": attributes(right)})
        return bool(value_at(review, "status", "allowed", default=False))

    try:
        async with asyncio.TaskGroup() as group:
            asked = [(right, group.create_task(may(right))) for right in rights]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return tuple(right for right, answer in asked if not answer.result())


# What a token says of itself.  Nobody has verified it: it decides only when to warn, and which right to ask about.


def claims_of(headers: Iterable[tuple[str, str]]) -> Object:
    """The claims of a JSON Web Token among `headers`; empty where there is none."""
    token = next((text.removeprefix("Bearer ") for name, text in headers if name == "Authorization"), "")
    head, _, rest = token.partition(".")
    payload = rest.partition(".")[0]
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, RecursionError):
        return {}
    return claims if head and isinstance(claims, dict) else {}


def expiry_in(claims: Object) -> datetime | None:
    seconds = claims.get("exp")
    try:
        return datetime.fromtimestamp(seconds, UTC) if isinstance(seconds, int | float) else None
    except (ValueError, OverflowError, OSError):
        return None


def account_in(claims: Object) -> dict[Place, str]:
    """The service account whose token expires, for it has to be renewed by that account itself."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject.startswith(ACCOUNT_PREFIX) or expiry_in(claims) is None:
        return {}
    namespace, _, name = subject.removeprefix(ACCOUNT_PREFIX).partition(":")
    return {Place.ACCOUNT_NAMESPACE: namespace, Place.ACCOUNT: name}
