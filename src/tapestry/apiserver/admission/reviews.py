"""AdmissionReview requests and responses of webhooks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tapestry.apiserver.admission.expression_variables import admission_request
from tapestry.apiserver.admission.matching import AdmissionAttributes
from tapestry.apiserver.core.outgoing_http import WebhookCallError
from tapestry.apiserver.core.requests import WriteRequest
from tapestry.kube.errors import ERRORS_BY_CODE, ApiError
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource

GROUP, KIND = "admission.k8s.io", "AdmissionReview"
REVIEW_VERSIONS = ("v1", "v1beta1")
OPTIONS_KINDS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}


class ReviewError(ValueError):
    """Error if a webhook's response is not valid."""


@dataclass(frozen=True, slots=True)
class AdmissionResponse:
    """A webhook's decision about a write."""

    allowed: bool
    result: Object
    """A Status with the reason of a denial."""
    patch: bytes = b""
    patch_type: str = ""
    warnings: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


# -- requests


def admission_review(
    attributes: AdmissionAttributes, matched_resource: Resource, version: str, uid: str, options: Object | None
) -> Object:
    """The AdmissionReview of a write whose objects are already converted to `matched_resource`."""
    objects = {"object": attributes.new, "oldObject": attributes.old, "options": options}
    request = {"uid": uid, **admission_request(attributes, matched_resource), **objects}
    return {"kind": KIND, "apiVersion": f"{GROUP}/{version}", "request": request}


def operation_options(request: WriteRequest, attributes: AdmissionAttributes) -> Object | None:
    """The options of a write; for a patch, those of an update."""
    kind = OPTIONS_KINDS.get(attributes.operation)
    if kind is None:
        return None
    options: Object = {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
    if attributes.operation == "DELETE":
        body = request.decoded_body if isinstance(request.decoded_body, dict) else {}
        options |= {key: value for key, value in body.items() if key not in options}
        if "propagationPolicy" in request.query:
            options["propagationPolicy"] = request.query["propagationPolicy"]
        if request.query.get("gracePeriodSeconds", "").isdecimal():
            options["gracePeriodSeconds"] = int(request.query["gracePeriodSeconds"])
    else:
        fields = ("fieldManager", "fieldValidation")
        options |= {name: request.query[name] for name in fields if request.query.get(name)}
    return options | ({"dryRun": ["All"]} if attributes.is_dry_run else {})


# -- responses


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
    """Decode the response to the review `uid`. Raises ReviewError, or WebhookCallError if it is not JSON."""
    try:
        review = REVIEW_DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WebhookCallError(f"couldn't get version/kind; json parse error: {error}") from error
    response = review.response
    if response is None:
        raise ReviewError("webhook response was absent")
    is_v1beta1 = version == "v1beta1"  # the uid and the patch type were never checked in this version
    if not is_v1beta1:
        check_response(review, response, uid, mutating=mutating)
    return AdmissionResponse(
        response.allowed,
        response.status or {},
        (response.patch or b"") if mutating else b"",
        "JSONPatch" if is_v1beta1 else response.patch_type or "",
        tuple(response.warnings or ()),
        response.audit_annotations or {},
    )


def check_response(review: _Review, response: _Response, uid: str, *, mutating: bool) -> None:
    if response.uid != uid:
        raise ReviewError(f'expected response.uid="{uid}", got "{response.uid}"')
    if (review.api_version, review.kind) != (f"{GROUP}/v1", KIND):
        received = f"{review.api_version or '/'}, Kind={review.kind}"
        raise ReviewError(f"expected webhook response of {GROUP}/v1, Kind={KIND}, got {received}")
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
    """The error for a write that a webhook denied."""
    code, reason, message = result.get("code"), result.get("reason") or "", result.get("message") or ""
    status_code = code if isinstance(code, int) and code >= 400 else 400
    text = f": {message or reason}" if message or reason else " without explanation"
    details = result.get("details")
    error_class = ERRORS_BY_CODE.get(status_code, ApiError)
    return error_class(status_code, reason, f'admission webhook "{name}" denied the request{text}', details=details)
