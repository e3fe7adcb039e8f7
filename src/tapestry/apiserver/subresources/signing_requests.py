"""CertificateSigningRequests: recorded requester, and permission checks for approving and signing."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from tapestry.apiserver.core.certificate_requests import organizations, parse_request
from tapestry.apiserver.core.requests import (
    MASTERS_GROUP,
    Attributes,
    Authorize,
    Target,
    User,
    WriteRequest,
    admission_forbidden,
    unserved_resource_info,
    user_info,
)
from tapestry.kube.objects import Object, value_at, with_value
from tapestry.kube.times import timestamp

GROUP = "certificates.k8s.io"
CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client"
IDENTITY_FIELDS = ("username", "uid", "groups", "extra")


@dataclass(frozen=True)
class SigningRequests:
    """Pipeline steps for CertificateSigningRequests."""

    authorize: Authorize
    now: Callable[[], datetime]

    async def prepare(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        if old is None:
            spec = {key: value for key, value in (new.get("spec") or {}).items() if key not in IDENTITY_FIELDS}
            return {**new, "spec": {**spec, **user_info(request.user)}}
        if request.target.subresource and value_at(new, "status", "conditions"):
            return with_value(new, ("status", "conditions"), self.stamped_conditions(old, new))
        return new

    def stamped_conditions(self, old: Object, new: Object) -> list[Object]:
        """The conditions, with missing timestamps added."""
        now = timestamp(self.now())
        before = {
            (each.get("type"), each.get("status")): each.get("lastTransitionTime")
            for each in value_at(old, "status", "conditions", default=[])
        }
        return [
            {
                **each,
                "lastUpdateTime": each.get("lastUpdateTime") or now,
                "lastTransitionTime": each.get("lastTransitionTime")
                or before.get((each.get("type"), each.get("status")))
                or now,
            }
            for each in new["status"]["conditions"]
        ]

    async def check(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        if old is None:
            self.check_subject(request, new)
            return new
        subresource, signer = request.target.subresource, value_at(old, "spec", "signerName", default="")
        is_signed = subresource == "status" and (old.get("status") or {}) != (new.get("status") or {})
        verb = "approve" if subresource == "approval" else "sign" if is_signed else ""
        if verb and not self.is_permitted(request.user, verb, signer):
            raise admission_forbidden(request, f'user not permitted to {verb} requests with signerName "{signer}"')
        return new

    def check_subject(self, request: WriteRequest, new: Object) -> None:
        """Reject client certificates for the group system:masters."""
        spec = new["spec"]
        if spec.get("signerName") == CLIENT_SIGNER and MASTERS_GROUP in organizations(parse_request(spec["request"])):
            raise admission_forbidden(
                request, f"use of {CLIENT_SIGNER} signer with {MASTERS_GROUP} group is not allowed"
            )

    def is_permitted(self, user: User, verb: str, signer: str) -> bool:
        """Return whether the user has the permission for this signer or for its domain."""
        info = unserved_resource_info(GROUP, "signers")
        names = signer, f"{signer.partition('/')[0]}/*"
        return any(self.authorize(Attributes(user, verb, Target(info, "", name))) for name in names)
