"""Service account tokens: a pod on a leased node calls its own API server, as the account that it has there.

A token is minted by the virtual API server, for the audience that the pod asks for, and bound to the pod: it is worth
nothing once the pod is gone.  All tokens of a pod are in one Secret below, which its twin mounts where the pod would
have the tokens.  They are replaced in time, all at once, and when that is, is noted on the Secret: whoever takes over
mints nothing before.
"""

from dataclasses import dataclass, field
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import tokens_secret_name
from tapestry.controller import Informer, Result
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import AlreadyExists, ApiError, BadRequest, Conflict, Forbidden, Invalid, NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, namespace_of, uid_of
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import PODS, SECRETS, SERVICE_ACCOUNTS
from tapestry.kube.times import parse_time
from tapestry.process.logs import logger
from tapestry.syncer.context import CACHE_LAG_SECONDS, SyncContext
from tapestry.syncer.topdown.dependencies import DependencyNotReady
from tapestry.syncer.translate.copies import (
    MIN_TOKEN_AGE,
    redacted_errors,
    secret_renewal,
    token_renewal,
    tokens_secret,
)
from tapestry.syncer.translate.metadata import virtual_uid
from tapestry.syncer.translate.references import projected_tokens

log = logger(__name__)

RETRY_SECONDS = 30.0
"""After how long a token that could not be had is asked for again."""


