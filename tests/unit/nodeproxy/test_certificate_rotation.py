"""Sources of the serving certificate: files, a Secret, a request to the cluster, and renewal before it expires."""

import base64
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.core.certificate_requests import alternative_names, parse_request
from tapestry.client.client import Client
from tapestry.controller.testing import InProcessApi
from tapestry.controlplane.signers import SigningCa, signed_certificate
from tapestry.kube.objects import Object, name_of
from tapestry.kube.resources import SIGNING_REQUESTS
from tapestry.nodeproxy.certificate_rotation import (
    CHECK_SECONDS,
    POLL_SECONDS,
    CertificateRotation,
    key_pair_in_files,
    key_pair_in_secret,
)
from tapestry.nodeproxy.client_cas import kubelet_tls
from tapestry.nodeproxy.serving_certificate import KeyPair, ServingCertificate, lifetime_of, self_signed_pair

NAMES = frozenset({"10.96.0.7", "s.ns.svc"})
DAY = timedelta(days=1)


@dataclass
class Replica:
    """A replica with its certificate, and the cluster that signs requests."""

    client: Client
    ca: SigningCa
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    names: frozenset[str] = NAMES
    provided: KeyPair | None = None
    reports: list[str] = field(default_factory=list)
    rotation: CertificateRotation = field(init=False)

    def __post_init__(self) -> None:
        serving = ServingCertificate(partial(kubelet_tls, "", ""), self_signed_pair(["10.0.0.1"]))
        self.rotation = CertificateRotation(
            serving,
            "tapestry-syncer-east",
            lambda: self.names,
            lambda: self.provided,
            self.client,
            self.reports.append,
            lambda: self.now,
        )

    @property
    def pair(self) -> KeyPair:
        return self.rotation.serving.pair

    async def requests(self) -> list[Object]:
        return sorted(
            await self.client.list(SIGNING_REQUESTS), key=lambda each: int(each["metadata"]["resourceVersion"])
        )

    async def decide(self, subresource: str = "status", **status: object) -> None:
        (*_, last) = await self.requests()
        await self.client.patch(SIGNING_REQUESTS, last, {"status": status}, subresource=subresource)

    async def sign(self) -> None:
        spec = (await self.requests())[-1]["spec"]
        signed = signed_certificate(
            self.ca, parse_request(spec["request"]), spec["usages"], spec["expirationSeconds"], self.now
        )
        await self.decide(certificate=base64.b64encode(signed.public_bytes(Encoding.PEM)).decode())

    async def pass_time(self, time: timedelta) -> float:
        self.now += time
        return await self.rotation.check()


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    pair = CertificateAuthority(tmp_path).key_pair()
    assert pair is not None
    api = InProcessApi([SIGNING_REQUESTS], now=lambda: datetime.now(UTC))
    return Replica(Client(api.connect()), SigningCa(*pair))


async def test_certificate_is_requested_and_used(replica: Replica) -> None:
    before = replica.pair
    assert await replica.rotation.check() == POLL_SECONDS
    (request,) = await replica.requests()
    assert {str(each.value) for each in alternative_names(parse_request(request["spec"]["request"]))} == NAMES
    assert await replica.rotation.check() == POLL_SECONDS  # not approved yet
    assert replica.pair == before
    await replica.sign()
    assert await replica.rotation.check() == CHECK_SECONDS
    assert replica.pair.leaf().issuer == replica.ca.certificate.subject
    assert len(await replica.requests()) == 1


async def test_certificate_is_renewed_after_80_percent_of_its_lifetime(replica: Replica) -> None:
    await replica.rotation.check()
    await replica.sign()
    await replica.rotation.check()
    first = replica.pair
    await replica.pass_time(23 * DAY)
    assert len(await replica.requests()) == 1
    await replica.pass_time(2 * DAY)
    await replica.sign()
    await replica.rotation.check()
    assert lifetime_of(replica.pair).end > lifetime_of(first).end
    assert replica.reports == []


