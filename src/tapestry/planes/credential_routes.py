"""HTTP interfaces of Planes in the management API for their credentials, below `planes/NAME/`.

| interface | right on the subresource |
|---|---|
| `GET credentials` | `get` on `planes/credentials` |
| `POST revoke` | `create` on `planes/revoke` |
| `POST rotate-ca` | `create` on `planes/rotate-ca` |
| `POST rotate-signing-key` | `create` on `planes/rotate-signing-key` |
"""

from datetime import datetime, timedelta
from typing import Annotated

from msgspec import Meta

from tapestry.apiext.interfaces import HttpCall
from tapestry.apis.planes import plane_id
from tapestry.apiserver.access.rotation import MAX_OVERLAP
from tapestry.apiserver.core import api_errors
from tapestry.kube.api_types import ApiStruct
from tapestry.kube.crds import HttpRoute, http_route
from tapestry.planes.plane_keys import PlaneKeys

MAX_OVERLAP_SECONDS = int(MAX_OVERLAP.total_seconds())
DEFAULT_OVERLAP_SECONDS = 24 * 3600


class TokenSummary(ApiStruct):
    """A valid token without its secret."""

    id: str
    user: str
    groups: tuple[str, ...]
    created: datetime
    expires: datetime


class RevokedCertificate(ApiStruct):
    """A revoked client certificate, or a user whose certificates until the revocation are revoked."""

    revoked: datetime
    serial: str | None = None
    user: str | None = None


class CredentialsResult(ApiStruct):
    """Credentials of a plane. Client certificates are not stored, so only revoked ones are known."""

    tokens: tuple[TokenSummary, ...]
    revoked_certificates: tuple[RevokedCertificate, ...]


class RevokeArguments(ApiStruct):
    """Credentials to revoke. Exactly one of the fields is set."""

    token: Annotated[str, Meta(max_length=64, description="ID of a token.")] | None = None
    serial: Annotated[str, Meta(max_length=64, description="Serial number of a client certificate.")] | None = None
    user: (
        Annotated[
            str,
            Meta(min_length=1, max_length=253, description="User whose tokens and client certificates are revoked."),
        ]
        | None
    ) = None


class RotateArguments(ApiStruct):
    """Overlap of a rotation."""

    overlap_seconds: Annotated[
        int, Meta(ge=0, le=MAX_OVERLAP_SECONDS, description="Seconds for which what is replaced stays valid.")
    ] = DEFAULT_OVERLAP_SECONDS


class RotateResult(ApiStruct):
    """Name of the new CA, or id of the new signing key."""

    name: str


def credential_routes(keys: PlaneKeys) -> list[HttpRoute]:
    """Return the HTTP interfaces."""

    async def credentials(call: HttpCall) -> CredentialsResult:
        tokens, revocations = await keys.list_credentials(plane_id(call.object))
        return CredentialsResult(
            tuple(TokenSummary(each.id, each.user, each.groups, each.created, each.expires) for each in tokens),
            (
                *(RevokedCertificate(time, serial=serial) for serial, time in revocations.serials.items()),
                *(RevokedCertificate(time, user=user) for user, time in revocations.users.items()),
            ),
        )

    async def revoke(call: HttpCall, arguments: RevokeArguments) -> None:
        id = plane_id(call.object)
        match arguments:
            case RevokeArguments(token=str(token), serial=None, user=None):
                await keys.revoke_token(id, token)
            case RevokeArguments(token=None, serial=str(serial), user=None):
                await keys.revoke_certificate(id, serial)
            case RevokeArguments(token=None, serial=None, user=str(user)):
                await keys.revoke_user(id, user)
            case _:
                raise api_errors.bad_request("give exactly one of token, serial and user")

    async def rotate_ca(call: HttpCall, arguments: RotateArguments) -> RotateResult:
        overlap = timedelta(seconds=arguments.overlap_seconds)
        certificate = await keys.rotate_ca(plane_id(call.object), overlap)
        return RotateResult(certificate.subject.rfc4514_string())

    async def rotate_signing_key(call: HttpCall, arguments: RotateArguments) -> RotateResult:
        overlap = timedelta(seconds=arguments.overlap_seconds)
        return RotateResult(await keys.rotate_signing_key(plane_id(call.object), overlap))

    return [
        http_route("GET", "/credentials", credentials),
        http_route("POST", "/revoke", revoke),
        http_route("POST", "/rotate-ca", rotate_ca),
        http_route("POST", "/rotate-signing-key", rotate_signing_key),
    ]
