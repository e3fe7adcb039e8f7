"""The credentials in the kubeconfig: new ones in time.

`tapestry join` makes a kubeconfig around a service account token of thirty days.  A syncer reads from such a token
whose it is and when it ends, and at four fifths of its life asks the physical cluster for the next one, which goes into
the same Secret and from there, as any new kubeconfig does, to every replica.  Other credentials are not ours to renew.
"""

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import yaml

from tapestry.controller import Result
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import SECRETS
from tapestry.process.logs import logger
from tapestry.syncer.bindings import kubeconfig_secret
from tapestry.syncer.context import SyncContext

log = logger(__name__)

RENEWAL_FRACTION = 0.8
"""Of a token's life."""


class ServiceAccount(msgspec.Struct):
    name: str


class Kubernetes(msgspec.Struct):
    namespace: str
    serviceaccount: ServiceAccount


class TokenClaims(msgspec.Struct):
    """What a bound service account token says of itself; nothing here trusts it, the server has to."""

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
    """Keeps the kubeconfig of the site's binding usable; keyed by the binding's name."""

    context: SyncContext

    async def reconcile(self, _: str) -> Result | None:
        context, now = self.context, self.context.now()
        binding = context.binding()
        if binding is None or context.is_unbinding:
            return None
        secret = kubeconfig_secret(context, binding)
        kubeconfig = parse_kubeconfig(secret)
        token = parse_token(kubeconfig)
        if token is None:
            return None
        if now < token.renewal:
            return Result(requeue_at=token.renewal)
        await self.renew(secret, kubeconfig, token)
        return Result(requeue_after=60)  # where the new one is, if all went well

    async def renew(self, secret: Object, kubeconfig: Object, token: TokenClaims) -> None:
        account = token.kubernetes
        issued = await self.context.physical_client.request_token(
            account.serviceaccount.name, account.namespace, seconds=int(token.exp - token.iat)
        )
        renewed = with_token(kubeconfig, issued["token"])
        data = {"kubeconfig": base64.b64encode(yaml.safe_dump(renewed).encode()).decode()}
        await self.context.virtual_client.patch(SECRETS, secret, {"data": data})
        log.info("renewed the credentials", binding=self.context.binding_name, until=issued["expirationTimestamp"])


def parse_kubeconfig(secret: Object) -> Object:
    """The kubeconfig of a Secret that has been used already: strict mode has read it before us."""
    try:
        found = yaml.load(base64.b64decode(value_at(secret, "data", "kubeconfig", default="")), Loader=yaml.CSafeLoader)
    except (binascii.Error, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def parse_token(kubeconfig: Object) -> TokenClaims | None:
    """What the kubeconfig's only token says of itself; None for other credentials."""
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
