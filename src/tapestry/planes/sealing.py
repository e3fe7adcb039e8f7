"""Sealing of files with the key of a group of processes, so that readers of etcd cannot use what they contain.

A sealed value names the key that sealed it. It opens only for the same owner and the same file name, so it is useless
in another place. `seal` and `unseal` do no I/O.
"""

import base64
import binascii
import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

KEY_BYTES, NONCE_BYTES, KEY_ID_BYTES = 32, 12, 8
FORMAT = b"\x01"
"""First byte of a sealed value."""


class SealError(ValueError):
    """Error if a sealed value cannot be opened. The message says why and what to do."""


@dataclass(frozen=True)
class GroupKey:
    """Key that all processes of a group have."""

    secret: bytes
    source: str
    """File of the key, for error messages."""

    @property
    def id(self) -> bytes:
        return hashlib.blake2b(self.secret, digest_size=KEY_ID_BYTES, person=b"group-key-id").digest()

    def __repr__(self) -> str:
        return f"GroupKey({self.source})"


def seal(key: GroupKey, owner: str, name: str, content: bytes) -> bytes:
    """Encrypt the content of a file of `owner`, for example the id of a plane."""
    nonce = os.urandom(NONCE_BYTES)
    sealed = ChaCha20Poly1305(key.secret).encrypt(nonce, content, associated_data(owner, name))
    return FORMAT + key.id + nonce + sealed


def unseal(key: GroupKey, owner: str, name: str, sealed: bytes) -> bytes:
    """Return the content of a file. Raises SealError if another key sealed it, or for another file or owner."""
    what = f"{name} of {owner}"
    header, rest = sealed[: 1 + KEY_ID_BYTES], sealed[1 + KEY_ID_BYTES :]
    if header[:1] != FORMAT:
        raise SealError(f"{what} in etcd was sealed by another version; use the version of the other processes")
    if header[1:] != key.id:
        raise SealError(
            f"{what} in etcd was sealed with another key than {key.source}; copy the group key file of the process "
            "that created it"
        )
    try:
        return ChaCha20Poly1305(key.secret).decrypt(
            rest[:NONCE_BYTES], rest[NONCE_BYTES:], associated_data(owner, name)
        )
    except (InvalidTag, ValueError) as error:
        raise SealError(f"{what} in etcd was changed since it was sealed; restore a backup of etcd") from error


def associated_data(owner: str, name: str) -> bytes:
    """Return the identity that a sealed value is bound to. The lengths make it unambiguous."""
    return b"%d %d %s%s" % (len(owner.encode()), len(name.encode()), owner.encode(), name.encode())


def load_group_key(path: Path) -> GroupKey:
    """Load the key file, which is created if it is missing. Raises ValueError for a malformed file, and OSError."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        text = create_key_file(path)
    try:
        secret = base64.b64decode(text.strip(), validate=True)
    except binascii.Error:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise ValueError(f"{path}: this is not a group key, which has {KEY_BYTES} bytes in base64; restore the file")
    return GroupKey(secret, str(path))


def create_key_file(path: Path) -> bytes:
    """Create the key file, which only its owner can read, and return its content: that of the first creator."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as file:
        file.write(base64.b64encode(os.urandom(KEY_BYTES)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was faster
            os.link(file.name, path)
    return path.read_bytes()
