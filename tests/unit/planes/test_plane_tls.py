"""TLS of a shared listener: certificates by server name, requests for client certificates, and sessions."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from tapestry.apiserver.access import certificates, openssl, reloading_file
from tapestry.apiserver.access.certificates import CertificateAuthority, write_private_file
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.planes import plane_tls
from tapestry.planes.plane_credentials import load_certificates
from tapestry.planes.plane_names import PlaneNames
from tapestry.planes.plane_tls import PlaneTls

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
Pair = tuple[ssl.SSLObject, ssl.SSLObject]


class Planes:
    """Two planes with their CAs, and the TLS of their listener."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.names, self.clock = folder, PlaneNames(extra_names=("10.0.0.1", "api.example.org")), 0.0
        self.configs = {each: ApiServerConfig(file_rootpath=str(folder / each)) for each in ("a", "b")}
        for each in ("a", "b"):
            self.authority(each).certificate_pem()
        self.tls = PlaneTls(folder / "process", self.names, self.configs.get, lambda: self.clock)
        self.context = self.tls.listener_context()

    def authority(self, plane_id: str) -> CertificateAuthority:
        return CertificateAuthority(self.folder / plane_id / "pki")

    def client_context(self, plane_id: str, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
        """Return the context of the admin of a plane, who does not verify servers."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode, context.maximum_version = False, ssl.CERT_NONE, version
        context.load_cert_chain(*self.authority(plane_id).client_certificate("admin", ["system:masters"]))
        return context

    def handshake(
        self, client_context: ssl.SSLContext, server_name: str, session: ssl.SSLSession | None = None
    ) -> Pair:
        """Return the server side and the client side of a connection."""
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = client_context.wrap_bio(to_client, to_server, server_hostname=server_name, session=session)
        server = self.context.wrap_bio(to_server, to_client, server_side=True)
        unfinished = [client, server]
        while unfinished:
            for each in list(unfinished):
                try:
                    each.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                unfinished.remove(each)
        server.write(b"x")
        client.read()
        return server, client

    def subject(self, server: ssl.SSLObject, plane_id: str) -> dict[str, list[str]] | None:
        return self.tls.peer_subject(server, lambda: load_certificates(self.authority(plane_id).certificate_file))


@pytest.fixture
def planes(tmp_path: Path) -> Planes:
    return Planes(tmp_path)


def serving_certificate(client: ssl.SSLObject) -> x509.Certificate:
    return x509.load_der_x509_certificate(client.getpeercert(binary_form=True) or b"")


def issuer_of(client: ssl.SSLObject) -> x509.Name:
    return serving_certificate(client).issuer


def ca_subject(authority: CertificateAuthority) -> x509.Name:
    return x509.load_pem_x509_certificate(authority.certificate_pem().encode()).subject


def test_server_name_selects_certificate(planes: Planes) -> None:
    for each in ("a", "b"):
        server, client = planes.handshake(planes.client_context(each), planes.names.server_name(each))
        assert issuer_of(client) == ca_subject(planes.authority(each))
        assert planes.tls.plane_of(server) == each
        names = serving_certificate(client).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert {planes.names.server_name(each), "localhost", "kubernetes.default.svc", "api.example.org"} <= set(
            names.get_values_for_type(x509.DNSName)
        )
        assert "10.0.0.1" in map(str, names.get_values_for_type(x509.IPAddress))


def names_of(client: ssl.SSLObject) -> set[str]:
    """Return the names and addresses in the certificate of a server."""
    names = serving_certificate(client).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    return {*names.get_values_for_type(x509.DNSName), *map(str, addresses)}


def test_extra_names_are_in_the_certificate_of_one_plane(planes: Planes) -> None:
    def names(each: str) -> set[str]:
        return names_of(planes.handshake(planes.client_context(each), planes.names.server_name(each))[1])

    before = {each: names(each) for each in ("a", "b")}
    own = {"10.96.0.40", "kubernetes.tenant-a.svc"}
    planes.tls.set_extra_names("a", ("10.96.0.40", "kubernetes.tenant-a.svc"))
    assert names("a") == before["a"] | own
    assert names("b") == before["b"]
    planes.tls.set_extra_names("a", ("10.96.0.41",))
    assert names("a") == before["a"] | {"10.96.0.41"}
    planes.tls.set_extra_names("a", ())
    assert before["a"] <= names("a")  # a certificate with more names is used again


def test_equal_extra_names_build_no_new_context(planes: Planes, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect() -> ssl.SSLObject:
        return planes.handshake(planes.client_context("a"), planes.names.server_name("a"))[1]

    planes.tls.set_extra_names("a", ("10.96.0.40",))
    serial = serving_certificate(connect()).serial_number
    monkeypatch.setattr(plane_tls, "reloading_tls_context", lambda *_: pytest.fail("the context is built again"))
    planes.tls.set_extra_names("a", ("10.96.0.40",))
    assert serving_certificate(connect()).serial_number == serial


def test_unknown_plane_may_have_extra_names(planes: Planes) -> None:
    planes.tls.set_extra_names("later", ("10.96.0.40",))
    _, client = planes.handshake(planes.client_context("a"), planes.names.server_name("later"))
    assert "10.96.0.40" not in names_of(client), "the certificate of the process has no names of planes"


@pytest.mark.parametrize("name", ["localhost", "unknown.planes.tapestry.local", "planes.tapestry.local"])
def test_other_names_get_certificate_of_process(planes: Planes, name: str) -> None:
    _, client = planes.handshake(planes.client_context("a"), name)
    assert issuer_of(client) == ca_subject(CertificateAuthority(planes.folder / "process" / "pki"))


@pytest.mark.parametrize("version", VERSIONS)
def test_client_certificates_are_requested_only_for_planes(planes: Planes, version: ssl.TLSVersion) -> None:
    server, _ = planes.handshake(planes.client_context("a", version), planes.names.server_name("a"))
    assert planes.subject(server, "a") is not None
    assert (planes.subject(server, "a") or {})["commonName"] == ["admin"]
    server, _ = planes.handshake(planes.client_context("a", version), "localhost")
    assert not server.getpeercert(binary_form=True)
    assert planes.subject(server, "a") == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_certificate_of_another_plane_is_not_verified(planes: Planes, version: ssl.TLSVersion) -> None:
    server, _ = planes.handshake(planes.client_context("a", version), planes.names.server_name("b"))
    assert planes.subject(server, "b") is None


def test_certificate_is_verified_again_for_the_plane(planes: Planes) -> None:
    server, _ = planes.handshake(planes.client_context("a"), planes.names.server_name("a"))
    assert planes.subject(server, "a")
    assert planes.subject(server, "b") is None  # although OpenSSL has verified it
    assert planes.tls.peer_subject(server, list) is None
    assert planes.subject(server, "a")


@pytest.mark.parametrize("version", VERSIONS)
def test_session_is_not_resumed_under_any_name(planes: Planes, version: ssl.TLSVersion) -> None:
    client_context = planes.client_context("a", version)
    _, client = planes.handshake(client_context, planes.names.server_name("a"))
    for name in (planes.names.server_name("a"), planes.names.server_name("b"), "localhost"):
        server, _ = planes.handshake(client_context, name, client.session)
        assert not server.session_reused
        assert not planes.subject(server, "b")


@pytest.mark.parametrize("version", VERSIONS)
def test_resumed_session_of_one_plane_is_worthless_at_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: ssl.TLSVersion
) -> None:
    monkeypatch.setattr(certificates, "disable_sessions", lambda _: None)
    planes = Planes(tmp_path)
    client_context = planes.client_context("a", version)
    server, client = planes.handshake(client_context, planes.names.server_name("a"))
    assert planes.subject(server, "a")
    server, _ = planes.handshake(client_context, planes.names.server_name("b"), client.session)
    assert server.session_reused
    assert server.getpeercert(binary_form=True)
    assert planes.subject(server, "b") is None
    assert planes.subject(server, "a") is None


def test_client_certificates_are_verified_without_openssl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openssl, "OPENSSL", None)
    planes = Planes(tmp_path)
    server, _ = planes.handshake(planes.client_context("a"), planes.names.server_name("a"))
    assert planes.subject(server, "a")
    with pytest.raises(ssl.SSLError):
        planes.handshake(planes.client_context("a"), planes.names.server_name("b"))


def test_own_port_is_for_one_plane(planes: Planes) -> None:
    planes.context = planes.tls.listener_context("a")
    for name in ("localhost", planes.names.server_name("a")):
        server, _ = planes.handshake(planes.client_context("a"), name)
        assert planes.tls.plane_of(server) == "a"
        assert planes.subject(server, "a")
    with pytest.raises(ssl.SSLError):
        planes.handshake(planes.client_context("a"), planes.names.server_name("b"))


def test_context_is_built_once_until_files_change(planes: Planes, tmp_path: Path) -> None:
    context = planes.tls.plane_context("a")
    assert context is not None
    assert planes.tls.plane_context("a") is context
    planes.clock += plane_tls.RENEWAL_SECONDS
    renewed = planes.tls.plane_context("a")
    assert renewed is not context
    other = CertificateAuthority(tmp_path / "other")
    other.certificate_pem()
    for before, after in ((other.certificate_file, "ca.crt"), (other.key_file, "ca.key")):
        write_private_file(planes.folder / "a" / "pki" / after, before.read_bytes())
    assert planes.tls.plane_context("a") is not renewed
    del planes.configs["a"]
    assert planes.tls.plane_context("a") is None


def test_number_of_contexts_is_bounded(planes: Planes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane_tls, "MAX_CONTEXTS", 1)
    first = planes.tls.plane_context("a")
    planes.tls.plane_context("b")
    assert planes.tls.plane_context("a") is not first


def test_unusable_certificate_is_retried_later(planes: Planes, caplog: pytest.LogCaptureFixture) -> None:
    key_file = planes.authority("a").key_file
    key = key_file.read_bytes()
    key_file.write_bytes(b"x")
    assert planes.tls.plane_context("a") is None
    key_file.write_bytes(key)
    assert planes.tls.plane_context("a") is None
    assert caplog.text.count("plane certificate unusable") == 1
    planes.clock += plane_tls.RETRY_SECONDS
    assert planes.tls.plane_context("a") is not None


def test_certificate_of_the_process_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloading_file, "CHECK_INTERVAL", 0.0)
    monkeypatch.setattr(plane_tls, "RENEWAL_SECONDS", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(certificates, "LIFETIME", timedelta(days=29))
        planes = Planes(tmp_path)
    context = planes.client_context("a")
    found = {planes.handshake(context, "localhost")[1].getpeercert(binary_form=True) for _ in range(2)}
    (renewed,) = [x509.load_der_x509_certificate(each or b"") for each in found]
    assert renewed.not_valid_after_utc - datetime.now(UTC) > timedelta(days=300)
