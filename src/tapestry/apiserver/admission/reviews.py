"""AdmissionReviews: what a webhook is told of a write, and what it says to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tapestry.apiserver.admission.callouts import CallError
from tapestry.apiserver.admission.conditions import request_words
from tapestry.apiserver.admission.matching import Attempt
from tapestry.apiserver.verbs import Request
from tapestry.kube.errors import BY_CODE, ApiError
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource

GROUP, KIND = "admission.k8s.io", "AdmissionReview"
VERSIONS = ("v1", "v1beta1")
OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}


class ReviewError(ValueError):
    """The answer of a webhook is none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a webhook says to a write."""

    allowed: bool
    result: Object
    """A Status: why not."""
    patch: bytes = b""
    patch_type: str = ""
    warnings: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


# -- the question


def question(attempt: Attempt, known_as: Resource, version: str, uid: str, options: Object | None) -> Object:
    """The AdmissionReview about `attempt`, whose objects are those of `known_as` already."""
    about = {"object": attempt.new, "oldObject": attempt.old, "options": options}
    request = {"uid": uid, **request_words(attempt, known_as), **about}
    return {"kind": KIND, "apiVersion": f"{GROUP}/{version}", "request": request}


def options_of(request: Request, attempt: Attempt) -> Object | None:
    """The options of a write; those of a patch are those of the update that it comes to."""
    kind = OPTIONS.get(attempt.operation)
    if kind is None:
        return None
    found: Object = {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
    if attempt.operation == "DELETE":
        sent = request.sent if isinstance(request.sent, dict) else {}
        found |= {key: value for key, value in sent.items() if key not in found}
        if "propagationPolicy" in request.query:
            found["propagationPolicy"] = request.query["propagationPolicy"]
        if request.query.get("gracePeriodSeconds", "").isdecimal():
            found["gracePeriodSeconds"] = int(request.query["gracePeriodSeconds"])
    else:
        fields = ("fieldManager", "fieldValidation")
        found |= {name: request.query[name] for name in fields if request.query.get(name)}
    return found | ({"dryRun": ["All"]} if attempt.dry else {})


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


REVIEW = msgspec.json.Decoder(_Review)


def verdict(raw: bytes, version: str, uid: str, *, mutating: bool) -> Verdict:
    """What `raw` says to the question `uid`.  Raises ReviewError, or CallError where it is not even JSON."""
    try:
        review = REVIEW.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CallError(f"couldn't get version/kind; json parse error: {error}") from error
    response = review.response
    if response is None:
        raise ReviewError("webhook response was absent")
    is_loose = version == "v1beta1"  # of which neither the identity nor the type of a patch was ever checked
    if not is_loose:
        check(review, response, uid, mutating=mutating)
    return Verdict(
        response.allowed,
        response.status or {},
        (response.patch or b"") if mutating else b"",
        "JSONPatch" if is_loose else response.patch_type or "",
        tuple(response.warnings or ()),
        response.audit_annotations or {},
    )


def check(review: _Review, response: _Response, uid: str, *, mutating: bool) -> None:
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


def denial(name: str, result: Object) -> ApiError:
    """The error for a write that a webhook does not want."""
    code, reason, message = result.get("code"), result.get("reason") or "", result.get("message") or ""
    found = code if isinstance(code, int) and code >= 400 else 400
    why = f": {message or reason}" if message or reason else " without explanation"
    details = result.get("details")
    kind = BY_CODE.get(found, ApiError)
    return kind(found, reason, f'admission webhook "{name}" denied the request{why}', details=details)
