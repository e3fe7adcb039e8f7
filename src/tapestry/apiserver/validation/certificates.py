"""Requests for certificates: what may be asked for, and what may be said to it."""

import base64
import binascii
from collections.abc import Iterator
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from tapestry.apiserver.access.certificate_requests import NO_REQUEST, parsed_request
from tapestry.apiserver.customs.structural import Fault, repetitions
from tapestry.apiserver.validation.faults import duplicate, forbidden, invalid, required, unsupported
from tapestry.kube.objects import Object, value_at

USAGES = (
    *("any", "cert sign", "client auth", "code signing", "content commitment", "crl sign", "data encipherment"),
    *("decipher only", "digital signature", "email protection", "encipher only", "ipsec end system", "ipsec tunnel"),
    *("ipsec user", "key agreement", "key encipherment", "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime"),
    *("server auth", "signing", "timestamping"),
)
LEGACY = "kubernetes.io/legacy-unknown"
SHORTEST = 600
DECISIONS = ("Approved", "Denied")
LASTING = (*DECISIONS, "Failed")
CONDITIONS, CERTIFICATE = "status.conditions", "status.certificate"


def request(value: Any, _: str) -> Iterator[Fault]:
    """Faults of a new request."""
    spec = value.get("spec") or {}
    if why := complaint(spec.get("request", "")):
        yield invalid("spec.request", spec.get("request", ""), why)
    usages = spec.get("usages") or []
    if not usages:
        yield required("spec.usages")
    for number, each in enumerate(usages):
        if each not in USAGES:
            yield unsupported(f"spec.usages[{number}]", each, USAGES)
    for number, each in repetitions(usages):
        yield duplicate(f"spec.usages[{number}]", each)
    yield from signer(spec.get("signerName", ""), "spec.signerName")
    seconds = spec.get("expirationSeconds")
    if seconds is not None and seconds < SHORTEST:
        why = "may not specify a duration less than 600 seconds (10 minutes)"
        yield invalid("spec.expirationSeconds", seconds, why)


def complaint(text: str) -> str:
    """What keeps a text from being a request that whoever has the key has signed."""
    try:
        found = parsed_request(text)
        return "" if found.is_signature_valid else "x509: signature verification failed"
    except (ValueError, UnsupportedAlgorithm):
        return NO_REQUEST


def signer(value: str, path: str) -> Iterator[Fault]:
    if not value:
        yield required(path)
    elif value == LEGACY:
        yield invalid(path, value, "the legacy signerName is not allowed via this API version")
    elif value.count("/") != 1 or not all(value.split("/")):
        yield invalid(path, value, "must be a fully qualified domain and path of the form 'example.com/signer-name'")
    elif "." not in value.partition("/")[0]:
        yield invalid(path, value, "should be a domain with at least two segments separated by dots")


def approved(old: Object, new: Object) -> Iterator[Fault]:
    """Faults of a decision."""
    yield from conditions(new)
    yield from kept(old, new, LASTING)


def signed(old: Object, new: Object) -> Iterator[Fault]:
    """Faults of a status, which decides nothing."""
    yield from conditions(new)
    yield from kept(old, new, LASTING)
    for type in DECISIONS:
        if len(of(new, type)) > len(of(old, type)):
            yield forbidden(CONDITIONS, f'updates may not add a condition of type "{type}"')
    before, after = (value_at(each, "status", "certificate", default="") for each in (old, new))
    if before and before != after:
        yield forbidden(CERTIFICATE, "updates may not modify existing certificate content")
    elif after and after != before:
        try:
            x509.load_pem_x509_certificates(base64.b64decode(after))
        except (ValueError, binascii.Error):
            yield invalid(CERTIFICATE, "<certificate data>", "no PEM-encoded certificates found")


def of(request: Object, type: str) -> list[Object]:
    return [each for each in value_at(request, "status", "conditions", default=[]) if each.get("type") == type]


def kept(old: Object, new: Object, types: tuple[str, ...]) -> Iterator[Fault]:
    for type in types:
        if len(of(new, type)) < len(of(old, type)):
            yield forbidden(CONDITIONS, f'updates may not remove a condition of type "{type}"')


def conditions(request: Object) -> Iterator[Fault]:
    seen: set[str] = set()
    for number, each in enumerate(value_at(request, "status", "conditions", default=[])):
        at, type, status = f"{CONDITIONS}[{number}]", each.get("type", ""), each.get("status", "")
        allowed = ("True",) if type in LASTING else ("False", "True", "Unknown")
        if not type:
            yield required(f"{at}.type")
        if not status:
            yield required(f"{at}.status")
        elif status not in allowed:
            yield unsupported(f"{at}.status", status, allowed)
        if type in DECISIONS and seen & (set(DECISIONS) - {type}):
            yield invalid(CONDITIONS, type, "Approved and Denied conditions are mutually exclusive")
        if type in seen:
            yield duplicate(f"{at}.type", type)
        seen.add(type)
