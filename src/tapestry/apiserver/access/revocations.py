"""Revocation of client certificates, one by one or all of a user.

Revocations are stored in one file of the keys folder, which backups include. A running server reloads the file when it
changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from tapestry.apiserver.core.private_files import KEYS_FOLDER, lock_file, replace_file

REVOCATIONS_FILE = "revocations.json"
"""Name of the file in the keys folder."""


class Revocations(msgspec.Struct):
    """Revoked client certificates."""

    serials: dict[str, datetime] = msgspec.field(default_factory=dict)
    """Times of the revocation by serial number, in hexadecimal without leading zeros."""
    users: dict[str, datetime] = msgspec.field(default_factory=dict)
    """Times of the revocation by user name. All certificates that are valid from an earlier time are revoked."""

    def is_revoked(self, certificate: Mapping[str, Sequence[str]]) -> bool:
        """Return whether a certificate of `Credentials` is revoked."""
        if any(normalized_serial(each) in self.serials for each in certificate.get("serialNumber", ())):
            return True
        revoked_at = self.users.get(certificate["commonName"][-1])
        if revoked_at is None:
            return False
        return any(float(each) < revoked_at.timestamp() for each in certificate.get("notBefore", ("0",)))


def load_revocations(path: Path) -> Revocations:
    """Load the revocations of a file; empty if it does not exist. Raises ValueError for a malformed file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Revocations)
    except FileNotFoundError:
        return Revocations()
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{path}: revocations cannot be read: {error}; restore the file from a backup") from error


def revoke_certificate(folder: Path, serial: str, now: datetime) -> None:
    """Revoke the certificate with this serial number. Raises ValueError if it is not a hexadecimal number."""
    with edit_revocations(folder) as revocations:
        revocations.serials.setdefault(normalized_serial(serial), now.replace(microsecond=0))


def revoke_user_certificates(folder: Path, user: str, now: datetime) -> None:
    """Revoke all certificates of a user that were issued before now."""
    with edit_revocations(folder) as revocations:
        revocations.users[user] = now.replace(microsecond=0)


@contextmanager
def edit_revocations(folder: Path) -> Iterator[Revocations]:
    """Yield the revocations of a data folder for modification, and write them afterwards."""
    path = folder / KEYS_FOLDER / REVOCATIONS_FILE
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with lock_file(folder / KEYS_FOLDER):
        revocations = load_revocations(path)
        yield revocations
        replace_file(path, msgspec.json.format(msgspec.json.encode(revocations), indent=1) + b"\n")


def normalized_serial(serial: str) -> str:
    """Return a serial number in the form of the file. Accepts separators, as openssl and browsers print them."""
    try:
        return f"{int(serial.replace(':', '').strip(), 16):X}"
    except ValueError:
        raise ValueError(
            f"{serial!r} is not a serial number in hexadecimal; see `openssl x509 -noout -serial`"
        ) from None
