"""Credentials of syncers that run in another cluster than the virtual one.

The manager issues a token of the account of each binding in the virtual cluster, and writes it with a kubeconfig to a
Secret of that binding in the cluster that syncers run in.  The kubeconfig refers to the token as a file, which a syncer
reads again when it changes.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from tapestry.apis import keys
from tapestry.apis.names import syncer_name
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.kube.errors import BadRequest, Forbidden, Invalid
from tapestry.kube.objects import Object, annotations_of, labels_of, object_named, uid_of
from tapestry.kube.resources import SECRETS, SERVICE_ACCOUNTS
from tapestry.kube.times import parse_time, timestamp
from tapestry.manager.validation import BindingError, RetryPolicy

TOKEN_LIFETIME = timedelta(days=1)
RENEWAL_AGE = TOKEN_LIFETIME / 2
"""Age at which a token is renewed.  The kubelet updates mounted Secrets within minutes."""


@dataclass(frozen=True)
class SyncerCredentials:
    """Keep the Secret of each binding in the cluster that syncers run in."""

    virtual: Client
    management: Client
    access: Access
    """The manager's own access to the virtual cluster, of which only the address is used."""
    namespace: str
    now: Callable[[], datetime]

    async def ensure(self, binding: Object, cluster_id: str) -> None:
        """Create the Secret, or renew it in time.  Raise BindingError if that is not possible."""
        name = syncer_name(cluster_id)
        try:
            account = await self.virtual.get(SERVICE_ACCOUNTS, name, self.namespace)
            current = await self.management.find(SECRETS, name, self.namespace)
            if current is not None and labels_of(current).get(keys.CLUSTER_BINDING_UID) != uid_of(binding):
                problem = f"Secret {self.namespace}/{name} does not belong to this binding"
                raise credentials_error(f"{problem}; delete it, or recreate the binding with another clusterID")
            if current is not None and not self.is_due(current, account):
                return
            issued = await self.virtual.request_token(name, self.namespace, seconds=int(TOKEN_LIFETIME.total_seconds()))
            desired = self.secret(name, binding, account, issued["token"])
            if current is None:
                await self.management.create(SECRETS, desired)
            else:
                await self.management.patch(SECRETS, current, desired)
        except (Forbidden, Invalid, BadRequest) as error:  # never quotes the token: that is only in the body
            raise credentials_error(str(error)) from error

    def is_due(self, secret: Object, account: Object) -> bool:
        """Return whether a token is due for renewal, or belongs to an earlier account of the name."""
        annotations = annotations_of(secret)
        if annotations.get(keys.VIRTUAL_UID) != uid_of(account):
            return True
        try:
            renewal = parse_time(annotations.get(keys.TOKENS_RENEWAL, ""))
        except ValueError:
            return True
        is_complete = (secret.get("data") or {}).get("kubeconfig") == encoded(self.kubeconfig())
        return self.now() >= renewal or not is_complete

    def secret(self, name: str, binding: Object, account: Object, token: str) -> Object:
        annotations = {
            keys.VIRTUAL_UID: uid_of(account),
            keys.TOKENS_RENEWAL: timestamp(self.now() + RENEWAL_AGE),
        }
        labels = {keys.MANAGED_BY: keys.TAPESTRY, keys.CLUSTER_BINDING_UID: uid_of(binding)}
        metadata = {**object_named(name, self.namespace)["metadata"], "labels": labels, "annotations": annotations}
        data = {"kubeconfig": encoded(self.kubeconfig()), "token": encoded(token.encode())}
        return {"apiVersion": "v1", "kind": SECRETS.kind, "metadata": metadata, "data": data}

    def kubeconfig(self) -> bytes:
        verification, cluster = self.access.verification, {"server": self.access.server}
        if verification.authority is not None:
            cluster["certificate-authority-data"] = encoded(verification.authority.read())
        if self.access.tls_server_name:
            cluster["tls-server-name"] = self.access.tls_server_name
        return msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "virtual",
                "clusters": [{"name": "virtual", "cluster": cluster}],
                "users": [{"name": "syncer", "user": {"tokenFile": "token"}}],
                "contexts": [{"name": "virtual", "context": {"cluster": "virtual", "user": "syncer"}}],
            }
        )

    async def remove(self, binding: Object) -> None:
        """Delete the Secret of a deleted binding."""
        labels = f"{keys.MANAGED_BY}={keys.TAPESTRY},{keys.CLUSTER_BINDING_UID}={uid_of(binding)}"
        for obj in await self.management.list(SECRETS, self.namespace, labels=labels):
            await self.management.delete_if_exists(SECRETS, obj)


def credentials_error(message: str) -> BindingError:
    return BindingError("SyncerFailed", message, condition="SyncerReady", retry=RetryPolicy.ON_RECHECK)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
