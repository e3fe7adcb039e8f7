"""Who calls a listener of ours, and whether they may: the API server is asked, as by any kubelet.

A caller is known by a client certificate, which the handshake has verified, or by a token that the API server knows.
What either may is for the API server's roles to say.
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
    """Asks one API server about those who call."""

    client: Client

    async def user_for_token(self, token: str) -> Object | None:
        """The user whose token it is: `username`, `groups`, `uid`, `extra`; None where the server knows nobody."""
        status: Object = (await self.client.review(TOKEN_REVIEWS, {"token": token})).get("status") or {}
        return status.get("user") or {} if status.get("authenticated") else None

    async def is_allowed(self, user: Object, attributes: Object) -> bool:
        """Whether a user has a right: `asked` is the `resourceAttributes` or `nonResourceAttributes` of a review."""
        who = {"user": user.get("username", ""), "groups": user.get("groups") or []}
        more = {key: user[key] for key in ("uid", "extra") if user.get(key)}
        review = await self.client.review(SUBJECT_ACCESS_REVIEWS, {**who, **more, **attributes})
        return bool((review.get("status") or {}).get("allowed"))

    async def authorize_request(self, request: web.Request, subresource: str, node: str) -> None:
        """Let a request to the kubelet of `node` pass, if its sender has the right to that subresource of the node.

        Raises what there is to say to anybody else.  Without a `node` it takes a right to all of them.
        """
        verb = "get" if request.method in ("GET", "HEAD") else "create"
        wanted = {"verb": verb, "version": "v1", "resource": "nodes", "subresource": subresource, "name": node}
        try:
            user = certificate_user(request) or await self.user_for_token(bearer_token(request))
            if user is None:
                raise web.HTTPUnauthorized(text="Unauthorized")
            allowed = await self.is_allowed(user, {"resourceAttributes": wanted})
        except KubeError as error:
            log.warning("could not ask who calls", error=str(error))
            raise web.HTTPServiceUnavailable(text="the API server cannot be asked who you are") from error
        if not allowed:
            what = f"user={user.get('username')}, verb={verb}, resource=nodes, subresource={subresource}"
            raise web.HTTPForbidden(text=f"Forbidden ({what})")


def certificate_user(request: web.Request) -> Object | None:
    """Whom a client certificate names; the handshake has verified it, or there would be no request."""
    shown = request.transport.get_extra_info("peercert") if request.transport else None
    if not shown:
        return None
    names = [pair for part in shown["subject"] for pair in part]
    groups = [value for key, value in names if key == "organizationName"]
    return {"username": next((value for key, value in names if key == "commonName"), ""), "groups": groups}


def bearer_token(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise web.HTTPUnauthorized(text="Unauthorized")
    return token
