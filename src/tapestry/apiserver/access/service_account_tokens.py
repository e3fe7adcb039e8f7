"""Tokens of service accounts: signed by this server, bound to what they are for, known again when they come back.

A token says who it is for and until when.  It is good as long as the account, and the pod or Secret or Node that it is
bound to, are the ones that it was made for: a token of a deleted pod is worth nothing, whatever its date says.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec

from tapestry.apiserver.access.authentication import Credentials
from tapestry.apiserver.access.token_keys import TokenKeys
from tapestry.apiserver.requests import User
from tapestry.apiserver.storage.store import Store
from tapestry.kube.objects import EMPTY_MAPPING, Object, is_deleting, name_of, uid_of, value_at

SERVICE_ACCOUNTS_GROUP = "system:serviceaccounts"
MIN_TOKEN_SECONDS, MAX_TOKEN_SECONDS = 600, 2**32
"""Seconds that a TokenRequest may ask for."""
BOUND_OBJECT_RESOURCES = {"Pod": "pods", "Secret": "secrets", "Node": "nodes"}


@dataclass(frozen=True)
class ServiceAccountTokens:
    """Makes tokens, and knows them again."""

    store: Store
    keys: TokenKeys
    issuer: str
    now: Callable[[], datetime]
    configured_audiences: tuple[str, ...] = ()
    """What this server is called by those who make tokens for it; the issuer unless given."""

    @property
    def audiences(self) -> tuple[str, ...]:
        return self.configured_audiences or (self.issuer,)

    def __call__(self, credentials: Credentials) -> User | None:
        """A way to authenticate; for audiences that name this server."""
        return (
            self.user_for_token(credentials.bearer_token, self.audiences)
            if credentials.bearer_token.count(".") == 2
            else None
        )

    def user_for_token(self, token: str, audiences: Sequence[str]) -> User | None:
        """Whose token it is, if it is good here and now for one of the audiences."""
        claims = self.keys.verified_claims(token)
        if claims is None or claims.get("iss") != self.issuer or not set(audiences) & set(claims.get("aud", ())):
            return None
        if not claims.get("nbf", 0) <= self.now().timestamp() < claims.get("exp", 0):
            return None
        about = claims.get("kubernetes.io", {})
        namespace = about.get("namespace", "")
        account = about.get("serviceaccount", {})
        if not self.is_current("serviceaccounts", namespace, account):
            return None
        for kind, resource in BOUND_OBJECT_RESOURCES.items():
            bound = about.get(kind.lower())
            if kind == "Node" and "pod" in about:
                continue  # where the pod runs, for whoever wants to know; it is the pod that counts
            if bound and not self.is_current(resource, "" if kind == "Node" else namespace, bound):
                return None
        return service_account_user(namespace, account, about.get("pod"), claims.get("jti"))

    def is_current(self, resource: str, namespace: str, reference: Object) -> bool:
        version = self.store.get(resource, namespace, reference.get("name", ""))
        if version is None:
            return False
        found: Any = msgspec.json.decode(version.raw)
        return uid_of(found) == reference.get("uid") and not (resource == "serviceaccounts" and is_deleting(found))

    def issue_token(self, account: Object, spec: Object, bound: Object | None) -> Object:
        """The status of a TokenRequest for `account`; its expirationSeconds are within the bounds."""
        now = self.now().astimezone(UTC).replace(microsecond=0)
        expires = now + timedelta(seconds=spec.get("expirationSeconds") or 3600)
        namespace = account["metadata"]["namespace"]
        about: Object = {"namespace": namespace, "serviceaccount": object_claims(account)}
        if bound is not None:
            about[bound["kind"].lower()] = object_claims(bound)
            if node := value_at(bound, "spec", "nodeName"):
                about["node"] = {"name": node}
        claims = {
            "iss": self.issuer,
            "aud": list(spec.get("audiences") or self.audiences),
            "sub": f"system:serviceaccount:{namespace}:{name_of(account)}",
            "iat": int(now.timestamp()),
            "nbf": int(now.timestamp()),
            "exp": int(expires.timestamp()),
            "jti": str(uuid4()),
            "kubernetes.io": about,
        }
        return {"token": self.keys.sign(claims), "expirationTimestamp": expires.strftime("%Y-%m-%dT%H:%M:%SZ")}


def service_account_user(namespace: str, account: Object, pod: Object | None, credential: str | None) -> User:
    extra: dict[str, tuple[str, ...]] = {}
    if pod:
        extra["authentication.kubernetes.io/pod-name"] = (pod["name"],)
        extra["authentication.kubernetes.io/pod-uid"] = (pod["uid"],)
    if credential:
        extra["authentication.kubernetes.io/credential-id"] = (f"JTI={credential}",)
    name = f"system:serviceaccount:{namespace}:{account['name']}"
    return User(
        name,
        (SERVICE_ACCOUNTS_GROUP, f"{SERVICE_ACCOUNTS_GROUP}:{namespace}"),
        account.get("uid", ""),
        extra or EMPTY_MAPPING,
    )


def object_claims(obj: Object) -> Object:
    return {"name": name_of(obj), "uid": uid_of(obj)}
