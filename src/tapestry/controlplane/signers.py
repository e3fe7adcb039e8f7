"""Rules of Kubernetes' built-in certificate signers: permitted requests and issued certificates.

All functions are pure. They follow kube-controller-manager.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tapestry.apiserver.access.certificates import authority_key_identifier, hash_for, key_usage
from tapestry.apiserver.core.certificate_requests import alternative_names, common_name, organizations
from tapestry.apiserver.core.references import NODE_USER_PREFIX, NODES_GROUP

CLIENT = "kubernetes.io/kube-apiserver-client"
KUBELET_CLIENT = "kubernetes.io/kube-apiserver-client-kubelet"
KUBELET_SERVING = "kubernetes.io/kubelet-serving"
LEGACY = "kubernetes.io/legacy-unknown"
SIGNERS = (CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY)

MAX_LIFETIME, MIN_LIFETIME = timedelta(days=365), timedelta(minutes=10)
BACKDATED = timedelta(minutes=5)
"""Time by which a certificate is valid before it is issued, to tolerate slow clocks."""
SHORT_LIVED = timedelta(hours=8)
"""Certificates with a shorter lifetime expire a full lifetime from now. Longer ones are backdated as a whole."""

KEY_USAGES = {
    "signing": "digital_signature",
    "digital signature": "digital_signature",
    "content commitment": "content_commitment",
    "key encipherment": "key_encipherment",
    "key agreement": "key_agreement",
    "data encipherment": "data_encipherment",
    "cert sign": "key_cert_sign",
    "crl sign": "crl_sign",
    "encipher only": "encipher_only",
    "decipher only": "decipher_only",
}
EXTENDED_KEY_USAGES = {
    "any": ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE,
    "server auth": ExtendedKeyUsageOID.SERVER_AUTH,
    "client auth": ExtendedKeyUsageOID.CLIENT_AUTH,
    "code signing": ExtendedKeyUsageOID.CODE_SIGNING,
    "email protection": ExtendedKeyUsageOID.EMAIL_PROTECTION,
    "s/mime": ExtendedKeyUsageOID.EMAIL_PROTECTION,
    "ipsec end system": x509.ObjectIdentifier("1.3.6.1.5.5.7.3.5"),
    "ipsec tunnel": x509.ObjectIdentifier("1.3.6.1.5.5.7.3.6"),
    "ipsec user": x509.ObjectIdentifier("1.3.6.1.5.5.7.3.7"),
    "timestamping": ExtendedKeyUsageOID.TIME_STAMPING,
    "ocsp signing": ExtendedKeyUsageOID.OCSP_SIGNING,
    "microsoft sgc": x509.ObjectIdentifier("1.3.6.1.4.1.311.10.3.3"),
    "netscape sgc": x509.ObjectIdentifier("2.16.840.1.113730.4.1"),
}
SUBJECT = (
    *(NameOID.COUNTRY_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.LOCALITY_NAME),
    *(NameOID.STATE_OR_PROVINCE_NAME, NameOID.STREET_ADDRESS, NameOID.POSTAL_CODE),
)
"""Attributes that a subject may have beside common name and serial number. Others are dropped."""
ALTERNATIVE_NAME_TYPES = {
    x509.DNSName: "DNS",
    x509.RFC822Name: "Email",
    x509.IPAddress: "IP",
    x509.UniformResourceIdentifier: "URI",
}
"""Types of alternative names that a certificate may have, in this order. Others are dropped."""


class CannotSign(Exception):
    """The CA cannot issue this certificate."""


@dataclass(frozen=True)
class SigningCa:
    certificate: x509.Certificate
    key: CertificateIssuerPrivateKeyTypes


def rule_violation(signer: str, request: x509.CertificateSigningRequest, usages: Iterable[str]) -> str:
    """Return the rule of its signer that a request violates, in Kubernetes' wording, or an empty string."""
    match signer:
        case "kubernetes.io/kube-apiserver-client":
            return client_usage_violation(list(usages))
        case "kubernetes.io/kube-apiserver-client-kubelet":
            return kubelet_rule_violation(request, set(usages), "client auth")
        case "kubernetes.io/kubelet-serving":
            return kubelet_rule_violation(request, set(usages), "server auth")
    return ""


