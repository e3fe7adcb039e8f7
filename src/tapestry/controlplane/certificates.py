"""Controllers that approve, sign and clean up CertificateSigningRequests.

Their names are those of kube-controller-manager. They approve requests that kubelets make for themselves, and sign with
the CA of the API server, whose key is in its data folder.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.access.revocations import REVOCATIONS_FILE, load_revocations
from tapestry.apiserver.core.certificate_requests import common_name, parse_request
from tapestry.client.client import Client
from tapestry.controller import Manager, Result
from tapestry.controller.store import Store
from tapestry.controlplane.signers import (
    KUBELET_CLIENT,
    SIGNERS,
    CannotSign,
    SigningCa,
    rule_violation,
    signed_certificate,
)
from tapestry.kube.errors import Conflict, NotFound
from tapestry.kube.objects import Object, is_deleting, name_of, value_at
from tapestry.kube.resources import SIGNING_REQUESTS, SUBJECT_ACCESS_REVIEWS
from tapestry.kube.times import parse_time, timestamp
from tapestry.process.logs import logger

log = logger(__name__)

APPROVING, SIGNING, CLEANING = "csrapproving", "csrsigning", "csrcleaner"
CONTROLLER_NAMES = (APPROVING, SIGNING, CLEANING)
DECIDED_SECONDS, PENDING_SECONDS = 3600, 24 * 3600
"""Seconds after which a request is deleted: once decided, and while pending."""
MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL = timedelta(seconds=1), timedelta(seconds=1000)
"""Limits of the interval for checking permissions again, because roles may change."""
APPROVAL_MESSAGES = {
    "selfnodeclient": "Auto approving self kubelet client certificate after SubjectAccessReview.",
    "nodeclient": "Auto approving kubelet client certificate after SubjectAccessReview.",
}
"""Message of the approval, by the permission that allows it."""

Now = Callable[[], datetime]


def conditions_of(request: Object) -> list[Object]:
    return value_at(request, "status", "conditions") or []


def condition_of(request: Object, type: str) -> Object | None:
    return next((each for each in conditions_of(request) if each.get("type") == type), None)


def is_decided(request: Object) -> bool:
    return any(condition_of(request, type) is not None for type in ("Approved", "Denied"))


def is_signable(request: Object) -> bool:
    """Return whether a request is approved, names a built-in signer, and has no certificate and no failure."""
    types = {each.get("type") for each in conditions_of(request)}
    if types & {"Denied", "Failed"} or "Approved" not in types or value_at(request, "status", "certificate"):
        return False
    return value_at(request, "spec", "signerName") in SIGNERS


def approval_permissions(request: Object) -> list[str]:
    """Return the permissions any of which approves a kubelet's request. Empty for other requests."""
    spec = request["spec"]
    if spec.get("signerName") != KUBELET_CLIENT:
        return []
    parsed = parse_request(spec["request"])
    if rule_violation(KUBELET_CLIENT, parsed, spec.get("usages") or ()):
        return []
    return ["selfnodeclient", "nodeclient"] if spec.get("username") == common_name(parsed) else ["nodeclient"]


def deletion_time(request: Object) -> datetime | None:
    """Return the time at which a request is deleted, or None while it is kept."""
    if not conditions_of(request):
        return parse_time(request["metadata"]["creationTimestamp"]) + timedelta(seconds=PENDING_SECONDS)
    certificate = value_at(request, "status", "certificate")
    types = ("Denied", "Failed", *(("Approved",) if certificate else ()))
    decided = (condition_of(request, type) for type in types)
    decided_at = [parse_time(each["lastUpdateTime"]) for each in decided if each and each.get("lastUpdateTime")]
    times = [each + timedelta(seconds=DECIDED_SECONDS) for each in decided_at]
    if certificate and condition_of(request, "Approved") is not None:
        times += certificate_expiry(certificate)
    return min(times, default=None)


def certificate_expiry(certificate: str) -> list[datetime]:
    try:
        return [x509.load_pem_x509_certificates(base64.b64decode(certificate))[0].not_valid_after_utc]
    except ValueError:
        return []  # another signer may have written any content