async def test_expiry_is_reported_once(replica: Replica) -> None:
    await replica.rotation.check()
    await replica.sign()
    await replica.rotation.check()
    for _ in range(3):
        await replica.pass_time(DAY * 27.5 / 3 + timedelta(hours=1))
    await replica.pass_time(timedelta(hours=1))
    (message,) = replica.reports
    assert f"expires at {lifetime_of(replica.pair).end:%Y-%m-%d}" in message


async def test_changed_address_needs_another_certificate(replica: Replica) -> None:
    await replica.rotation.check()
    await replica.sign()
    await replica.rotation.check()
    replica.names = frozenset({"10.96.0.8", "s.ns.svc"})
    await replica.rotation.check()
    assert len(await replica.requests()) == 2
    await replica.sign()
    await replica.rotation.check()
    names = replica.pair.leaf().extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "10.96.0.8" in {str(each.value) for each in names}


@pytest.mark.parametrize("end", ["Denied", "Failed", "deleted", "for another key"])
async def test_failed_request_is_repeated_later(replica: Replica, end: str) -> None:
    await replica.rotation.check()
    (request,) = await replica.requests()
    match end:
        case "deleted":
            await replica.client.delete(SIGNING_REQUESTS, request)
        case "for another key":
            other = self_signed_pair(["10.0.0.1"]).certificate
            await replica.decide(certificate=base64.b64encode(other).decode())
        case _:
            condition = {"type": end, "status": "True", "reason": "r", "message": "m"}
            await replica.decide("approval" if end == "Denied" else "status", conditions=[condition])
    before = replica.pair
    assert await replica.rotation.check() == CHECK_SECONDS
    await replica.pass_time(timedelta(minutes=9))
    assert {name_of(each) for each in await replica.requests()} <= {name_of(request)}
    await replica.pass_time(timedelta(minutes=2))
    assert name_of((await replica.requests())[-1]) != name_of(request)
    assert replica.pair == before


async def test_pending_request_is_read_less_often_after_a_minute(replica: Replica) -> None:
    await replica.rotation.check()
    assert await replica.pass_time(timedelta(minutes=2)) == CHECK_SECONDS
    await replica.pass_time(10 * DAY)
    assert len(await replica.requests()) == 1


async def test_provided_certificate_is_used_and_reloaded(replica: Replica) -> None:
    for pair in (self_signed_pair(["a"]), self_signed_pair(["b"])):
        replica.provided = pair
        await replica.rotation.check()
        assert replica.pair == pair
    assert await replica.requests() == []
    replica.provided = KeyPair(b"broken", b"broken")
    await replica.rotation.check()
    assert replica.pair == pair
    replica.provided = None
    await replica.rotation.check()
    assert (replica.pair, len(await replica.requests())) == (pair, 1)


async def test_api_server_without_permission_is_tried_later(replica: Replica) -> None:
    replica.rotation.client = Client(InProcessApi([], now=lambda: replica.now).connect())
    assert await replica.rotation.check() == CHECK_SECONDS


def test_files_and_secrets(tmp_path: Path) -> None:
    pair, files = self_signed_pair(["a"]), (tmp_path / "tls.crt", tmp_path / "tls.key")
    assert key_pair_in_files(*files) is None
    for file, content in zip(files, (pair.certificate, pair.key), strict=True):
        file.write_bytes(content)
    assert key_pair_in_files(*files) == pair
    data = {"tls.crt": base64.b64encode(pair.certificate).decode(), "tls.key": base64.b64encode(pair.key).decode()}
    assert key_pair_in_secret({"data": data}) == pair
    for secret in (None, {}, {"data": {"tls.crt": data["tls.crt"]}}, {"data": {**data, "tls.key": "%"}}):
        assert key_pair_in_secret(secret) is None


def test_context_of_an_unusable_file_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        ServingCertificate(
            lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
            KeyPair(self_signed_pair(["a"]).certificate, self_signed_pair(["b"]).key),
        )
