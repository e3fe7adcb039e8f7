"""Credentials of a plane that is not open: what its files authenticate."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from tapestry.apiserver.access.authentication import Credentials
from tapestry.apiserver.access.certificates import CertificateAuthority, write_private_file
from tapestry.apiserver.access.ephemeral_tokens import create_token, revoke_token
from tapestry.apiserver.access.reloading_file import CHECK_INTERVAL
from tapestry.apiserver.access.service_account_tokens import ServiceAccountTokens
from tapestry.apiserver.access.token_keys import load_token_keys
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.kube.errors import Unauthorized
from tapestry.planes.plane_credentials import (
    PlaneCredentials,
    is_issued_by,
    load_certificates,
    unknown_plane_authenticator,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ACCOUNT = {"metadata": {"name": "robot", "namespace": "default", "uid": "1"}}


def credentials_in(folder: Path, now: datetime = NOW, **options: Any) -> PlaneCredentials:
    return PlaneCredentials(ApiServerConfig(file_rootpath=str(folder), **options), lambda: now)


def account_token(folder: Path, audience: str = "", now: datetime = NOW) -> str:
    """Return a token as the plane with this folder issues it."""
    keys, issuer = load_token_keys(folder / "pki" / "service-accounts.key"), ApiServerConfig().service_account_issuer
    tokens = ServiceAccountTokens(None, lambda: keys, issuer, lambda: now)  # type: ignore[arg-type]  # it is not read
    token: str = tokens.issue_token(ACCOUNT, {"audiences": [audience] if audience else []}, None)["token"]
    return token


def user_of(credentials: PlaneCredentials, token: str) -> str | None:
    try:
        return credentials.authenticate(Credentials(bearer_token=token)).name
    except Unauthorized:
        return None


def test_tokens_of_the_folder_are_known(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.csv"
    write_private_file(tokens, b'secret,static,1,"devs"\n')
    stored, token = create_token(tmp_path, "jane", (), timedelta(hours=1), NOW)
    credentials = credentials_in(tmp_path, token_auth_file=str(tokens))
    assert user_of(credentials, token) == "jane"
    assert user_of(credentials, "secret") == "static"
    assert user_of(credentials, f"{token}x") is None
    assert user_of(credentials, "") is None
    assert user_of(credentials_in(tmp_path, NOW + timedelta(hours=1)), token) is None
    revoke_token(tmp_path, stored.id, NOW)
    assert user_of(credentials_in(tmp_path), token) is None


def test_account_tokens_are_verified_by_signature_audience_and_lifetime(tmp_path: Path) -> None:
    for each in ("a", "b"):
        account_token(tmp_path / each)
    credentials = credentials_in(tmp_path / "a")
    assert user_of(credentials, account_token(tmp_path / "a")) == "system:serviceaccount:default:robot"
    assert user_of(credentials, account_token(tmp_path / "b")) is None
    assert user_of(credentials, account_token(tmp_path / "a", "elsewhere")) is None
    assert user_of(credentials, account_token(tmp_path / "a", now=NOW - timedelta(hours=2))) is None
    assert user_of(credentials, account_token(tmp_path / "a", now=NOW + timedelta(hours=2))) is None


def test_reading_creates_no_files(tmp_path: Path) -> None:
    credentials = credentials_in(tmp_path / "new")
    assert user_of(credentials, "a.b.c") is None
    assert credentials.client_cas == []
    assert not (tmp_path / "new").exists()


def test_ca_is_reloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = credentials_in(tmp_path)
    CertificateAuthority(tmp_path / "pki").certificate_pem()
    later = time.monotonic() + CHECK_INTERVAL
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert len(credentials.client_cas) == 1


def test_malformed_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokens\.json"):
        credentials_in(tmp_path)


def test_certificates_are_issued_by_the_plane_ca(tmp_path: Path) -> None:
    authorities = [CertificateAuthority(tmp_path / each) for each in ("a", "b")]
    for each in authorities:
        each.certificate_pem()
    own, other = [load_certificates(each.certificate_file) for each in authorities]
    [certificate] = load_certificates(authorities[0].client_certificate("admin", [])[0])
    der, now = certificate.public_bytes(Encoding.DER), datetime.now(UTC)
    assert is_issued_by(der, own, now)
    assert is_issued_by(der, [*other, *own], now)
    assert not is_issued_by(der, other, now)
    assert not is_issued_by(der, [], now)
    assert not is_issued_by(der, own, now + timedelta(days=366))
    assert not is_issued_by(der, own, now - timedelta(days=1))


@pytest.mark.parametrize("token", ["", "x", "tapestry.0123456789.secret", "a.b.c"])
def test_unknown_plane_has_no_credentials(tmp_path: Path, token: str) -> None:
    authenticate = unknown_plane_authenticator(lambda: NOW)
    for each in (token, account_token(tmp_path)):
        with pytest.raises(Unauthorized):
            authenticate(Credentials(bearer_token=each))
