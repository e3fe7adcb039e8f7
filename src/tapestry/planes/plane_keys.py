"""Keys and credentials of the planes of this process: issued, listed, revoked and rotated at run time.

A plane may be in any state. The keys of a plane in etcd are changed there, so that a restart, a wake-up and a move keep
the change.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from cryptography import x509

from tapestry.apiserver.access.ephemeral_tokens import (
    TOKENS_FILE,
    Token,
    create_token,
    load_tokens,
    revoke_token,
    revoke_user_tokens,
)
from tapestry.apiserver.access.revocations import (
    REVOCATIONS_FILE,
    Revocations,
    load_revocations,
    revoke_certificate,
    revoke_user_certificates,
)
from tapestry.apiserver.access.rotation import rotate_ca, rotate_signing_key
from tapestry.apiserver.access.user_certificates import UserCertificate, create_certificate
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.private_files import KEYS_FOLDER, change_local_keys
from tapestry.apiserver.core.store import StorageError
from tapestry.kube.errors import NotFound, Unavailable
from tapestry.planes.plane_data import restore_keys, update_keys
from tapestry.planes.plane_set import PlaneEntry, PlaneSet
from tapestry.planes.sealing import SealError

T = TypeVar("T")


class Credentials(NamedTuple):
    """Credentials of a plane. Client certificates are not stored, only their revocations."""

    tokens: list[Token]
    revocations: Revocations


@dataclass(frozen=True)
class PlaneKeys:
    """Changes of the keys of planes. All methods raise Unavailable if this process does not hold the plane."""

    planes: PlaneSet
    issue_serving_certificate: Callable[[str], object]
    """Issue the serving certificate of a plane, unless it exists."""
    now: Callable[[], datetime]

    async def issue_token(
        self, plane_id: str, user: str, groups: tuple[str, ...], lifetime: timedelta
    ) -> tuple[Token, str]:
        """Create a token and return it with its text, which is not stored."""
        return await self._change(plane_id, lambda folder, now: create_token(folder, user, groups, lifetime, now))

    async def issue_certificate(
        self, plane_id: str, user: str, groups: tuple[str, ...], lifetime: timedelta
    ) -> UserCertificate:
        return await self._change(plane_id, lambda folder, now: create_certificate(folder, user, groups, lifetime, now))

    async def list_credentials(self, plane_id: str) -> Credentials:
        return await self._change(plane_id, load_credentials)

    async def revoke_token(self, plane_id: str, id: str) -> None:
        await self._change(plane_id, lambda folder, now: revoke_token(folder, id, now))

    async def revoke_certificate(self, plane_id: str, serial: str) -> None:
        await self._change(plane_id, lambda folder, now: revoke_certificate(folder, serial, now))

    async def revoke_user(self, plane_id: str, user: str) -> None:
        """Revoke all tokens and client certificates that a user has now."""

        def revoke(folder: Path, now: datetime) -> None:
            revoke_user_tokens(folder, user, now)
            revoke_user_certificates(folder, user, now)

        await self._change(plane_id, revoke)

    async def rotate_ca(self, plane_id: str, overlap: timedelta) -> x509.Certificate:
        """Replace the CA and return its certificate. The serving certificate is that of the former CA until the end."""
        entry = held_plane(self.planes, plane_id)
        with report_errors():
            if entry.hold is not None:
                await restore_keys(plane_id, entry.config, entry.hold)
            self.issue_serving_certificate(plane_id)
        return await self._change(plane_id, lambda folder, now: rotate_ca(folder, overlap, now))

    async def rotate_signing_key(self, plane_id: str, overlap: timedelta) -> str:
        """Replace the key of service account tokens and return its ID."""
        return await self._change(plane_id, lambda folder, now: rotate_signing_key(folder, overlap, now))

    def _change(self, plane_id: str, change: Callable[[Path, datetime], T]) -> Awaitable[T]:
        entry = held_plane(self.planes, plane_id)
        return change_keys_of(entry, partial(change, Path(entry.config.file_rootpath), self.now()))


async def change_keys_of(entry: PlaneEntry, change: Callable[[], T]) -> T:
    with report_errors():
        if entry.hold is None:
            return await change_local_keys(change)
        return await update_keys(entry.id, entry.config, entry.hold, change)


def load_credentials(folder: Path, now: datetime) -> Credentials:
    tokens = load_tokens(folder / TOKENS_FILE).values()
    valid = sorted((each for each in tokens if each.expires > now), key=lambda token: token.expires)
    return Credentials(valid, load_revocations(folder / KEYS_FOLDER / REVOCATIONS_FILE))


def held_plane(planes: PlaneSet, plane_id: str) -> PlaneEntry:
    """Return a plane of this process in any state. Raises Unavailable if another process holds it."""
    entry = planes.get(plane_id)
    if entry is None:
        raise unavailable("this process does not hold the plane; ask the process in status.holder, or try again later")
    return entry


@contextmanager
def report_errors() -> Iterator[None]:
    """Raise errors of key files as responses for the administrators of planes."""
    try:
        yield
    except KeyError as error:
        why = f"there is no token {error.args[0]!r}; `tapestry planes credentials` lists the valid ones"
        raise NotFound(404, "NotFound", why) from error
    except (StorageError, SealError) as error:
        raise unavailable(str(error)) from error
    except ValueError as error:
        raise api_errors.bad_request(str(error)) from error


def unavailable(why: str) -> Unavailable:
    return Unavailable(503, "ServiceUnavailable", why)
