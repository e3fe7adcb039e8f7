"""Reconciler that renews the service account token in a binding's kubeconfig.

`tapestry join` creates a kubeconfig with a service account token that is valid for thirty days. The syncer reads the
account and the expiry from the token. After 80% of its lifetime it requests a new token from the physical cluster and
writes it to the same Secret, from which every replica reads it like any new one.
"""

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import yaml

from tapestry.controller import ObjectCache, Result
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import SECRETS
from tapestry.process.logs import logger
from tapestry.syncer.bindings import kubeconfig_secret
from tapestry.syncer.clients import Clients
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.identity import Identity

log = logger(__name__)

RENEWAL_FRACTION = 0.8
"""Fraction of a token's lifetime after which it is renewed."""


class ServiceAccount(msgspec.Struct):
    name: str


class Kubernetes(msgspec.Struct):
    namespace: str
    serviceaccount: ServiceAccount


class TokenClaims(msgspec.Struct):
    """Claims of a bound service account token; only the server verifies them."""

    exp: float
    iat: float
    kubernetes: Kubernetes = msgspec.field(name="kubernetes.io")

    @property
    def ends(self) -> datetime:
        return datetime.fromtimestamp(self.exp, UTC)

    @property
    def renewal(self) -> datetime:
        return datetime.fromtimestamp(self.iat + (self.exp - self.iat) * RENEWAL_FRACTION, UTC)


@dataclass(frozen=True)
class CredentialsReconciler:
    """Keep the token of the binding's kubeconfig valid; keyed by the binding's name."""

    identity: Identity
    current_binding: CurrentBinding
    clients: Clients
    secrets: ObjectCache
    config: SyncerConfig
    now: Callable[[], datetime]

    async def reconcile(self, _: str) -> Result | None:
        now = self.now()
        binding = self.current_binding.get()
        if binding is None or self.current_binding.is_unbinding:
            return None
        secret = kubeconfig_secret(self.secrets, binding, self.config)
        kubeconfig = parse_kubeconfig(secret)
        token = parse_token(kubeconfig)
        if token is None:
            return None
        if now < token.renewal:
            return Result(requeue_at=token.renewal)
        await self.renew(secret, kubeconfig, token)
        return Result(requeue_after=60)  # the Secret should have the new token by then

    async def renew(self, secret: Object, kubeconfig: Object, token: TokenClaims) -> None:
        account = token.kubernetes
        issued = await self.clients.physical.request_token(
            account.serviceaccount.name, account.namespace, seconds=int(token.exp - token.iat)
        )
        renewed = with_token(kubeconfig, issued["token"])
        data = {"kubeconfig": base64.b64encode(yaml.safe_dump(renewed).encode()).decode()}
        await self.clients.virtual.patch(SECRETS, secret, {"data": data})
        log.info("kubeconfig token renewed", binding=self.identity.binding_name, until=issued["expirationTimestamp"])


def parse_kubeconfig(secret: Object) -> Object:
    """Return the kubeconfig of a Secret; empty if it cannot be parsed. The strict parser has already accepted it."""
    try:
        data = yaml.load(base64.b64decode(value_at(secret, "data", "kubeconfig", default="")), Loader=yaml.CSafeLoader)
    except (binascii.Error, yaml.YAMLError):
        return {}
    return data if isinstance(data, dict) else {}


def parse_token(kubeconfig: Object) -> TokenClaims | None:
    """Return the claims of the kubeconfig's only token; None for other credentials."""
    users = kubeconfig.get("users") or []
    text = str(value_at(users[0], "user", "token", default="")) if len(users) == 1 else ""
    parts = text.split(".")
    if len(parts) != 3:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)), type=TokenClaims)
    except (msgspec.DecodeError, binascii.Error, ValueError):
        return None


def with_token(kubeconfig: Object, token: str) -> Object:
    [user] = kubeconfig["users"]
    return {**kubeconfig, "users": [{**user, "user": {**user["user"], "token": token}}]}