@dataclass(frozen=True)
class Approver:
    """Approve requests of kubelets that have the required permission."""

    requests: Store
    client: Client
    now: Now

    async def reconcile(self, name: str) -> Result | None:
        request = self.requests.get(name)
        if request is None or is_deleting(request) or is_decided(request) or value_at(request, "status", "certificate"):
            return None
        permissions = approval_permissions(request)
        for permission in permissions:
            if await self.is_allowed(request, permission):
                await self.approve(request, APPROVAL_MESSAGES[permission])
                return None
        if not permissions:
            return None
        age = self.now() - parse_time(request["metadata"]["creationTimestamp"])
        return Result(requeue_after=min(max(age, MIN_RETRY_INTERVAL), MAX_RETRY_INTERVAL).total_seconds())

    async def is_allowed(self, request: Object, permission: str) -> bool:
        spec = request["spec"]
        user = {"user": spec.get("username", ""), "groups": spec.get("groups") or []}
        user |= {"uid": spec.get("uid", ""), "extra": spec.get("extra") or {}}
        attributes = {
            "group": SIGNING_REQUESTS.group,
            "resource": SIGNING_REQUESTS.plural,
            "subresource": permission,
            "verb": "create",
        }
        review = await self.client.review(SUBJECT_ACCESS_REVIEWS, {**user, "resourceAttributes": attributes})
        return bool(value_at(review, "status", "allowed"))

    async def approve(self, request: Object, message: str) -> None:
        condition = {"type": "Approved", "status": "True", "reason": "AutoApproved", "message": message}
        condition["lastUpdateTime"] = timestamp(self.now())
        patch = {"status": {"conditions": [*conditions_of(request), condition]}}
        try:
            await self.client.patch(SIGNING_REQUESTS, request, patch, subresource="approval")
        except (Conflict, NotFound):
            return  # changed or deleted: that event triggers another reconcile


@dataclass(frozen=True)
class Signer:
    """Sign approved requests for the built-in signers, or mark them as failed."""

    requests: Store
    client: Client
    authority: CertificateAuthority
    now: Now

    async def reconcile(self, name: str) -> None:
        request = self.requests.get(name)
        if request is None or is_deleting(request) or not is_signable(request):
            return
        try:
            await self.client.patch(
                SIGNING_REQUESTS, request, {"status": self.signing_status(request)}, subresource="status"
            )
        except (Conflict, NotFound):
            return  # changed or deleted: that event triggers another reconcile

    def signing_status(self, request: Object) -> Object:
        """Return the status change: a certificate, or the condition `Failed`. Raises CannotSign."""
        spec = request["spec"]
        parsed, usages = parse_request(spec["request"]), spec.get("usages") or []
        if violation := rule_violation(spec["signerName"], parsed, usages):
            failed = {"type": "Failed", "status": "True", "reason": "SignerValidationFailure", "message": violation}
            return {"conditions": [*conditions_of(request), {**failed, "lastUpdateTime": timestamp(self.now())}]}
        pair = self.authority.key_pair()
        if pair is None:
            raise CannotSign(f"{self.authority.certificate_file} has no key file beside it")
        revoked_at = load_revocations(self.authority.folder / REVOCATIONS_FILE).users.get(common_name(parsed))
        certificate = signed_certificate(
            SigningCa(*pair), parsed, usages, spec.get("expirationSeconds"), self.now(), revoked_at
        )
        return {"certificate": base64.b64encode(certificate.public_bytes(Encoding.PEM)).decode()}


@dataclass(frozen=True)
class Cleaner:
    """Delete decided and abandoned requests after some time."""

    requests: Store
    client: Client
    now: Now

    async def reconcile(self, name: str) -> Result | None:
        request = self.requests.get(name)
        due = deletion_time(request) if request is not None and not is_deleting(request) else None
        if request is None or due is None:
            return None
        if self.now() <= due:
            return Result(requeue_at=due + timedelta(seconds=1))
        try:
            await self.client.delete(SIGNING_REQUESTS, request)
        except (Conflict, NotFound):
            return None
        log.info("certificate signing request expired and was deleted", name=name_of(request))
        return None


def utc_now() -> datetime:
    return datetime.now(UTC)


def install_approving(manager: Manager, now: Now = utc_now) -> None:
    informer = manager.informer(SIGNING_REQUESTS)
    approver = Approver(informer.store, manager.client, now)
    manager.controller(APPROVING, approver.reconcile).watch(informer)


def install_signing(manager: Manager, authority: CertificateAuthority | None, now: Now = utc_now) -> None:
    """Sign with the key of `authority`. Without a key, log a warning and do not sign."""
    if authority is None or not authority.can_sign:
        reason = "no CA" if authority is None else f"{authority.certificate_file} has no key file beside it"
        log.warning("certificate signing disabled: no CA key", reason=reason)
        return
    informer = manager.informer(SIGNING_REQUESTS)
    signer = Signer(informer.store, manager.client, authority, now)
    manager.controller(SIGNING, signer.reconcile).watch(informer)


def install_cleaning(manager: Manager, now: Now = utc_now) -> None:
    informer = manager.informer(SIGNING_REQUESTS)
    cleaner = Cleaner(informer.store, manager.client, now)
    manager.controller(CLEANING, cleaner.reconcile).watch(informer)
