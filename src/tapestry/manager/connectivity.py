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
from tapestry.apis.permissions import (
    IDENTITY_NAMESPACE,
    Permission,
    Placeholder,
    resource_attributes,
    single_permissions,
    syncer_physical_permissions,
    with_names,
)
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.errors import KubeconfigError
from tapestry.client.strict_kubeconfig import strict_access
from tapestry.client.transport import SmallResponseTransport, Transport
from tapestry.kube.errors import Forbidden, KubeError, Unauthorized
from tapestry.kube.objects import Object, uid_of, value_at, version_of
from tapestry.kube.resources import NAMESPACES, SELF_SUBJECT_ACCESS_REVIEWS
from tapestry.manager.binding_errors import BindingError, RetryPolicy

if TYPE_CHECKING:
    from tapestry.controller import Informer

KUBECONFIG_KEY = "kubeconfig"
PROBE_TIMEOUT = 30.0
"""For all questions together."""
PROBE_CACHE_SECONDS = 60.0
"""How long a good answer stands for the next one, as long as Secret and mount namespace are the same."""
REVIEWS_AT_ONCE = 8
ACCOUNT_PREFIX = "system:serviceaccount:"

Connect = Callable[[Access], Transport]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a physical cluster answered."""

    version: str
    identity: str | None
    """None where we may not even ask: then that right is among the missing."""
    missing: tuple[Permission, ...]
    expires: datetime | None
    """When the credentials do, where they say so."""
    mount: Object | None = None
    """The mount namespace; None where it is not there, or we may not look."""


def access_from_secret(secret: Object | None, reference: SecretReference, *, allow_loopback: bool) -> Access:
    """The access that a binding's Secret gives; raises a Fault that waits for the Secret to change."""
    place = f"Secret {reference.namespace}/{reference.name}"
    if secret is None:
        raise kubeconfig_error(f"{place} is not there; create it with a kubeconfig under the key {KUBECONFIG_KEY}")
    data = value_at(secret, "data", KUBECONFIG_KEY)
    if data is None:
        raise kubeconfig_error(f"{place} has no key {KUBECONFIG_KEY}; put the kubeconfig there")
    try:
        return strict_access(base64.b64decode(data, validate=True), allow_loopback=allow_loopback)
    except (KubeconfigError, binascii.Error) as error:
        raise kubeconfig_error(f"{place}: {KUBECONFIG_KEY}: {error}") from error


def cached_secret(caches: "Iterable[Informer]", key: str) -> Object | None:
    """The Secret of that key, in whichever namespace's cache it is."""
    return next((found for each in caches if (found := each.store.get(key)) is not None), None)


def kubeconfig_error(message: str) -> BindingError:
    return BindingError("ConnectivityFailed", message, condition="Connected")


@dataclass(frozen=True)
class ConnectivityChecker:
    """Asks physical clusters, and does not ask again for a minute when nothing changed: passes come in flocks."""

    connect: Connect
    allow_loopback: bool = False
    _results: dict[str, tuple[object, float, ProbeResult]] = field(default_factory=dict)

    async def check(self, binding: str, secret: Object | None, spec: ClusterBindingSpec) -> ProbeResult:
        """What the cluster behind the kubeconfig in `secret` answers; raises a Fault where it cannot be asked."""
        mount_namespace = spec.mount_namespace or ""
        asked = mount_namespace, spec.allowed_volumes
        about = (uid_of(secret), version_of(secret), *asked) if secret is not None else None
        now = asyncio.get_running_loop().time()
        known = self._results.get(binding)
        if known is not None and known[0] == about and now - known[1] < PROBE_CACHE_SECONDS:
            return known[2]
        self.forget(binding)
        found = await probe_cluster(
            access_from_secret(secret, spec.secret_ref, allow_loopback=self.allow_loopback), *asked, self.connect
        )
        if not found.missing:
            self._results[binding] = (about, now, found)
        return found

    def forget(self, binding: str) -> None:
        self._results.pop(binding, None)


async def probe_cluster(access: Access, mount_namespace: str, allowed: AllowedVolumes, connect: Connect) -> ProbeResult:
    """Ask everything, once; a Fault that is tried again says that the cluster did not answer."""
    try:
        claims = claims_of(await access.credentials.headers())
        transport = connect(access)
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                return await probe_with_client(
                    Client(SmallResponseTransport(transport)), claims, mount_namespace, allowed
                )
        finally:
            await transport.close()
    except Unauthorized as error:
        message = f"{access.server} refuses the credentials: {error.message}; put a new kubeconfig into the Secret"
    except KubeError as error:
        message = str(error)
    except TimeoutError:
        message = f"{access.server} did not answer within {PROBE_TIMEOUT:g} s"
    raise BindingError("ConnectivityFailed", message, condition="Connected", retry=RetryPolicy.BACKOFF)


async def probe_with_client(
    client: Client, claims: Object, mount_namespace: str, allowed: AllowedVolumes
) -> ProbeResult:
    version = str((await client.server_version()).get("gitVersion", "of no version"))
    try:
        identity = uid_of(await client.get(NAMESPACES, IDENTITY_NAMESPACE))
    except Forbidden:
        identity = None
    try:
        found = await client.list(NAMESPACES, fields=f"metadata.name={mount_namespace}")
    except Forbidden:
        found = []
    needed = single_permissions(
        with_names(
            syncer_physical_permissions(allowed), {Placeholder.MOUNT_NAMESPACE: mount_namespace, **account_in(claims)}
        )
    )
    missing = await denied_rights(client, needed)
    if identity is None and not missing:
        raise KubeError(f"the server refuses to show namespace {IDENTITY_NAMESPACE}, and says that we may see it")
    return ProbeResult(version, identity, missing, expiry_in(claims), found[0] if found else None)


async def denied_rights(client: Client, rights: Iterable[Permission]) -> tuple[Permission, ...]:
    """Which of the rights we lack, in their order; one review each, a few at a time."""
    slots = asyncio.Semaphore(REVIEWS_AT_ONCE)

    async def may(right: Permission) -> bool:
        async with slots:
            review = await client.review(
                SELF_SUBJECT_ACCESS_REVIEWS, {"resourceAttributes": resource_attributes(right)}
            )
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


def account_in(claims: Object) -> dict[Placeholder, str]:
    """The service account whose token expires, for it has to be renewed by that account itself."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject.startswith(ACCOUNT_PREFIX) or expiry_in(claims) is None:
        return {}
    namespace, _, name = subject.removeprefix(ACCOUNT_PREFIX).partition(":")
    return {Placeholder.SYNCER_ACCOUNT_NAMESPACE: namespace, Placeholder.SYNCER_ACCOUNT: name}
