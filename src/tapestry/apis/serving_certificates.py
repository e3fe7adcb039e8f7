"""Certificates of the kubelet API of virtual nodes: what a syncer requests, and what the manager approves.

The signer is the one of kubelets, because API servers and metrics-server verify virtual nodes like other nodes.  Its
certificates can only be used by servers.
"""

import base64
from collections.abc import Collection

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tapestry.apis.permissions import SERVING_SIGNER
from tapestry.apiserver.access.certificates import alternative_name, subject_name
from tapestry.apiserver.core.certificate_requests import alternative_names, parse_request
from tapestry.kube.objects import Object, name_of, namespace_of, value_at

NODES_GROUP, NODE_USER_PREFIX = "system:nodes", "system:node:"
USAGES = ("digital signature", "server auth")
LIFETIME_SECONDS = 30 * 24 * 3600
"""Requested lifetime.  A process keeps its key in memory only, so each start requests a new certificate."""
POD_NAME = "authentication.kubernetes.io/pod-name"
POD_UID = "authentication.kubernetes.io/pod-uid"


def serving_secret_name(syncer: str) -> str:
    """Return the name of the Secret with a certificate that replaces the requested one."""
    return f"{syncer}-serving"


def service_names(service: Object) -> frozenset[str]:
    """Return the name and the addresses at which clients call a Service."""
    addresses = value_at(service, "spec", "clusterIPs") or [value_at(service, "spec", "clusterIP", default="")]
    return frozenset(
        {f"{name_of(service)}.{namespace_of(service)}.svc", *(each for each in addresses if each not in ("", "None"))}
    )


def serving_subject(syncer: str) -> x509.Name:
    """Return the subject that the signer requires: a member of the group of nodes."""
    return subject_name(f"{NODE_USER_PREFIX}{syncer}", [NODES_GROUP])


def signing_request(name: str, syncer: str, names: Collection[str], key: ec.EllipticCurvePrivateKey) -> Object:
    """Return the CertificateSigningRequest of a syncer whose kubelet API has these names and addresses."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(serving_subject(syncer))
    alternatives = x509.SubjectAlternativeName([alternative_name(each) for each in sorted(names)])
    pem = builder.add_extension(alternatives, critical=False).sign(key, hashes.SHA256())
    encoded = base64.b64encode(pem.public_bytes(serialization.Encoding.PEM)).decode()
    spec = {
        "request": encoded,
        "signerName": SERVING_SIGNER,
        "usages": list(USAGES),
        "expirationSeconds": LIFETIME_SECONDS,
    }
    return {"metadata": {"name": name}, "spec": spec}


def request_problem(request: Object, syncer: str, names: Collection[str]) -> str | None:
    """Return why a request is not one that the syncer makes for these names, or None if it is."""
    spec = request["spec"]
    if spec.get("signerName") != SERVING_SIGNER or set(spec.get("usages") or ()) != set(USAGES):
        return f"it is not for the signer {SERVING_SIGNER} with the usages {', '.join(USAGES)}"
    try:
        parsed = parse_request(spec["request"])
        found = set(alternative_names(parsed))
        has_others = any(not isinstance(each.value, x509.SubjectAlternativeName) for each in parsed.extensions)
    except ValueError as error:
        return f"it cannot be read: {error}"
    if not parsed.is_signature_valid or has_others:
        return "its signature is not valid, or it has other extensions than alternative names"
    if parsed.subject != serving_subject(syncer):
        return f"its subject is {parsed.subject.rfc4514_string()}, not {serving_subject(syncer).rfc4514_string()}"
    if not names or found != {alternative_name(each) for each in names}:
        requested = ", ".join(sorted(str(each.value) for each in found))
        return f"it is for {requested}, and the kubelet API has the names {', '.join(sorted(names)) or 'none'}"
    return None
