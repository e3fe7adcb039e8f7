"""Keys, certificates and token hashes of a server in etcd: sealed below its prefix, and unsealed into its folder.

etcd has the valid state. The files of the folder are a copy, which is made before the server opens. Changes are stored
in one transaction, so that a key and its certificate always belong together.
"""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tapestry.apis.planes import MANAGEMENT
from tapestry.apiserver.access.certificates import CertificateAuthority, front_proxy_ca, write_private_file
from tapestry.apiserver.access.ephemeral_tokens import TOKENS_FILE
from tapestry.apiserver.access.rotation import SIGNING_KEY_FILE, discard_unfinished_rotation
from tapestry.apiserver.access.token_keys import load_token_keys
from tapestry.apiserver.core.config import Etcd
from tapestry.apiserver.core.epochs import EpochFence
from tapestry.apiserver.core.private_files import ETCD_MARKER, KEYS_FOLDER
from tapestry.apiserver.core.store import StorageError
from tapestry.apiserver.storage.etcd.client import EtcdClient, KeyValue
from tapestry.apiserver.storage.etcd.connection import etcd_client
from tapestry.apiserver.storage.etcd.layout import key_prefix, range_end
from tapestry.planes.sealing import GroupKey, SealError, seal, unseal
from tapestry.process.logs import logger

log = logger(__name__)

T = TypeVar("T")
SEALED_KEYS = "sealed/"
"""Beginning of the keys of sealed files, below the prefix. No object has such a key."""
SERVING_CERTIFICATE, SERVING_KEY = SERVING_FILES = f"{KEYS_FOLDER}/apiserver.crt", f"{KEYS_FOLDER}/apiserver.key"
"""Serving certificate, which a process issues for its own names. The processes of a group have one each for the
management API. The next holder of a plane needs that of the last one while a replaced CA is trusted.
"""
RETRY_SECONDS = 1.0
LOCKS: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()
"""Locks of the folders whose files are being changed."""


