"""Probe of a physical cluster through a binding's kubeconfig: version, identity and permissions.

The probe takes at most half a minute and writes nothing there.
"""

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from tapestry.apis.clusterbindings import ClusterBindingSpec
from tapestry.apis.field_types import SecretReference
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
from tapestry.manager.validation import BindingError, RetryPolicy

if TYPE_CHECKING:
    from tapestry.controller import Informer

KUBECONFIG_KEY = "kubeconfig"
PROBE_TIMEOUT = 30.0
"""Timeout of the whole probe, in seconds."""
PROBE_CACHE_SECONDS = 60.0
"""Seconds for which a successful result is cached, as long as the Secret and the mount namespace do not change."""
MAX_CONCURRENT_REVIEWS = 8
ACCOUNT_PREFIX = "system:serviceaccount:"

Connect = Callable[[Access], Transport]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of probing a physical cluster."""

    version: str
    identity: str | None
    """UID of kube-system.  None if reading it is forbidden: then that permission is in `missing`."""
    missing: tuple[Permission, ...]
    expires: datetime | None
    """Expiry of the credentials, if known."""
    mount: Object | None = None
    """The mount namespace.  None if it does not exist, or if reading it is forbidden."""


def access_from_secret(secret: Object | None, reference: SecretReference, *, allow_loopback: bool) -> Access:
    """Return the access in a binding's Secret.  Raise a BindingError that waits for a change of the Secret."""
    place = f"Secret {reference.namespace}/{reference.name}"
    if secret is None:
        raise kubeconfig_error(f"{place} does not exist; create it with a kubeconfig under the key {KUBECONFIG_KEY}")
    data = value_at(secret, "data", KUBECONFIG_KEY)
    if data is None:
        raise kubeconfig_error(f"{place} has no key {KUBECONFIG_KEY}; put the kubeconfig there")
    try:
        return strict_access(base64.b64decode(data, validate=True), allow_loopback=allow_loopback)
    except (KubeconfigError, binascii.Error) as error:
        raise kubeconfig_error(f"{place}: {KUBECONFIG_KEY}: {error}") from error


def cached_secret(caches: "Iterable[Informer]", key: str) -> Object | None:
    """Return the Secret from the cache of its namespace."""
    return next((secret for informer in caches if (secret := informer.store.get(key)) is not None), None)


def kubeconfig_error(message: str) -> BindingError:
    return BindingError("ConnectivityFailed", message, condition="Connected")


@dataclass(frozen=True)
class ConnectivityChecker:
    """Probe physical clusters.  Successful results are cached for a minute, because reconciles come in bursts."""

    connect: Connect
    allow_loopback: bool = False
    _results: dict[str, tuple[object, float, ProbeResult]] = field(default_factory=dict)

    async def check(self, binding: str, secret: Object | None, spec: ClusterBindingSpec) -> ProbeResult:
        """Probe the cluster behind the kubeconfig in `secret`.  Raise BindingError if that fails."""
        mount_namespace = spec.mount_namespace or ""
        scope = mount_namespace, syncer_physical_permissions(spec.allowed_volumes)
        fingerprint = (uid_of(secret), version_of(secret), *scope) if secret is not None else None
        now = asyncio.get_running_loop().time()
        cached = self._results.get(binding)
        if cached is not None and cached[0] == fingerprint and now - cached[1] < PROBE_CACHE_SECONDS:
            return cached[2]
        self.forget(binding)
        result = await probe_cluster(
            access_from_secret(secret, spec.kubeconfig_secret, allow_loopback=self.allow_loopback), *scope, self.connect
        )
        if not result.missing:
            self._results[binding] = (fingerprint, now, result)
        return result

    def forget(self, binding: str) -> None:
        self._results.pop(binding, None)


async def probe_cluster(
    access: Access, mount_namespace: str, permissions: Iterable[Permission], connect: Connect
) -> ProbeResult:
    """Probe the cluster and check the permissions once.

    An unreachable cluster raises a BindingError that is retried with backoff.
    """
    try:
        claims = claims_of(await access.credentials.headers())
        transport = connect(access)
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                return await probe_with_client(
                    Client(SmallResponseTransport(transport)), claims, mount_namespace, permissions
                )
        finally:
            await transport.close()
    except Unauthorized as error:
        message = f"{access.server} rejects the credentials: {error.message}; put a new kubeconfig into the Secret"
    except KubeError as error:
        message = str(error)
    except TimeoutError:
        message = f"{access.server} did not respond within {PROBE_TIMEOUT:g} s"
    raise BindingError("ConnectivityFailed", message, condition="Connected", retry=RetryPolicy.BACKOFF)


async def probe_with_client(
    client: Client, claims: Object, mount_namespace: str, permissions: Iterable[Permission]
) -> ProbeResult:
    version = str((await client.server_version()).get("gitVersion", "unknown"))
    try:
        identity = uid_of(await client.get(NAMESPACES, IDENTITY_NAMESPACE))
    except Forbidden:
        identity = None
    try:
        namespaces = await client.list(NAMESPACES, fields=f"metadata.name={mount_namespace}")
    except Forbidden:
        namespaces = []
    needed = single_permissions(
        with_names(permissions, {Placeholder.MOUNT_NAMESPACE: mount_namespace, **account_in(claims)})
    )
    missing = await denied_permissions(client, needed)
    if identity is None and not missing:
        raise KubeError(f"the server denies reading namespace {IDENTITY_NAMESPACE}, but its access review allows it")
    return ProbeResult(version, identity, missing, expiry_in(claims), namespaces[0] if namespaces else None)


async def denied_permissions(client: Client, permissions: Iterable[Permission]) -> tuple[Permission, ...]:
    """Return the permissions that are denied, in order.  Each takes one review, with a few in parallel."""
    slots = asyncio.Semaphore(MAX_CONCURRENT_REVIEWS)

    async def is_allowed(permission: Permission) -> bool:
        async with slots:
            review = await client.review(
                SELF_SUBJECT_ACCESS_REVIEWS, {"resourceAttributes": resource_attributes(permission)}
            )
        return bool(value_at(review, "status", "allowed", default=False))

    try:
        async with asyncio.TaskGroup() as group:
            reviews = [(permission, group.create_task(is_allowed(permission))) for permission in permissions]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return tuple(permission for permission, allowed in reviews if not allowed.result())


# Claims of a token are not verified here.  They only determine when to warn and which permission to check.


def claims_of(headers: Iterable[tuple[str, str]]) -> Object:
    """Return the claims of a JSON Web Token in `headers`, or an empty object."""
    token = next((text.removeprefix("Bearer ") for name, text in headers if name == "Authorization"), "")
    header, _, rest = token.partition(".")
    payload = rest.partition(".")[0]
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, RecursionError):
        return {}
    return claims if header and isinstance(claims, dict) else {}


def expiry_in(claims: Object) -> datetime | None:
    seconds = claims.get("exp")
    try:
        return datetime.fromtimestamp(seconds, UTC) if isinstance(seconds, int | float) else None
    except (ValueError, OverflowError, OSError):
        return None


def account_in(claims: Object) -> dict[Placeholder, str]:
    """Return the service account of an expiring token: the account must be able to renew it."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject.startswith(ACCOUNT_PREFIX) or expiry_in(claims) is None:
        return {}
    namespace, _, name = subject.removeprefix(ACCOUNT_PREFIX).partition(":")
    return {Placeholder.SYNCER_ACCOUNT_NAMESPACE: namespace, Placeholder.SYNCER_ACCOUNT: name}
