"""Reconciler of the service account tokens with which pods on leased nodes call their own API server.

The virtual API server issues a token for the audience that the pod requests, bound to the pod: it is invalid once the
pod is deleted. All tokens of a pod are in one physical Secret, which its twin mounts at the paths of the tokens. They
are renewed in time, all at once. The time of renewal is recorded on the Secret, so a new leader issues no tokens
before.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import tokens_secret_name
from tapestry.controller import ObjectCache, Result
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import AlreadyExists, ApiError, BadRequest, Conflict, Forbidden, Invalid, NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, namespace_of, uid_of
from tapestry.kube.pod_references import projected_tokens
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import PODS, SECRETS, SERVICE_ACCOUNTS
from tapestry.kube.times import parse_time
from tapestry.process.logs import logger
from tapestry.syncer.caches import CACHE_LAG_SECONDS, Caches
from tapestry.syncer.clients import Clients
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.identity import Identity
from tapestry.syncer.partition import Partition
from tapestry.syncer.topdown.dependencies import DependencyNotReady, NotGranted
from tapestry.syncer.translate.copies import (
    MIN_TOKEN_AGE,
    redacted_errors,
    secret_renewal,
    token_renewal,
    tokens_secret,
)
from tapestry.syncer.translate.metadata import virtual_uid
from tapestry.syncer.views import VirtualPod

log = logger(__name__)

RETRY_SECONDS = 30.0
"""Seconds before a failed token request is repeated."""


@dataclass(frozen=True)
class TokenReconciler:
    """Keep one physical Secret for each pod that mounts tokens; keyed by the virtual pod."""

    identity: Identity
    current_binding: CurrentBinding
    caches: Caches
    clients: Clients
    partition: Partition
    now: Callable[[], datetime]
    secrets: ObjectCache
    """Our physical Secrets as digest views."""
    minted_at: dict[str, datetime] = field(default_factory=dict)
    """Time at which each pod last got tokens, which limits the rate whatever happens to the Secret."""

    async def ensure(self, pod: VirtualPod, binding: Binding) -> None:
        if projected_tokens(pod.object["spec"]) and not self.has_valid_tokens(pod.object):
            await self.issue_tokens(pod.object, binding)

    async def reconcile(self, key: str) -> Result | None:
        binding, cached, secret = (
            self.current_binding.get(),
            self.caches.virtual_pods.store.get(key),
            self.token_secret(key),
        )
        pod = cached.object if cached is not None else None
        if binding is None or not self.secrets.synced.is_set():
            return None
        if pod is None or is_pod_terminal(pod):
            self.minted_at.pop(key, None)
        if secret is not None and (pod is None or is_pod_terminal(pod) or virtual_uid(secret) != uid_of(pod)):
            return await self.remove_stale_secret(key, secret)
        if pod is None or is_pod_terminal(pod) or not projected_tokens(pod["spec"]) or not self.is_accepted(pod):
            return None
        if (due := self.due(pod, secret)) > self.now():
            return Result(requeue_at=due)
        if self.partition.since is not None:
            return None  # a token that cannot be delivered is not issued; all pods are requeued after the partition
        try:
            await self.issue_tokens(pod, binding)
        except DependencyNotReady as wait:
            log.warning("service account tokens not issued", pod=key, reason=wait.reason, error=str(wait))
            return Result(requeue_after=RETRY_SECONDS)
        return None  # the watch will requeue the pod

    def token_secret(self, key: str) -> Object | None:
        """Return the token Secret of a pod as a digest view. The informer selects only our objects."""
        namespace, name = key.split("/")
        secret_name = tokens_secret_name(self.identity.virtual_cluster, self.identity.binding_uid, namespace, name)
        return self.secrets.store.get(f"{self.identity.mount_namespace}/{secret_name}")

    def has_valid_tokens(self, pod: Object) -> bool:
        """Return whether the tokens of the pod are valid and need no renewal yet."""
        secret, now = self.token_secret(key_of(pod)), self.now()
        return secret is not None and belongs_to_pod(secret, pod) and secret_renewal(secret, now) > now

    def due(self, pod: Object, secret: Object | None) -> datetime:
        """Return when the pod needs its first or new tokens."""
        now = self.now()
        renewal = secret_renewal(secret, now) if secret is not None and belongs_to_pod(secret, pod) else now
        minted_at = self.minted_at.get(key_of(pod))
        return max(renewal, minted_at + MIN_TOKEN_AGE) if minted_at is not None else renewal

    def is_accepted(self, pod: Object) -> bool:
        """Return whether the pod is on our nodes and has a twin or waits for its dependencies."""
        return (
            self.caches.is_our_pod(pod)
            and find_condition(pod["status"]["conditions"], keys.MAPPED_CONDITION) is not None
        )

    # -- issuing

    async def issue_tokens(self, pod: Object, binding: Binding) -> None:
        """Issue the pod's tokens and write them to the Secret that its twin mounts."""
        desired = await self.minted_secret(pod, binding)
        self.minted_at[key_of(pod)] = self.now()
        existing = self.token_secret(key_of(pod))
        with redacted_errors(desired):
            if existing is not None and belongs_to_pod(existing, pod):
                renewed = {"data": desired["data"], "metadata": {"annotations": desired["metadata"]["annotations"]}}
                await self.clients.physical.patch(SECRETS, existing, renewed)
                return
            try:
                await self.clients.physical.create(SECRETS, desired)
            except AlreadyExists:
                await self.resolve_name_conflict(pod, desired, binding)

    async def minted_secret(self, pod: Object, binding: Binding) -> Object:
        """Return the desired Secret with newly issued tokens."""
        now, account = self.now(), pod["spec"].get("serviceAccountName") or "default"
        tokens, renewals = {}, []
        for token in projected_tokens(pod["spec"]):
            audiences = [token.audience] if token.audience else []
            try:
                issued = await self.clients.virtual.request_token(
                    account, namespace_of(pod) or "", audiences=audiences, seconds=token.seconds, bound_to=pod
                )
            except (BadRequest, Forbidden, Invalid, NotFound) as error:
                raise token_error(error, pod, account) from error
            tokens[token.key] = issued["token"]
            renewals.append(token_renewal(now, parse_time(issued["expirationTimestamp"])))
        return tokens_secret(pod, binding, tokens, min(renewals))

    async def resolve_name_conflict(self, pod: Object, desired: Object, binding: Binding) -> None:
        """Handle a taken name: the cache lags, an earlier pod's Secret has it, or a foreign object."""
        live = await self.clients.physical.find(SECRETS, name_of(desired), namespace_of(desired))
        if live is None:
            raise Conflict(409, "Conflict", f"the tokens of {key_of(pod)} have just been deleted")
        if not binding.owns(live):
            message = f"secrets {key_of(live)} in the physical cluster is not ours; delete it there and the pod can run"
            raise DependencyNotReady("NameTaken", message)
        if not belongs_to_pod(live, pod):
            await self.delete(live)
            raise Conflict(409, "Conflict", f"the tokens of an earlier {key_of(pod)} have just been deleted")

    # -- deleting

    async def remove_stale_secret(self, key: str, secret: Object) -> Result | None:
        """Delete the Secret of a deleted or terminated pod after a live read confirms that."""
        live = await self.clients.live_pod(key)
        if live is not None and uid_of(live) == virtual_uid(secret) and not is_pod_terminal(live):
            return Result(requeue_after=CACHE_LAG_SECONDS)
        await self.delete(secret)
        return None

    async def delete(self, secret: Object) -> None:
        """Delete a Secret that is provably ours."""
        if is_deleting(secret):
            return
        await self.clients.physical.delete_if_exists(SECRETS, secret)


def belongs_to_pod(secret: Object, pod: Object) -> bool:
    """Return whether a token Secret belongs to that very pod and is not being deleted."""
    return virtual_uid(secret) == uid_of(pod) and not is_deleting(secret)


def token_error(error: ApiError, pod: Object, account: str) -> Exception:
    """Return the exception for a token request that the virtual API server rejected."""
    if isinstance(error, Forbidden):
        return NotGranted(error.message, "TokenRefused")
    if not isinstance(error, NotFound):
        return DependencyNotReady("TokenRefused", error.message)
    if error.details.get("kind") == PODS.plural:
        return Conflict(409, "Conflict", f"{key_of(pod)} has just been deleted")
    return DependencyNotReady(
        "ServiceAccountMissing", f"{SERVICE_ACCOUNTS.plural} {namespace_of(pod)}/{account} does not exist"
    )
