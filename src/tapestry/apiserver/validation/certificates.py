"""Validation of CertificateSigningRequests, their approval and their status."""

import base64
import binascii
from collections.abc import Iterator
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from tapestry.apiserver.core.certificate_requests import NOT_A_REQUEST, parse_request
from tapestry.apiserver.core.faults import (
    Fault,
    duplicate_value,
    duplicates,
    forbidden_field,
    invalid_value,
    required_value,
    unsupported_value,
)
from tapestry.kube.objects import Object, value_at

KEY_USAGES = (
    *("any", "cert sign", "client auth", "code signing", "content commitment", "crl sign", "data encipherment"),
    *("decipher only", "digital signature", "email protection", "encipher only", "ipsec end system", "ipsec tunnel"),
    *("ipsec user", "key agreement", "key encipherment", "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime"),
    *("server auth", "signing", "timestamping"),
)
LEGACY_UNKNOWN_SIGNER = "kubernetes.io/legacy-unknown"
MIN_EXPIRATION_SECONDS = 600
DECISION_TYPES = ("Approved", "Denied")
PERMANENT_CONDITIONS = (*DECISION_TYPES, "Failed")
CONDITIONS_PATH, CERTIFICATE_PATH = "status.conditions", "status.certificate"


def validate_signing_request(value: Any, _: str) -> Iterator[Fault]:
    spec = value.get("spec") or {}
    if msg := signing_request_error(spec.get("request", "")):
        yield invalid_value("spec.request", spec.get("request", ""), msg)
    usages = spec.get("usages") or []
    if not usages:
        yield required_value("spec.usages")
    for number, each in enumerate(usages):
        if each not in KEY_USAGES:
            yield unsupported_value(f"spec.usages[{number}]", each, KEY_USAGES)
    for number, each in duplicates(usages):
        yield duplicate_value(f"spec.usages[{number}]", each)
    yield from validate_signer_name(spec.get("signerName", ""), "spec.signerName")
    seconds = spec.get("expirationSeconds")
    if seconds is not None and seconds < MIN_EXPIRATION_SECONDS:
        msg = "may not specify a duration less than 600 seconds (10 minutes)"
        yield invalid_value("spec.expirationSeconds", seconds, msg)


def signing_request_error(text: str) -> str:
    """Return the error of a certificate request whose PEM text or signature is invalid; empty if it is valid."""
    try:
        request = parse_request(text)
        return "" if request.is_signature_valid else "x509: signature verification failed"
    except (ValueError, UnsupportedAlgorithm):
        return NOT_A_REQUEST


def validate_signer_name(value: str, path: str) -> Iterator[Fault]:
    if not value:
        yield required_value(path)
    elif value == LEGACY_UNKNOWN_SIGNER:
        yield invalid_value(path, value, "the legacy signerName is not allowed via this API version")
    elif value.count("/") != 1 or not all(value.split("/")):
        yield invalid_value(
            path, value, "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        )
    elif "." not in value.partition("/")[0]:
        yield invalid_value(path, value, "should be a domain with at least two segments separated by dots")


def validate_approval_update(old: Object, new: Object) -> Iterator[Fault]:
    yield from validate_conditions(new)
    yield from validate_conditions_not_removed(old, new, PERMANENT_CONDITIONS)


def validate_signing_request_status(old: Object, new: Object) -> Iterator[Fault]:
    """Validate a status update, which must not approve or deny the request."""
    yield from validate_conditions(new)
    yield from validate_conditions_not_removed(old, new, PERMANENT_CONDITIONS)
    for type in DECISION_TYPES:
        if len(conditions_of_type(new, type)) > len(conditions_of_type(old, type)):
            yield forbidden_field(CONDITIONS_PATH, f'updates may not add a condition of type "{type}"')
    old_certificate, new_certificate = (value_at(each, "status", "certificate", default="") for each in (old, new))
    if old_certificate and old_certificate != new_certificate:
        yield forbidden_field(CERTIFICATE_PATH, "updates may not modify existing certificate content")
    elif new_certificate and new_certificate != old_certificate:
        try:
            x509.load_pem_x509_certificates(base64.b64decode(new_certificate))
        except (ValueError, binascii.Error):
            yield invalid_value(CERTIFICATE_PATH, "<certificate data>", "no PEM-encoded certificates found")


def conditions_of_type(request: Object, type: str) -> list[Object]:
    return [each for each in value_at(request, "status", "conditions", default=[]) if each.get("type") == type]


def validate_conditions_not_removed(old: Object, new: Object, types: tuple[str, ...]) -> Iterator[Fault]:
    for type in types:
        if len(conditions_of_type(new, type)) < len(conditions_of_type(old, type)):
            yield forbidden_field(CONDITIONS_PATH, f'updates may not remove a condition of type "{type}"')


def validate_conditions(request: Object) -> Iterator[Fault]:
    seen: set[str] = set()
    for number, each in enumerate(value_at(request, "status", "conditions", default=[])):
        at, type, status = f"{CONDITIONS_PATH}[{number}]", each.get("type", ""), each.get("status", "")
        allowed = ("True",) if type in PERMANENT_CONDITIONS else ("False", "True", "Unknown")
        if not type:
            yield required_value(f"{at}.type")
        if not status:
            yield required_value(f"{at}.status")
        elif status not in allowed:
            yield unsupported_value(f"{at}.status", status, allowed)
        if type in DECISION_TYPES and seen & (set(DECISION_TYPES) - {type}):
            yield invalid_value(CONDITIONS_PATH, type, "Approved and Denied conditions are mutually exclusive")
        if type in seen:
            yield duplicate_value(f"{at}.type", type)
        seen.add(type)
