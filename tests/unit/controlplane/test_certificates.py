"""Tests of signers and of the certificate controllers."""

import base64
import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.access.revocations import revoke_user_certificates
from tapestry.apiserver.core.requests import User
from tapestry.apiserver.handlers.server import Server
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller.store import Store
from tapestry.controlplane.certificates import (
    SIGNING_REQUESTS,
    Cleaner,
    Signer,
    approval_permissions,
    deletion_time,
    install_signing,
)
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.controlplane.signers import (
    CLIENT,
    KUBELET_CLIENT,
    KUBELET_SERVING,
    LEGACY,
    CannotSign,
    SigningCa,
    lifetime,
    rule_violation,
    signed_certificate,
)
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import CLUSTER_ROLE_BINDINGS

from .conftest import RunControllers

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
KUBELET = ("digital signature", "client auth")
SERVING = ("digital signature", "key encipherment", "server auth")
NODE = {"name": "system:node:n1", "groups": ["system:nodes"]}
KEY = ec.generate_private_key(ec.SECP256R1())


def new_request(
    *more: tuple[x509.ObjectIdentifier, str], name: str = "", groups: list[str] | None = None, names: Any = ()
) -> x509.CertificateSigningRequest:
    attributes = [*((NameOID.ORGANIZATION_NAME, group) for group in groups or []), *more]
    attributes += [(NameOID.COMMON_NAME, name)] if name else []
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(*each) for each in attributes])
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
    return builder.sign(KEY, hashes.SHA256())


def new_object(name: str, request: x509.CertificateSigningRequest, *usages: str, signer: str, **spec: Any) -> Object:
    text = base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode()
    return {
        "metadata": {"name": name},
        "spec": {"request": text, "usages": list(usages), "signerName": signer, **spec},
    }


def decided(type: str, at: datetime = NOW, **more: Any) -> Object:
    return {"type": type, "status": "True", "lastUpdateTime": at.strftime("%Y-%m-%dT%H:%M:%SZ"), **more}


async def approve(client: Client, request: Object) -> None:
    patch = {"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "ByHand"}]}}
    await client.patch(SIGNING_REQUESTS, request, patch, subresource="approval")


def certificate_in(request: Object | None) -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(value_at(request, "status", "certificate")))


def is_signed(request: Object | None) -> bool:
    return value_at(request, "status", "certificate") is not None


# -- signer rules


DNS, IP = x509.DNSName("n1"), x509.IPAddress(ipaddress.ip_address("10.0.0.1"))
EMAIL, URI = x509.RFC822Name("a@b.c"), x509.UniformResourceIdentifier("https://a.b")


@pytest.mark.parametrize(
    ("signer", "request_", "usages", "words"),
    [
        (CLIENT, new_request(name="jane", groups=["devs"]), ("client auth",), ""),
        (CLIENT, new_request(name="jane"), ("digital signature",), "missing required usage"),
        (CLIENT, new_request(name="jane"), ("client auth", "server auth"), "invalid usage for client certificate"),
        (KUBELET_CLIENT, new_request(**NODE), KUBELET, ""),
        (KUBELET_CLIENT, new_request(**NODE), (*KUBELET, "key encipherment"), ""),
        (KUBELET_CLIENT, new_request(**NODE), (*KUBELET, "server auth"), "usages did not match"),
        (KUBELET_CLIENT, new_request(**NODE, names=[DNS]), KUBELET, "DNS subjectAltNames are not allowed"),
        (KUBELET_CLIENT, new_request(**NODE, names=[IP]), KUBELET, "IP subjectAltNames are not allowed"),
        (KUBELET_CLIENT, new_request(**NODE, names=[URI]), KUBELET, "URI subjectAltNames are not allowed"),
        (KUBELET_CLIENT, new_request(name="system:node:n1"), KUBELET, "organization is not system:nodes"),
        (KUBELET_CLIENT, new_request(name="n1", groups=["system:nodes"]), KUBELET, "does not begin with system:node:"),
        (
            KUBELET_CLIENT,
            new_request(name="system:node:n1", groups=["system:nodes", "system:masters"]),
            KUBELET,
            "organization is not system:nodes",
        ),
        (KUBELET_SERVING, new_request(**NODE, names=[DNS, IP]), SERVING, ""),
        (KUBELET_SERVING, new_request(**NODE), SERVING, "DNS or IP subjectAltName is required"),
        (KUBELET_SERVING, new_request(**NODE, names=[DNS, EMAIL]), SERVING, "Email subjectAltNames are not allowed"),
        (KUBELET_SERVING, new_request(**NODE, names=[DNS]), KUBELET, "usages did not match"),
        (LEGACY, new_request(name="anybody", names=[EMAIL]), ("code signing",), ""),
    ],
)
def test_signer_rules_are_enforced(
    signer: str, request_: x509.CertificateSigningRequest, usages: tuple[str, ...], words: str
) -> None:
    found = rule_violation(signer, request_, usages)
    assert words in found
    assert bool(found) is bool(words)


