"""The condition CertificatesExpiring of planes."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tapestry.apiserver.access import certificates
from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.planes.plane_certificates import certificates_expiring

NOW = datetime.now(UTC)


def test_plane_without_certificates_has_no_condition(tmp_path: Path) -> None:
    assert certificates_expiring(CertificateAuthority(tmp_path), NOW) is None
    assert not list(tmp_path.iterdir())
    (tmp_path / "ca.crt").write_text("broken")
    assert certificates_expiring(CertificateAuthority(tmp_path), NOW) is None


def test_end_of_ca_counts(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.server_certificate(["localhost"])  # for a year: its CA renews it
    for days, status in ((0, "False"), (3619, "False"), (3621, "True"), (3700, "True")):
        condition = certificates_expiring(authority, NOW + timedelta(days=days))
        assert condition is not None
        assert condition["status"] == status, days
    assert condition is not None
    assert condition["message"].startswith("the CA is valid until 20")
    assert "rotate-ca" in condition["message"]


def test_end_of_certificate_counts_without_key_of_ca(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.server_certificate(["localhost"])
    authority.key_file.unlink()
    condition = certificates_expiring(authority, NOW + timedelta(days=336))
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("True", "ExpiresSoon")
    assert condition["message"].startswith("the certificate of the plane is valid until")


@pytest.mark.parametrize(("lifetime", "status"), [(timedelta(days=29), "True"), (timedelta(days=31), "False")])
def test_warning_begins_thirty_days_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lifetime: timedelta, status: str
) -> None:
    monkeypatch.setattr(certificates, "CA_LIFETIME", lifetime)
    authority = CertificateAuthority(tmp_path)
    authority.certificate_pem()
    condition = certificates_expiring(authority, datetime.now(UTC))
    assert condition is not None
    assert condition["status"] == status
