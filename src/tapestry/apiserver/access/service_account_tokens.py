"""Service account tokens: signing of TokenRequests and authentication.

A token is valid until it expires, and only while its account and the Pod, Secret or Node that it is bound to exist
with the same UID.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec

from tapestry.apiserver.access.authentication import Credentials
from tapestry.apiserver.access.token_keys import TokenKeys
from tapestry.apiserver.core.requests import User
from tapestry.apiserver.core.store import Store
from tapestry.kube.objects import EMPTY_MAPPING, Object, is_deleting, name_of, uid_of, value_at

SERVICE_ACCOUNTS_GROUP = "system:serviceaccounts"
MIN_TOKEN_SECONDS, MAX_TOKEN_SECONDS = 600, 2**32
"""Range of expirationSeconds in a TokenRequest."""
BOUND_OBJECT_RESOURCES = {"Pod": "pods", "Secret": "secrets", "Node": "nodes"}


@dataclass(frozen=True)
class ServiceAccountTokens:
    """Issue and authenticate service account tokens."""

    store: Store
    load_keys: Callable[[], TokenKeys]
    """Return the keys, which may change."""
    issuer: str
    now: Callable[[], datetime]
    configured_audiences: tuple[str, ...] = ()
    """Audiences that this server accepts; the issuer by default."""

    @property
    def audiences(self) -> tuple[str, ...]:
        return self.configured_audiences or (self.issuer,)

    def keys(self) -> TokenKeys:
        """Return the keys that are trusted now."""
        keys = self.load_keys()
        keys.drop_retired(self.now())
        return keys

    def __call__(self, credentials: Credentials) -> User | None:
        """Authenticate a token whose audiences include this server."""
        return (
            self.user_for_token(credentials.bearer_token, self.audiences)
            if credentials.bearer_token.count(".") == 2
            else None
        )

    def user_for_token(self, token: str, audiences: Sequence[str]) -> User | None:
        """Return the user of a token, if it is valid now for one of the audiences."""
        claims = current_claims(self.keys(), token, self.issuer, audiences, self.now())
        if claims is None:
            return None
        private_claims = claims.get("kubernetes.io", {})
        namespace = private_claims.get("namespace", "")
        account = private_claims.get("serviceaccount", {})
        if not self.is_current("serviceaccounts", namespace, account):
            return None
        for kind, resource in BOUND_OBJECT_RESOURCES.items():
            bound = private_claims.get(kind.lower())
            if kind == "Node" and "pod" in private_claims:
                continue  # informational: validity depends on the pod
            if bound and not self.is_current(resource, "" if kind == "Node" else namespace, bound):
                return None
        return service_account_user(namespace, account, private_claims.get("pod"), claims.get("jti"))

    def is_current(self, resource: str, namespace: str, reference: Object) -> bool:
        version = self.store.get(resource, namespace, reference.get("name", ""))
        if version is None:
            return False
        result: Any = msgspec.json.decode(version.raw)
        return uid_of(result) == reference.get("uid") and not (resource == "serviceaccounts" and is_deleting(result))

    def issue_token(self, account: Object, spec: Object, bound: Object | None) -> Object:
        """Return the status of a TokenRequest for `account`; the caller has checked expirationSeconds."""
        now = self.now().astimezone(UTC).replace(microsecond=0)
        expires = now + timedelta(seconds=spec.get("expirationSeconds") or 3600)
        namespace = account["metadata"]["namespace"]
        private_claims: Object = {"namespace": namespace, "serviceaccount": object_claims(account)}
        if bound is not None:
            private_claims[bound["kind"].lower()] = object_claims(bound)
            if node := value_at(bound, "spec", "nodeName"):
                private_claims["node"] = {"name": node}
        claims = {
            "iss": self.issuer,
            "aud": list(spec.get("audiences") or self.audiences),
            "sub": f"system:serviceaccount:{namespace}:{name_of(account)}",
            "iat": int(now.timestamp()),
            "nbf": int(now.timestamp()),
            "exp": int(expires.timestamp()),
            "jti": str(uuid4()),
            "kubernetes.io": private_claims,
        }
        return {"token": self.keys().sign(claims), "expirationTimestamp": expires.strftime("%Y-%m-%dT%H:%M:%SZ")}


def current_claims(keys: TokenKeys, token: str, issuer: str, audiences: Sequence[str], now: datetime) -> Object | None:
    """Return the claims of a token with a valid signature, if it is valid now for one of the audiences."""
    claims = keys.verified_claims(token)
    if claims is None or claims.get("iss") != issuer or not set(audiences) & set(claims.get("aud", ())):
        return None
    return claims if claims.get("nbf", 0) <= now.timestamp() < claims.get("exp", 0) else None


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
