"""Tokens that expire: made on the machine of the server, good from then on, and worthless once they are revoked.

They are kept in one file of the server's folder, by their hashes: who can read it cannot use them.  The server reads it
again when it has changed.  A token is `tapestry.ID.SECRET`: the ID is no secret, lists show it, and `revoke` takes it.
"""

import fcntl
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from tapestry.apiserver.access.authentication import CREDENTIAL_ID, Credentials
from tapestry.apiserver.access.reloading_file import ReloadingFile
from tapestry.apiserver.requests import User

TOKENS_FILE = "tokens.json"
TOKEN_PREFIX = "tapestry."
MAX_LIFETIME = timedelta(days=365)


class Token(msgspec.Struct, frozen=True, rename="camel"):
    """One token, as it is kept."""

    id: str
    hash: str
    user: str
    groups: tuple[str, ...]
    created: datetime
    expires: datetime


Tokens = dict[str, Token]
"""By their IDs."""


def load_tokens(path: Path) -> Tokens:
    """The tokens in a file; none where there is no file.  Raises ValueError where it is not readable."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[Token])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{path}: tokens cannot be read: {error}") from error
    return {each.id: each for each in found}


@contextmanager
def edit_tokens(folder: Path, now: datetime) -> Iterator[Tokens]:
    """The tokens below `folder`, to be changed; what is left in the end is written, if it is another.

    One process changes them at a time.  Those that have expired are not among them any more.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / TOKENS_FILE
    with open(folder / f".{TOKENS_FILE}.lock", "w") as lock:
        os.chmod(lock.fileno(), 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = load_tokens(path)
        tokens = {id: each for id, each in before.items() if each.expires > now}
        yield tokens
        if tokens != before:
            write_tokens(path, tokens)


def write_tokens(path: Path, tokens: Tokens) -> None:
    """Put a whole file in the place of another."""
    fresh = path.with_name(f".{path.name}.new")
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "wb") as out:
        out.write(msgspec.json.format(msgspec.json.encode(list(tokens.values())), indent=1) + b"\n")
        out.flush()
        os.fsync(out.fileno())
    fresh.rename(path)


def create_token(folder: Path, user: str, groups: tuple[str, ...], ttl: timedelta, now: datetime) -> tuple[Token, str]:
    """A new token and its text, which nobody can find out again.  Raises ValueError for what makes no sense."""
    if not user.strip():
        raise ValueError("a token is somebody's: give a user")
    if not timedelta(0) < ttl <= MAX_LIFETIME:
        raise ValueError(f"a token is good for some time, and for no more than {MAX_LIFETIME.days} days; found {ttl}")
    secret = secrets.token_urlsafe(32)
    moment = now.replace(microsecond=0)
    token = Token(secrets.token_hex(5), secret_hash(secret), user, groups, moment, moment + ttl)
    with edit_tokens(folder, now) as tokens:
        tokens[token.id] = token
    return token, f"{TOKEN_PREFIX}{token.id}.{secret}"


def revoke_token(folder: Path, id: str, now: datetime) -> Token:
    """The token that is good no more; raises KeyError where there is none of that ID."""
    with edit_tokens(folder, now) as tokens:
        return tokens.pop(id)


def remove_expired_tokens(folder: Path, now: datetime) -> None:
    """Forget those that have expired."""
    if (folder / TOKENS_FILE).exists():
        with edit_tokens(folder, now):
            pass


def secret_hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(frozen=True)
class EphemeralTokenAuthenticator:
    """A way to authenticate: by a token that was made here, until it expires or is revoked."""

    tokens: ReloadingFile[Tokens]
    now: Callable[[], datetime]

    def __call__(self, credentials: Credentials) -> User | None:
        if not credentials.bearer_token.startswith(TOKEN_PREFIX):
            return None
        id, _, secret = credentials.bearer_token.removeprefix(TOKEN_PREFIX).partition(".")
        token = self.tokens().get(id)
        if token is None or not hmac.compare_digest(token.hash, secret_hash(secret)) or token.expires <= self.now():
            return None
        return User(token.user, token.groups, extra={CREDENTIAL_ID: (f"TOKEN={id}",)})