class SealedFiles:
    """The key files of one server. The caller has taken the epoch of the client, if it has one."""

    def __init__(self, client: EtcdClient, prefix: str, folder: Path, key: GroupKey, owner: str) -> None:
        """`owner` is the id of the plane; the sealed files of one are useless to another."""
        self._client, self._folder, self._key, self._owner = client, folder, key, owner
        self._prefix = f"{key_prefix(prefix)}{SEALED_KEYS}"
        self._stored: dict[str, tuple[int, bytes]] = {}
        """Revision in etcd and digest of each file."""
        self._lock = LOCKS.setdefault(folder, asyncio.Lock())

    async def restore_or_create(self) -> None:
        """Bring the folder to the state in etcd. If etcd has no files, create and store them first."""
        async with self._lock:
            await asyncio.to_thread(self._mark_folder)
            while not await self._restore():
                await asyncio.to_thread(create_keys, self._folder)
                if await self._store():
                    return

    async def update(self, change: Callable[[], T]) -> T:
        """Change files of the folder in a thread, and return when etcd has them too.

        `change` is called again if another process has changed the files meanwhile. If etcd cannot store the files, the
        folder gets back the former ones.
        """
        async with self._lock:
            while True:
                before = await asyncio.to_thread(self._read_files)
                try:
                    result = await asyncio.to_thread(change)
                    is_stored = await self._store()
                except BaseException:
                    self._replace_files(before)
                    raise
                if is_stored:
                    return result
                await self._restore()

    async def follow(self) -> None:
        """Restore the files whenever another process changes them, until cancelled."""
        while True:
            try:
                async with self._lock:
                    revision = await self._restore()
                async with self._client.watch(self._prefix.encode(), range_end(self._prefix), revision + 1) as watch:
                    while True:
                        await watch.next()
                        async with self._lock:
                            await self._restore()
            except (StorageError, SealError, OSError) as error:
                log.warning("sealed files not followed, retrying", owner=self._owner, error=str(error))
                self._client.switch_endpoint()
            await asyncio.sleep(RETRY_SECONDS * random.uniform(0.5, 1.0))

    async def _restore(self) -> int:
        """Make the folder equal to etcd. Return the revision; 0 if etcd has no files, which changes nothing."""
        contents: dict[str, bytes] = {}
        revisions: dict[str, int] = {}
        revision, prefix = 0, self._prefix.encode()
        async for page_revision, page in self._client.list_pages(prefix, range_end(self._prefix)):
            revision = page_revision
            for path, value, file_revision in page:
                name = path.removeprefix(prefix).decode()
                contents[name] = unseal(self._key, self._owner, name, value or b"")
                revisions[name] = file_revision
        self._stored = {name: (revisions[name], digest(content)) for name, content in contents.items()}
        if not contents:
            return 0
        await asyncio.to_thread(self._replace_files, contents)
        return revision

    def _mark_folder(self) -> None:
        """Let the commands for data folders refuse this one."""
        marker = self._folder / ETCD_MARKER
        if not marker.exists():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private_file(marker, description_of(self._owner).encode())

    def _read_files(self) -> dict[str, bytes]:
        contents = {name: (self._folder / name).read_bytes() for name in self._local_files()}
        if not has_serving_pair(contents):  # a handshake is replacing it
            for name in SERVING_FILES:
                contents.pop(name, None)
        return contents

    def _replace_files(self, contents: Mapping[str, bytes]) -> None:
        """Make the key files of the folder equal to `contents`."""
        discard_unfinished_rotation(self._folder / KEYS_FOLDER)
        for name, content in contents.items():
            self._write_file(name, content)
        for name in self._local_files():
            if name not in contents and name not in SERVING_FILES:
                (self._folder / name).unlink()

    def _write_file(self, name: str, content: bytes) -> None:
        path = self._folder / name
        if not is_sealed_file(name):
            raise SealError(f"{name!r} of {self._owner} in etcd names no key file; restore a backup of etcd")
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private_file(path, content)

    async def _store(self) -> bool:
        """Store the files that have changed. Return whether etcd was as this process knows it."""
        contents = await asyncio.to_thread(self._read_files)
        digests = {name: digest(content) for name, content in contents.items()}
        changed = {name for name in digests if self._stored.get(name, (0, b""))[1] != digests[name]}
        removed = self._stored.keys() - digests.keys()
        if not changed and not removed:
            return True
        changes = [
            KeyValue(
                f"{self._prefix}{name}".encode(),
                seal(self._key, self._owner, name, contents[name]) if name in changed else None,
                self._stored.get(name, (0, b""))[0],
            )
            for name in sorted(changed | removed)
        ]
        revision = await self._client.put_all(changes)
        if revision is None:
            return False
        for name in changed:
            self._stored[name] = revision, digests[name]
        for name in removed:
            del self._stored[name]
        return True

    def _local_files(self) -> Iterator[str]:
        """Yield the names of all files to seal, relative to the folder."""
        for path in (self._folder / TOKENS_FILE, *sorted((self._folder / KEYS_FOLDER).glob("*"))):
            name = str(path.relative_to(self._folder))
            if path.is_file() and is_sealed_file(name) and not (name in SERVING_FILES and self._owner == MANAGEMENT):
                yield name


def is_sealed_file(name: str) -> bool:
    """Return whether a file belongs to the keys of a server. Temporary files and locks do not."""
    if name == TOKENS_FILE:
        return True
    folder, _, base = name.partition("/")
    is_temporary = base.startswith(".") or base.endswith(".new")
    return folder == KEYS_FOLDER and bool(base) and "/" not in base and not is_temporary


def has_serving_pair(contents: Mapping[str, bytes]) -> bool:
    """Return whether the serving certificate and its key belong together."""
    if not contents.keys() >= set(SERVING_FILES):
        return False
    try:
        certificate = x509.load_pem_x509_certificate(contents[SERVING_CERTIFICATE])
        return certificate.public_key() == load_pem_private_key(contents[SERVING_KEY], None).public_key()
    except ValueError:  # not PEM
        return False


def description_of(owner: str) -> str:
    """Return what administrators have to know about the owner of files, for a message."""
    if owner == MANAGEMENT:
        return "the management API, where ServiceAccounts and CertificateSigningRequests give access to users"
    return f"plane {owner}, whose name `tapestry planes list` shows"


def digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def create_keys(folder: Path) -> None:
    """Create the CAs and the signing key of a server, unless they exist."""
    for authority in (CertificateAuthority(folder / KEYS_FOLDER), front_proxy_ca(folder)):
        authority.certificate_pem()
    load_token_keys(folder / KEYS_FOLDER / SIGNING_KEY_FILE)


@asynccontextmanager
async def open_sealed_files(
    config: Etcd, folder: Path, key: GroupKey, owner: str, fence: EpochFence | None = None
) -> AsyncIterator[SealedFiles]:
    """Restore or create the files of a server, and yield them. Raises StorageError, ValueError and OSError."""
    async with etcd_client(config, fence) as client:
        await client.take_epoch()
        files = SealedFiles(client, config.prefix, folder, key, owner)
        await files.restore_or_create()
        yield files