@dataclass(frozen=True)
class TokenReconciler:
    """Keeps one Secret below for each pod that mounts tokens; keyed by the virtual pod."""

    context: SyncContext
    secrets: Informer
    """What is ours below, as `seen`."""
    minted_at: dict[str, datetime] = field(default_factory=dict)
    """When a pod last got tokens; whatever becomes of them below, that is not too often."""

    async def ensure(self, pod: Object, binding: Binding) -> None:
        if projected_tokens(pod["spec"]) and not self.has_valid_tokens(pod):
            await self.issue_tokens(pod, binding)

    async def reconcile(self, key: str) -> Result | None:
        context = self.context
        binding, pod, held = context.binding(), context.virtual_pods.store.get(key), self.token_secret(key)
        if binding is None or not self.secrets.synced.is_set():
            return None
        if pod is None or is_pod_terminal(pod):
            self.minted_at.pop(key, None)
        if held is not None and (pod is None or is_pod_terminal(pod) or virtual_uid(held) != uid_of(pod)):
            return await self.remove_stale_secret(key, held)
        if pod is None or is_pod_terminal(pod) or not projected_tokens(pod["spec"]) or not self.is_accepted(pod):
            return None
        if (due := self.due(pod, held)) > context.now():
            return Result(requeue_at=due)
        if context.partition.since is not None:
            return None  # a token that cannot be delivered is not minted; everything is looked at when it heals
        try:
            await self.issue_tokens(pod, binding)
        except DependencyNotReady as wait:
            log.warning("no tokens", reason=wait.reason, error=str(wait))
            return Result(requeue_after=RETRY_SECONDS)
        return None  # it comes by the watch

    def token_secret(self, key: str) -> Object | None:
        """The Secret with the tokens of a pod, as `seen`; the selector of its informer shows only what is ours."""
        namespace, name = key.split("/")
        context = self.context
        below = tokens_secret_name(context.virtual_cluster, context.binding_uid, namespace, name)
        return self.secrets.store.get(f"{context.mount_namespace}/{below}")

    def has_valid_tokens(self, pod: Object) -> bool:
        """Whether the pod has tokens that are good for some time yet."""
        held, now = self.token_secret(key_of(pod)), self.context.now()
        return held is not None and belongs_to_pod(held, pod) and secret_renewal(held, now) > now

    def due(self, pod: Object, held: Object | None) -> datetime:
        """When the pod has to get tokens, or others."""
        now = self.context.now()
        renewal = secret_renewal(held, now) if held is not None and belongs_to_pod(held, pod) else now
        minted_at = self.minted_at.get(key_of(pod))
        return max(renewal, minted_at + MIN_TOKEN_AGE) if minted_at is not None else renewal

    def is_accepted(self, pod: Object) -> bool:
        """Whether the pod is one of ours that has a twin, or waits for what it lacks to get one."""
        is_ours = pod["spec"]["nodeName"] in self.context.virtual_nodes.store
        return is_ours and find_condition(pod["status"]["conditions"], keys.MAPPED_CONDITION) is not None

    # -- making

    async def issue_tokens(self, pod: Object, binding: Binding) -> None:
        """Mint the pod's tokens and put them where its twin finds them."""
        wanted = await self.minted_secret(pod, binding)
        self.minted_at[key_of(pod)] = self.context.now()
        held = self.token_secret(key_of(pod))
        with redacted_errors(wanted):
            if held is not None and belongs_to_pod(held, pod):
                renewed = {"data": wanted["data"], "metadata": {"annotations": wanted["metadata"]["annotations"]}}
                await self.context.physical_client.patch(SECRETS, held, renewed)
                return
            try:
                await self.context.physical_client.create(SECRETS, wanted)
            except AlreadyExists:
                await self.resolve_name_conflict(pod, wanted, binding)

    async def minted_secret(self, pod: Object, binding: Binding) -> Object:
        """The Secret to have; nobody else holds these tokens."""
        now, account = self.context.now(), pod["spec"].get("serviceAccountName") or "default"
        found, renewals = {}, []
        for token in projected_tokens(pod["spec"]):
            audiences = [token.audience] if token.audience else []
            try:
                issued = await self.context.virtual_client.request_token(
                    account, namespace_of(pod) or "", audiences=audiences, seconds=token.seconds, bound_to=pod
                )
            except (BadRequest, Forbidden, Invalid, NotFound) as error:
                raise token_error(error, pod, account) from error
            found[token.key] = issued["token"]
            renewals.append(token_renewal(now, parse_time(issued["expirationTimestamp"])))
        return tokens_secret(pod, binding, found, min(renewals))

    async def resolve_name_conflict(self, pod: Object, wanted: Object, binding: Binding) -> None:
        """The name is taken: by this pod's Secret that the cache has yet to see, by a namesake's, or by a stranger."""
        live = await self.context.physical_client.find(SECRETS, name_of(wanted), namespace_of(wanted))
        if live is None:
            raise Conflict(409, "Conflict", f"the tokens of {key_of(pod)} have just been deleted")
        if not binding.owns(live):
            message = f"secrets {key_of(live)} below is not ours; delete it there and the pod can run"
            raise DependencyNotReady("NameTaken", message)
        if not belongs_to_pod(live, pod):
            await self.delete(live)
            raise Conflict(409, "Conflict", f"the tokens of an earlier {key_of(pod)} have just been deleted")

    # -- ending

    async def remove_stale_secret(self, key: str, held: Object) -> Result | None:
        """Delete tokens whose pod is gone or has ended, as a live read confirms."""
        live = await self.context.live_pod(key)
        if live is not None and uid_of(live) == virtual_uid(held) and not is_pod_terminal(live):
            return Result(requeue_after=CACHE_LAG_SECONDS)
        await self.delete(held)
        return None

    async def delete(self, secret: Object) -> None:
        """Delete a Secret that is provably ours, and no other."""
        if is_deleting(secret):
            return
        await self.context.physical_client.delete_if_exists(SECRETS, secret)


def belongs_to_pod(secret: Object, pod: Object) -> bool:
    """Whether a Secret with tokens is of that very pod, and there to stay."""
    return virtual_uid(secret) == uid_of(pod) and not is_deleting(secret)


def token_error(error: ApiError, pod: Object, account: str) -> Exception:
    """What it means for a pod that the virtual API server gives it no token."""
    if not isinstance(error, NotFound):
        return DependencyNotReady("TokenRefused", error.message)
    if error.details.get("kind") == PODS.plural:
        return Conflict(409, "Conflict", f"{key_of(pod)} has just been deleted")
    return DependencyNotReady(
        "ServiceAccountMissing", f"{SERVICE_ACCOUNTS.plural} {namespace_of(pod)}/{account} does not exist"
    )
