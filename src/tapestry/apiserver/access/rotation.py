"""Rotation of the CA and of the key of service account tokens, with an overlap.

At the start of a CA rotation, the new CA begins to issue client certificates, and both CAs are published. Until the
overlap ends, the serving certificate and the client certificates of the old CA stay valid. Then the server gets a
certificate of the new CA, and the old CA is no longer trusted. The private key of the old CA is deleted at the start.

Likewise, a new key signs service account tokens, and the old public key verifies until the overlap ends.

All functions take a data folder, and a running server reloads the changed files. After a crash at any moment, the
folder has either the old or the new keys, once `finish_rotations` was called.
"""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tapestry.apiserver.access.certificates import CertificateAuthority, fingerprint, private_key_pem
from tapestry.apiserver.access.retirements import (
    RETIREMENTS_FILE,
    Retirements,
    load_retirements,
    write_retirements,
)
from tapestry.apiserver.access.token_keys import Verifier, load_signing_keys
from tapestry.apiserver.core.private_files import KEYS_FOLDER, UNFINISHED_SUFFIX, lock_file, replace_file, sync_to_disk

SIGNING_KEY_FILE = "service-accounts.key"
"""File in the keys folder with the key of service account tokens, followed by the public keys that it has replaced."""
STAGED_CA, UNFINISHED_CA = ".next-ca", f".next-ca{UNFINISHED_SUFFIX}"
"""Folders in the keys folder: a new CA that replaces the current one in any case, and one that is incomplete."""
MAX_OVERLAP = timedelta(days=365)


def rotate_ca(folder: Path, overlap: timedelta, now: datetime) -> x509.Certificate:
    """Replace the CA and return its certificate. Without an overlap, earlier CAs are not trusted from now on."""
    check_overlap(overlap)
    keys_folder = folder / KEYS_FOLDER
    authority = CertificateAuthority(keys_folder)
    if not authority.certificate_file.exists():
        raise ValueError(f"{authority.certificate_file} does not exist; a server creates it at its first start")
    with lock_file(keys_folder):
        finish_ca_rotation(keys_folder)
        if authority.key_pair() is None:
            raise ValueError(f"{authority.certificate_file} has no key beside it; rotate the CA where its key is")
        current, *others = authority.certificates()
        retirements = load_retirements(keys_folder)
        if overlap:
            retirements[fingerprint(current)] = now + overlap
            others = [current, *others]
        else:
            others = [each for each in others if fingerprint(each) not in retirements]
        unfinished = CertificateAuthority(keys_folder / UNFINISHED_CA)
        [new] = unfinished.certificates()
        replace_file(unfinished.certificate_file, certificates_pem([new, *others]))
        sync_to_disk(unfinished.key_file)
        write_retirements(keys_folder, retirements)
        unfinished.folder.rename(keys_folder / STAGED_CA)  # from here on, the rotation is finished after a crash
        finish_ca_rotation(keys_folder)
    return new


def rotate_signing_key(folder: Path, overlap: timedelta, now: datetime) -> str:
    """Replace the key of service account tokens and return its ID. Without an overlap, earlier tokens are rejected."""
    check_overlap(overlap)
    keys_folder = folder / KEYS_FOLDER
    path = keys_folder / SIGNING_KEY_FILE
    if not path.exists():
        raise ValueError(f"{path} does not exist: replace the key that --service-account-signing-key-file names")
    with lock_file(keys_folder):
        private, others = load_signing_keys(path)
        current, retirements = Verifier(private.public_key()), load_retirements(keys_folder)
        if overlap:
            retirements[current.id] = now + overlap
            others = [current, *others]
        else:
            others = [each for each in others if each.id not in retirements]
        new = ec.generate_private_key(ec.SECP256R1())
        write_retirements(keys_folder, retirements)
        replace_file(path, private_key_pem(new) + public_keys_pem(others))
    return Verifier(new.public_key()).id