@pytest.mark.parametrize(
    ("seconds", "found"), [(None, 365 * 86400), (3600, 3600), (1, 600), (600, 600), (10**9, 365 * 86400)]
)
def test_lifetime_is_limited(seconds: int | None, found: int) -> None:
    assert lifetime(seconds) == timedelta(seconds=found)


def new_ca(tmp_path: Path) -> SigningCa:
    pair = CertificateAuthority(tmp_path).key_pair()
    assert pair is not None
    return SigningCa(*pair)


def test_certificate_has_requested_fields_and_is_no_ca(tmp_path: Path) -> None:
    ca, now = new_ca(tmp_path), datetime.now(UTC).replace(microsecond=0)
    other = x509.OtherName(x509.ObjectIdentifier("1.2.3"), b"\x05\x00")
    certificate = signed_certificate(ca, new_request(**NODE, names=[DNS, IP, other]), SERVING, 3600, now)
    certificate.verify_directly_issued_by(ca.certificate)
    assert (certificate.not_valid_before_utc, certificate.not_valid_after_utc) == (
        now - timedelta(minutes=5),
        now + timedelta(hours=1),
    )
    extensions = certificate.extensions
    assert list(extensions.get_extension_for_class(x509.SubjectAlternativeName).value) == [DNS, IP]
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.digital_signature, usage.key_encipherment, usage.key_cert_sign) == (True, True, False)
    long = signed_certificate(ca, new_request(**NODE), SERVING, None, now)
    assert long.not_valid_after_utc == now + timedelta(days=365, minutes=-5)


def test_certificate_has_one_name_and_expires_with_ca(tmp_path: Path) -> None:
    ca = new_ca(tmp_path)
    two = new_request((NameOID.COMMON_NAME, "admin"), (NameOID.USER_ID, "7"), name="jane", groups=["devs"])
    end = ca.certificate.not_valid_after_utc
    certificate = signed_certificate(ca, two, ("client auth",), None, end - timedelta(days=1))
    assert certificate.subject.rfc4514_string() == "CN=jane,O=devs"
    assert certificate.not_valid_after_utc == end
    with pytest.raises(CannotSign, match="expired"):
        signed_certificate(ca, two, ("client auth",), None, end)


def test_new_certificate_of_revoked_user_is_valid(tmp_path: Path) -> None:
    authority, now = CertificateAuthority(tmp_path / "pki"), datetime.now(UTC).replace(microsecond=0)
    revoke_user_certificates(tmp_path, "jane", now)
    signer = Signer(Store(), None, authority, lambda: now)  # type: ignore[arg-type]
    starts = {}
    for name in ("jane", "joe"):
        status = signer.signing_status(new_object("r", new_request(name=name), "client auth", signer=CLIENT))
        certificate = x509.load_pem_x509_certificate(base64.b64decode(status["certificate"]))
        starts[name] = certificate.not_valid_before_utc
    assert starts == {"jane": now, "joe": now - timedelta(minutes=5)}


