"""Comparison of our certificate signers with those of kube-controller-manager."""

import base64
import ipaddress
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tapestry.apiserver.access.certificates import CertificateAuthority, subject_name
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.watch import wait_for
from tapestry.controlplane.certificates import condition_of
from tapestry.controlplane.signers import (
    BACKDATED,
    CLIENT,
    KUBELET_CLIENT,
    KUBELET_SERVING,
    SigningCa,
    rule_violation,
    signed_certificate,
)
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import SIGNING_REQUESTS

from .processes import running
from .servers import OwnServer

KEY = ec.generate_private_key(ec.SECP256R1())
NODE = subject_name("system:node:n1", ["system:nodes"])
DNS, IP = x509.DNSName("n1"), x509.IPAddress(ipaddress.ip_address("10.0.0.1"))
EMAIL, URI = x509.RFC822Name("a@b.c"), x509.UniformResourceIdentifier("https://a.b")
AS_CLIENT, AS_SERVER = ("digital signature", "client auth"), ("digital signature", "key encipherment", "server auth")
TWO_NAMES = x509.Name(
    [
        x509.NameAttribute(NameOID.COMMON_NAME, "root"),
        x509.NameAttribute(NameOID.USER_ID, "7"),
        x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "unit"),
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "devs"),
        x509.NameAttribute(NameOID.COMMON_NAME, "jane"),
    ]
)
SigningCase = tuple[str, x509.Name, list[x509.GeneralName], tuple[str, ...], int | None]
CASES: list[SigningCase] = [
    (CLIENT, subject_name("jane", ["devs", "ops"]), [], ("client auth",), None),
    (CLIENT, subject_name("jane"), [DNS, IP, EMAIL, URI], ("client auth", "key encipherment"), 3600),
    (CLIENT, TWO_NAMES, [], ("client auth", "digital signature"), 86400),
    (CLIENT, subject_name("jane"), [], ("digital signature",), None),
    (CLIENT, subject_name("jane"), [], ("client auth", "server auth"), None),
    (KUBELET_CLIENT, NODE, [], AS_CLIENT, 600),
    (KUBELET_CLIENT, NODE, [], (*AS_CLIENT, "key encipherment"), 10**9),
    *((KUBELET_CLIENT, NODE, [name], AS_CLIENT, None) for name in (DNS, IP, EMAIL, URI)),
    (KUBELET_CLIENT, NODE, [], AS_SERVER, None),
    (KUBELET_CLIENT, subject_name("n1", ["system:nodes"]), [], AS_CLIENT, None),
    (KUBELET_CLIENT, subject_name("system:node:n1", ["system:nodes", "devs"]), [], AS_CLIENT, None),
    (KUBELET_SERVING, NODE, [DNS, IP], AS_SERVER, None),
    (KUBELET_SERVING, NODE, [IP], ("digital signature", "server auth"), 30000),
    (KUBELET_SERVING, NODE, [], AS_SERVER, None),
    *((KUBELET_SERVING, NODE, [DNS, name], AS_SERVER, None) for name in (EMAIL, URI)),
    (KUBELET_SERVING, NODE, [DNS], AS_CLIENT, None),
]


def new_request(name: x509.Name, names: list[x509.GeneralName]) -> x509.CertificateSigningRequest:
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(KEY, hashes.SHA256())


def new_object(number: int, case: SigningCase) -> Object:
    signer, name, names, usages, seconds = case
    text = base64.b64encode(new_request(name, names).public_bytes(serialization.Encoding.PEM)).decode()
    spec = {"request": text, "signerName": signer, "usages": list(usages)}
    return {"metadata": {"name": f"r{number}"}, "spec": spec | ({"expirationSeconds": seconds} if seconds else {})}


def is_answered(request: Object | None) -> bool:
    return request is not None and bool(value_at(request, "status", "certificate") or condition_of(request, "Failed"))


def features(certificate: x509.Certificate) -> dict[str, object]:
    """Properties that two certificates for the same request must share."""
    extensions = {each.oid.dotted_string: (each.critical, each.value) for each in certificate.extensions}
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    name = sorted((each.oid.dotted_string, each.value) for each in certificate.subject)
    return {"extensions": extensions, "life": life, "subject": name, "issuer": certificate.issuer}


@pytest.mark.kubernetes
async def test_kube_controller_manager_signs_the_same_certificates(kube_assets: Path, tmp_path: Path) -> None:
    with OwnServer(tmp_path / "data", "--controllers=none") as server:
        authority = CertificateAuthority(server.ca.parent)
        files = ["--cluster-signing-cert-file", server.ca, "--cluster-signing-key-file", authority.key_file]
        flags = ["--kubeconfig", server.kubeconfig, "--secure-port=0", "--leader-elect=false"]
        names = "--controllers=certificatesigningrequest-signing-controller"
        manager = [kube_assets / "kube-controller-manager", *flags, *files, names]
        client = Client(HttpTransport(load_access([server.kubeconfig], environ={})))
        with running(manager, tmp_path / "controllers.log"):
            async with client:
                different = [
                    each for each in [await compared(client, authority, *one) for one in enumerate(CASES)] if each
                ]
    assert not different, "\n".join(different)


async def compared(client: Client, authority: CertificateAuthority, number: int, case: SigningCase) -> str:
    """Describe how the two signers differ for one request.  Empty if they agree."""
    made = await client.create(SIGNING_REQUESTS, new_object(number, case))
    approved = {"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "ByHand"}]}}
    await client.patch(SIGNING_REQUESTS, made, approved, subresource="approval")
    found = await wait_for(client, SIGNING_REQUESTS, f"r{number}", until=is_answered, timeout=60)
    assert found is not None
    signer, name, names, usages, seconds = case
    request = new_request(name, names)
    theirs, ours = condition_of(found, "Failed") or {}, rule_violation(signer, request, usages)
    if theirs.get("message", "") != ours or (ours and theirs["reason"] != "SignerValidationFailure"):
        return f"{case}: theirs {theirs}, ours {ours!r}"
    if ours:
        return ""
    certificate = x509.load_pem_x509_certificate(base64.b64decode(value_at(found, "status", "certificate")))
    pair = authority.key_pair()
    assert pair is not None
    now = certificate.not_valid_before_utc + BACKDATED
    own = signed_certificate(SigningCa(*pair), request, usages, seconds, now)
    both = [features(each) for each in (certificate, own)]
    if abs(both[0].pop("life") - both[1].pop("life")) > timedelta(seconds=2) or both[0] != both[1]:  # type: ignore[operator]
        return f"{case}:\n  theirs {both[0]}\n  ours   {both[1]}"
    return ""