def client_usage_violation(usages: list[str]) -> str:
    for usage in usages:
        if usage not in ("digital signature", "key encipherment", "client auth"):
            return f"invalid usage for client certificate: {usage}"
    return "" if "client auth" in usages else "missing required usage for client certificate: client auth"


def kubelet_rule_violation(request: x509.CertificateSigningRequest, usages: set[str], purpose: str) -> str:
    if organizations(request) != [NODES_GROUP]:
        return f"subject organization is not {NODES_GROUP}"
    try:
        types = {ALTERNATIVE_NAME_TYPES.get(type(name), "") for name in alternative_names(request)}
    except ValueError as error:
        return f"subjectAltNames cannot be read: {error}"
    if purpose == "server auth" and not types & {"DNS", "IP"}:
        return "DNS or IP subjectAltName is required"
    forbidden = ("Email", "URI") if purpose == "server auth" else ("DNS", "Email", "IP", "URI")
    for name_type in forbidden:
        if name_type in types:
            return f"{name_type} subjectAltNames are not allowed"
    if not common_name(request).startswith(NODE_USER_PREFIX):
        return f"subject common name does not begin with {NODE_USER_PREFIX}"
    required = {"digital signature", "key encipherment", purpose}
    if usages not in (required, required - {"key encipherment"}):
        return f"usages did not match [{' '.join(sorted(required))}]"
    return ""


def lifetime(seconds: int | None) -> timedelta:
    """Return the lifetime of a certificate: the requested one, limited to between ten minutes and a year."""
    return MAX_LIFETIME if seconds is None else min(max(timedelta(seconds=seconds), MIN_LIFETIME), MAX_LIFETIME)


def signed_certificate(
    ca: SigningCa,
    request: x509.CertificateSigningRequest,
    usages: Iterable[str],
    seconds: int | None,
    now: datetime,
    earliest: datetime | None = None,
) -> x509.Certificate:
    """Issue the requested certificate, valid from `earliest` at the earliest. Raises CannotSign."""
    duration, ca_expiry = lifetime(seconds), ca.certificate.not_valid_after_utc
    if now >= ca_expiry:
        raise CannotSign(f"the CA {ca.certificate.subject.rfc4514_string()} expired at {ca_expiry:%Y-%m-%dT%H:%M:%SZ}")
    if not request.is_signature_valid:
        raise CannotSign("unable to verify certificate request signature")
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject_of(request))
        .issuer_name(ca.certificate.subject)
        .public_key(request.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(max(now - BACKDATED, earliest or now - BACKDATED))
        .not_valid_after(min(now + (duration if duration < SHORT_LIVED else duration - BACKDATED), ca_expiry))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    for extension, is_critical in extensions_of(ca.certificate, request, list(usages)):
        builder = builder.add_extension(extension, critical=is_critical)
    return builder.sign(ca.key, hash_for(ca.key))


def subject_of(request: x509.CertificateSigningRequest) -> x509.Name:
    """Return the requested subject with exactly one common name, so that the user name is unambiguous."""
    attributes = [each for oid in SUBJECT for each in request.subject.get_attributes_for_oid(oid)]
    if name := common_name(request):
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, name))
    numbers = request.subject.get_attributes_for_oid(NameOID.SERIAL_NUMBER)
    return x509.Name([*attributes, *numbers[-1:]])


def extensions_of(
    ca: x509.Certificate, request: x509.CertificateSigningRequest, usages: list[str]
) -> Iterable[tuple[x509.ExtensionType, bool]]:
    flags = {KEY_USAGES[each] for each in usages if each in KEY_USAGES}
    if "key_agreement" not in flags:
        flags -= {"encipher_only", "decipher_only"}  # undefined without key_agreement
    if flags:
        yield key_usage(*flags), True
    purposes = dict.fromkeys(EXTENDED_KEY_USAGES[each] for each in usages if each in EXTENDED_KEY_USAGES)
    if purposes:
        yield x509.ExtendedKeyUsage(purposes), False
    try:
        requested = alternative_names(request)
    except ValueError as error:
        raise CannotSign(f"subjectAltNames cannot be read: {error}") from error
    names = [each for name_type in ALTERNATIVE_NAME_TYPES for each in requested if type(each) is name_type]
    if names:
        yield x509.SubjectAlternativeName(names), not list(request.subject)
    yield from ((extension, False) for extension in authority_key_identifier(ca))
