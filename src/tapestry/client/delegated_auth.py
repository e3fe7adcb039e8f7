"""Authentication and authorization of requests to our listeners, delegated to the API server.

This is the method of kubelets.  A user is identified by a client certificate, which the TLS handshake verified, or by a
token that the API server reviews.  The API server authorizes both.
"""

from dataclasses import dataclass

from aiohttp import web

from tapestry.client.client import Client
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import Object
from tapestry.kube.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from tapestry.process.logs import logger

log = logger(__name__)


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

    async def authorize_request(self, request: web.Request, subresource: str, node: str) -> None:
        """Check that the sender of a request to the kubelet of `node` may use that subresource of the node.

        Raise the HTTP error to send otherwise.  Without a `node`, require permission on all nodes.
        """
        verb = "get" if request.method in ("GET", "HEAD") else "create"
        attributes = {"verb": verb, "version": "v1", "resource": "nodes", "subresource": subresource, "name": node}
        try:
            user = certificate_user(request) or await self.user_for_token(bearer_token(request))
            if user is None:
                raise web.HTTPUnauthorized(text="Unauthorized")
            allowed = await self.is_allowed(user, {"resourceAttributes": attributes})
        except KubeError as error:
            log.warning("caller review failed", error=str(error))
            raise web.HTTPServiceUnavailable(text="the API server cannot authenticate the request now") from error
        if not allowed:
            details = f"user={user.get('username')}, verb={verb}, resource=nodes, subresource={subresource}"
            raise web.HTTPForbidden(text=f"Forbidden ({details})")


def certificate_user(request: web.Request) -> Object | None:
    """Return the user of the client certificate, which the handshake has verified."""
    certificate = request.transport.get_extra_info("peercert") if request.transport else None
    if not certificate:
        return None
    names = [pair for part in certificate["subject"] for pair in part]
    groups = [value for key, value in names if key == "organizationName"]
    return {"username": next((value for key, value in names if key == "commonName"), ""), "groups": groups}


def bearer_token(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise web.HTTPUnauthorized(text="Unauthorized")
    return token