@pytest.mark.parametrize("key", [rsa.generate_private_key(65537, 2048), ed25519.Ed25519PrivateKey.generate()])
def test_custom_ca_signs_with_any_key_type(tmp_path: Path, key: Any) -> None:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    own = CertificateAuthority(tmp_path / "created").key_pair()
    assert own is not None
    builder = x509.CertificateBuilder().subject_name(own[0].subject).issuer_name(own[0].subject)
    builder = builder.public_key(key.public_key()).serial_number(1)
    builder = builder.not_valid_before(NOW - timedelta(days=1)).not_valid_after(NOW + timedelta(days=900))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    ca = builder.sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
    (tmp_path / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    authority = CertificateAuthority(tmp_path)
    assert not authority.can_sign
    assert authority.key_pair() is None
    with pytest.raises(ValueError, match="has no key"):
        authority.server_certificate(["localhost"])
    assert (tmp_path / "ca.crt").read_bytes() == ca.public_bytes(serialization.Encoding.PEM)
    (tmp_path / "ca.key").write_bytes(CertificateAuthority(tmp_path / "created").key_file.read_bytes())
    with pytest.raises(ValueError, match="this is not the key of"):
        authority.key_pair()
    (tmp_path / "ca.key").write_bytes(private)
    signed_certificate(
        new_ca(tmp_path), new_request(name="jane"), ("client auth",), None, NOW
    ).verify_directly_issued_by(ca)
    authority.server_certificate(["localhost"])


def test_missing_key_disables_signing_with_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "ca.crt").write_text("another CA")
    install_signing(None, CertificateAuthority(tmp_path))  # type: ignore[arg-type]
    assert "certificate signing disabled" in caplog.text
    signer = Signer(Store(), None, CertificateAuthority(tmp_path), lambda: NOW)  # type: ignore[arg-type]
    with pytest.raises(CannotSign, match="has no key file beside it"):
        signer.signing_status(new_object("r", new_request(name="jane"), "client auth", signer=CLIENT))


# -- approval


def test_only_kubelet_requests_are_approved_automatically() -> None:
    request = new_object("r", new_request(**NODE), *KUBELET, signer=KUBELET_CLIENT, username="system:node:n1")
    assert approval_permissions(request) == ["selfnodeclient", "nodeclient"]
    assert approval_permissions({**request, "spec": {**request["spec"], "username": "bootstrap"}}) == ["nodeclient"]
    assert approval_permissions({**request, "spec": {**request["spec"], "signerName": CLIENT}}) == []
    assert approval_permissions({**request, "spec": {**request["spec"], "usages": ["client auth"]}}) == []


def bound_to(role: str, group: str) -> Object:
    api = "rbac.authorization.k8s.io"
    name = f"system:certificates.k8s.io:certificatesigningrequests:{role}"
    return {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": api, "kind": "Group", "name": group}],
    }


async def test_kubelet_renewal_is_approved_and_signed(
    server: Server, client: Client, run_controllers: RunControllers
) -> None:
    kubelet = Client(InProcessTransport(server, User("system:node:n1", ("system:nodes", "system:authenticated"))))
    async with run_controllers("csrapproving", "csrsigning"):
        await kubelet.create(SIGNING_REQUESTS, new_object("r", new_request(**NODE), *KUBELET, signer=KUBELET_CLIENT))
        await client.create(CLUSTER_ROLE_BINDINGS, bound_to("selfnodeclient", "system:nodes"))
        found = await wait_for(client, SIGNING_REQUESTS, "r", until=is_signed, timeout=10)
        [condition] = value_at(found, "status", "conditions")
        assert (condition["type"], condition["reason"]) == ("Approved", "AutoApproved")
        subject = certificate_in(found).subject.rfc4514_string()
        assert subject == "CN=system:node:n1,O=system:nodes"


async def test_kubelet_without_permission_stays_pending(
    server: Server, client: Client, run_controllers: RunControllers
) -> None:
    kubelet = Client(InProcessTransport(server, User("system:node:n1", ("system:nodes", "system:authenticated"))))
    async with run_controllers("csrapproving", "csrsigning"):
        created = await kubelet.create(
            SIGNING_REQUESTS, new_object("r", new_request(**NODE), *KUBELET, signer=KUBELET_CLIENT)
        )
        other = await client.create(
            SIGNING_REQUESTS, new_object("o", new_request(name="jane"), "client auth", signer=CLIENT)
        )
        await approve(client, other)
        await wait_for(client, SIGNING_REQUESTS, "o", until=is_signed, timeout=10)
        assert not value_at(await client.get(SIGNING_REQUESTS, "r"), "status", "conditions")
        with pytest.raises(Forbidden):
            await approve(kubelet, created)


# -- signing


