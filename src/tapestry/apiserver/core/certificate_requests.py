"""Parsing of the PKCS #10 request in a CertificateSigningRequest."""

import base64
import binascii

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.x509.oid import NameOID

SIGNING_REQUESTS = "certificatesigningrequests.certificates.k8s.io"
NOT_A_REQUEST = "PEM block type must be CERTIFICATE REQUEST"


def parse_request(text: str) -> x509.CertificateSigningRequest:
    """Parse `spec.request`, which is base64-encoded PEM. Raises ValueError."""
    try:
        return x509.load_pem_x509_csr(base64.b64decode(text))
    except (ValueError, binascii.Error, UnsupportedAlgorithm) as error:
        raise ValueError(NOT_A_REQUEST) from error


def common_name(request: x509.CertificateSigningRequest) -> str:
    """Return the requested user: the last common name, as in Kubernetes."""
    names = subject_values(request.subject, NameOID.COMMON_NAME)
    return names[-1] if names else ""


def organizations(request: x509.CertificateSigningRequest) -> list[str]:
    """Return the requested groups."""
    return subject_values(request.subject, NameOID.ORGANIZATION_NAME)


def subject_values(subject: x509.Name, attribute: x509.ObjectIdentifier) -> list[str]:
    values = (each.value for each in subject.get_attributes_for_oid(attribute))
    return [each.decode("utf-8", "replace") if isinstance(each, bytes) else each for each in values]


def alternative_names(request: x509.CertificateSigningRequest) -> list[x509.GeneralName]:
    """Return the requested subject alternative names. Raises ValueError for malformed ones."""
    try:
        result = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return list(result)