def check_overlap(overlap: timedelta) -> None:
    if not timedelta(0) <= overlap <= MAX_OVERLAP:
        raise ValueError(f"overlap {overlap} is not between 0 and {MAX_OVERLAP.days} days")


def has_rotation(folder: Path) -> bool:
    """Return whether a rotation was interrupted, or its overlap may be over."""
    keys_folder = folder / KEYS_FOLDER
    if (keys_folder / RETIREMENTS_FILE).exists() or (keys_folder / STAGED_CA).exists():
        return True
    return any(keys_folder.glob(f".*{UNFINISHED_SUFFIX}"))


def finish_rotations(folder: Path, now: datetime) -> datetime | None:
    """Finish a CA rotation that was interrupted, and remove CAs and keys whose overlap is over.

    Returns the end of the next overlap, or None if there is none.
    """
    keys_folder = folder / KEYS_FOLDER
    with lock_file(keys_folder):
        finish_ca_rotation(keys_folder)
        retirements = load_retirements(keys_folder)
        used = remove_retired_cas(keys_folder, retirements, now) | remove_retired_keys(keys_folder, retirements, now)
        remaining = {id: end for id, end in retirements.items() if id in used}
        if not remaining:
            (keys_folder / RETIREMENTS_FILE).unlink(missing_ok=True)
        elif remaining != retirements:
            write_retirements(keys_folder, remaining)
    return min(remaining.values(), default=None)


def discard_unfinished_rotation(keys_folder: Path) -> None:
    """Remove a rotation that was interrupted, because valid keys replace those of the folder."""
    for each in (STAGED_CA, UNFINISHED_CA):
        shutil.rmtree(keys_folder / each, ignore_errors=True)
    for unfinished in keys_folder.glob(f".*{UNFINISHED_SUFFIX}"):
        unfinished.unlink(missing_ok=True)


def finish_ca_rotation(keys_folder: Path) -> None:
    """Replace the CA with the staged one, and remove incomplete files. The caller holds the lock."""
    shutil.rmtree(keys_folder / UNFINISHED_CA, ignore_errors=True)
    for unfinished in keys_folder.glob(f".*{UNFINISHED_SUFFIX}"):
        unfinished.unlink()
    staged = CertificateAuthority(keys_folder / STAGED_CA)
    if not staged.folder.exists():
        return
    current = CertificateAuthority(keys_folder)
    for source, target in (
        (staged.key_file, current.key_file),
        (staged.certificate_file, current.certificate_file),
    ):
        with suppress(FileNotFoundError):  # it was replaced before a crash
            source.replace(target)
    sync_to_disk(keys_folder)
    staged.folder.rmdir()


def remove_retired_cas(keys_folder: Path, retirements: Retirements, now: datetime) -> set[str]:
    """Remove CAs whose overlap is over, and return the fingerprints of the replaced ones that stay."""
    authority = CertificateAuthority(keys_folder)
    if not authority.certificate_file.exists():
        return set()
    current, *others = authority.certificates()
    remaining = [each for each in others if not is_over(retirements.get(fingerprint(each)), now)]
    if remaining != others:
        replace_file(authority.certificate_file, certificates_pem([current, *remaining]))
    return {fingerprint(each) for each in remaining}


def remove_retired_keys(keys_folder: Path, retirements: Retirements, now: datetime) -> set[str]:
    """Remove signing keys whose overlap is over, and return the IDs of the replaced ones that stay."""
    path = keys_folder / SIGNING_KEY_FILE
    if not path.exists():
        return set()
    private, others = load_signing_keys(path)
    remaining = [each for each in others if not is_over(retirements.get(each.id), now)]
    if remaining != others:
        replace_file(path, private_key_pem(private) + public_keys_pem(remaining))
    return {each.id for each in remaining}


def is_over(end: datetime | None, now: datetime) -> bool:
    return end is not None and now >= end


def certificates_pem(certificates: Sequence[x509.Certificate]) -> bytes:
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


def public_keys_pem(verifiers: Sequence[Verifier]) -> bytes:
    return b"".join(each.public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for each in verifiers)
