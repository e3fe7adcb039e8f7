"""AdmissionReviews: what a webhook is told of a write, and what it says to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tapestry.apiserver.admission.match_conditions import admission_request
from tapestry.apiserver.admission.matching import AdmissionAttributes
from tapestry.apiserver.admission.webhook_client import WebhookCallError
from tapestry.apiserver.verbs import WriteRequest
from tapestry.kube.errors import ERRORS_BY_CODE, ApiError
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource

GROUP, KIND = "admission.k8s.io", "AdmissionReview"
REVIEW_VERSIONS = ("v1", "v1beta1")
OPTIONS_KINDS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}


class ReviewError(ValueError):
    """The answer of a webhook is none."""


@dataclass(frozen=True, slots=True)
class AdmissionResponse:
    """What a webhook says to a write."""

    allowed: bool
    result: Object
    """A Status: why not."""
    patch: bytes = b""
    patch_type: str = ""
    warnings: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


# -- the question


def admission_review(
    attributes: AdmissionAttributes, matched_resource: Resource, version: str, uid: str, options: Object | None
) -> Object:
    """The AdmissionReview about `attempt`, whose objects are those of `known_as` already."""
    about = {"object": attributes.new, "oldObject": attributes.old, "options": options}
    request = {"uid": uid, **admission_request(attributes, matched_resource), **about}
    return {"kind": KIND, "apiVersion": f"{GROUP}/{version}", "request": request}


def operation_options(request: WriteRequest, attributes: AdmissionAttributes) -> Object | None:
    """The options of a write; those of a patch are those of the update that it comes to."""
    kind = OPTIONS_KINDS.get(attributes.operation)
    if kind is None:
        return None
    found: Object = {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
    if attributes.operation == "DELETE":
        sent = request.decoded_body if isinstance(request.decoded_body, dict) else {}
        found |= {key: value for key, value in sent.items() if key not in found}
        if "propagationPolicy" in request.query:
            found["propagationPolicy"] = request.query["propagationPolicy"]
        if request.query.get("gracePeriodSeconds", "").isdecimal():
            found["gracePeriodSeconds"] = int(request.query["gracePeriodSeconds"])
    else:
        fields = ("fieldManager", "fieldValidation")
        found |= {name: request.query[name] for name in fields if request.query.get(name)}
    return found | ({"dryRun": ["All"]} if attributes.is_dry_run else {})


# -- the answer


class _Response(msgspec.Struct, rename="camel"):
    uid: str = ""
    allowed: bool = False
    status: dict[str, Any] | None = None
    patch: bytes | None = None
    patch_type: str | None = None
    audit_annotations: dict[str, str] | None = None
    warnings: list[str] | None = None


class _Review(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    response: _Response | None = None


REVIEW_DECODER = msgspec.json.Decoder(_Review)


def admission_response(raw: bytes, version: str, uid: str, *, mutating: bool) -> AdmissionResponse:
    """What `raw` says to the question `uid`.  Raises ReviewError, or CallError where it is not even JSON."""
    try:
        review = REVIEW_DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WebhookCallError(f"couldn't get version/kind; json parse error: {error}") from error
    response = review.response
    if response is None:
        raise ReviewError("webhook response was absent")
    is_loose = version == "v1beta1"  # of which neither the identity nor the type of a patch was ever checked
    if not is_loose:
        check_response(review, response, uid, mutating=mutating)
    return AdmissionResponse(
        response.allowed,
        response.status or {},
        (response.patch or b"") if mutating else b"",
        "JSONPatch" if is_loose else response.patch_type or "",
        tuple(response.warnings or ()),
        response.audit_annotations or {},
    )


def check_response(review: _Review, response: _Response, uid: str, *, mutating: bool) -> None:
    if response.uid != uid:
        raise ReviewError(f'expected response.uid="{uid}", got "{response.uid}"')
    if (review.api_version, review.kind) != (f"{GROUP}/v1", KIND):
        got = f"{review.api_version or '/'}, Kind={review.kind}"
        raise ReviewError(f"expected webhook response of {GROUP}/v1, Kind={KIND}, got {got}")
    if mutating:
        if response.patch and response.patch_type is None:
            raise ReviewError("webhook returned response.patch but not response.patchType")
        if not response.patch and response.patch_type is not None:
            raise ReviewError("webhook returned response.patchType but not response.patch")
        if response.patch_type == "":
            raise ReviewError('webhook returned invalid response.patchType of ""')
    elif response.patch:
        raise ReviewError("validating webhook may not return response.patch")
    elif response.patch_type is not None:
        raise ReviewError("validating webhook may not return response.patchType")


def webhook_denied_error(name: str, result: Object) -> ApiError:
    """The error for a write that a webhook does not want."""
    code, reason, message = result.get("code"), result.get("reason") or "", result.get("message") or ""
    found = code if isinstance(code, int) and code >= 400 else 400
    why = f": {message or reason}" if message or reason else " without explanation"
    details = result.get("details")
    kind = ERRORS_BY_CODE.get(found, ApiError)
    return kind(found, reason, f'admission webhook "{name}" denied the request{why}', details=details)
