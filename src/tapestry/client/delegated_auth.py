"""Authentication and authorization of requests to our listeners, delegated to the API server.

This is the method of kubelets.  A user is identified by a client certificate, which the TLS handshake verified, or by a
token that the API server reviews.  The API server authorizes both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tapestry.client.client import Client
from tapestry.kube.errors import Forbidden, KubeError, Unauthorized, Unavailable
from tapestry.kube.objects import Object
from tapestry.kube.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from tapestry.process.logs import logger

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """Credentials of a request, as the connection and its headers state them."""

    certificate: Mapping[str, Sequence[str]]
    """Values of the subject of the client certificate by name; empty without a verified certificate."""
    token: str = ""
    """Bearer token."""


@dataclass(frozen=True)
class DelegatedAuth:
    """Reviews tokens and permissions of callers at one API server."""

    client: Client

    async def user_for_token(self, token: str) -> Object | None:
        """Return the user of the token: `username`, `groups`, `uid`, `extra`.  Return None if it is not valid."""
        status: Object = (await self.client.review(TOKEN_REVIEWS, {"token": token})).get("status") or {}
        return status.get("user") or {} if status.get("authenticated") else None

    async def is_allowed(self, user: Object, attributes: Object) -> bool:
        """Return whether the user has a permission: the `resourceAttributes` or `nonResourceAttributes` of a review."""
        subject = {"user": user.get("username", ""), "groups": user.get("groups") or []}
        optional = {key: user[key] for key in ("uid", "extra") if user.get(key)}
        review = await self.client.review(SUBJECT_ACCESS_REVIEWS, {**subject, **optional, **attributes})
        return bool((review.get("status") or {}).get("allowed"))

    async def authorize(self, caller: Caller, verb: str, subresource: str, node: str) -> Object:
        """Return the user of a request to the kubelet of `node`, who may use that subresource of the node.

        Raise the error to respond with otherwise: Unauthorized, Forbidden or Unavailable. Without a `node`, require
        permission on all nodes.
        """
        attributes = {"verb": verb, "version": "v1", "resource": "nodes", "subresource": subresource, "name": node}
        user = certificate_user(caller.certificate)
        try:
            if user is None and caller.token:
                user = await self.user_for_token(caller.token)
            allowed = user is not None and await self.is_allowed(user, {"resourceAttributes": attributes})
        except KubeError as error:
            log.warning("caller review failed", error=str(error))
            message = "the API server cannot authenticate the request now"
            raise Unavailable(503, "ServiceUnavailable", message) from error
        if user is None:
            raise Unauthorized(401, "Unauthorized", "Unauthorized")
        if not allowed:
            details = f"user={user.get('username')}, verb={verb}, resource=nodes, subresource={subresource}"
            raise Forbidden(403, "Forbidden", f"Forbidden ({details})")
        return user


def certificate_user(subject: Mapping[str, Sequence[str]]) -> Object | None:
    """Return the user that the subject of a client certificate names, or None if it names none."""
    names = subject.get("commonName")
    return {"username": names[0], "groups": list(subject.get("organizationName") or [])} if names else None