async def test_approved_request_is_signed_by_server_ca(
    client: Client, run_controllers: RunControllers, tmp_path: Path
) -> None:
    async with run_controllers("csrsigning"):
        request = new_object("r", new_request(name="jane"), "client auth", signer=CLIENT, expirationSeconds=3600)
        created = await client.create(SIGNING_REQUESTS, request)
        await approve(client, created)
        certificate = certificate_in(await wait_for(client, SIGNING_REQUESTS, "r", until=is_signed, timeout=10))
        authority = x509.load_pem_x509_certificate(CertificateAuthority(tmp_path / "pki").certificate_pem().encode())
        certificate.verify_directly_issued_by(authority)
        assert timedelta(minutes=59) < certificate.not_valid_after_utc - datetime.now(UTC) <= timedelta(hours=1)


async def test_violating_request_fails_with_reason(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("csrsigning"):
        for name, signer in (("bad", CLIENT), ("foreign", "example.com/own")):
            request = new_object(name, new_request(name="jane"), "server auth", signer=signer)
            await approve(client, await client.create(SIGNING_REQUESTS, request))
        found = await wait_for(
            client,
            SIGNING_REQUESTS,
            "bad",
            until=lambda each: len(value_at(each, "status", "conditions")) == 2,
            timeout=10,
        )
        failed = value_at(found, "status", "conditions", 1)
        assert (failed["type"], failed["reason"]) == ("Failed", "SignerValidationFailure")
        assert failed["message"] == "invalid usage for client certificate: server auth"
        assert not is_signed(found)
        foreign = await client.get(SIGNING_REQUESTS, "foreign")
        assert [each["type"] for each in value_at(foreign, "status", "conditions")] == ["Approved"]


async def test_denied_request_is_not_signed(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("csrsigning"):
        for name, type in (("no", "Denied"), ("yes", "Approved")):
            created = await client.create(
                SIGNING_REQUESTS, new_object(name, new_request(name="jane"), "client auth", signer=CLIENT)
            )
            patch = {"status": {"conditions": [{"type": type, "status": "True", "reason": "ByHand"}]}}
            await client.patch(SIGNING_REQUESTS, created, patch, subresource="approval")
        await wait_for(client, SIGNING_REQUESTS, "yes", until=is_signed, timeout=10)
        assert not is_signed(await client.get(SIGNING_REQUESTS, "no"))


# -- cleanup


def new_decided_request(*conditions: Object, certificate: str = "") -> Object:
    status = {
        **({"conditions": list(conditions)} if conditions else {}),
        **({"certificate": certificate} if certificate else {}),
    }
    created = NOW.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"metadata": {"name": "r", "creationTimestamp": created, "uid": "u"}, "spec": {}, "status": status}


def test_deletion_time_depends_on_decision(tmp_path: Path) -> None:
    hour, day = timedelta(hours=1), timedelta(days=1)
    assert deletion_time(new_decided_request()) == NOW + day
    assert deletion_time(new_decided_request(decided("Denied"))) == NOW + hour
    assert deletion_time(new_decided_request(decided("Approved"), decided("Failed", NOW + hour))) == NOW + 2 * hour
    assert deletion_time(new_decided_request(decided("Approved"))) is None  # another signer may still sign it
    short = signed_certificate(new_ca(tmp_path), new_request(name="jane"), ("client auth",), 600, NOW)
    for certificate, ends in ((short, NOW + timedelta(minutes=10)), (None, NOW + hour)):
        pem = certificate.public_bytes(serialization.Encoding.PEM) if certificate is not None else b"?"
        text = base64.b64encode(pem).decode()
        assert deletion_time(new_decided_request(decided("Approved"), certificate=text)) == ends


async def test_only_old_requests_are_deleted(client: Client) -> None:
    for name in ("old", "young"):
        await client.create(SIGNING_REQUESTS, new_object(name, new_request(name="jane"), "client auth", signer=CLIENT))
    store = Store()
    for name in ("old", "young"):
        store.put(name, await client.get(SIGNING_REQUESTS, name))
    created_at = datetime.now(UTC)
    cleaner = Cleaner(store, client, lambda: created_at + timedelta(hours=23))
    result = await cleaner.reconcile("young")
    assert result is not None
    assert result.requeue_at is not None
    late = Cleaner(store, client, lambda: created_at + timedelta(hours=25))
    assert await late.reconcile("old") is None
    assert [each["metadata"]["name"] for each in await client.list(SIGNING_REQUESTS)] == ["young"]
