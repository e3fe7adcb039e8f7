"""Tokens that expire and can be revoked, created on the machine of the server.

They are stored as hashes in one file of the data folder, so that readers of the file cannot use them. The server
reloads the file when it changes. A token is `tapestry.ID.SECRET`. The ID is not secret: lists show it, and `revoke`
takes it.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from tapestry.apiserver.access.authentication import CREDENTIAL_ID, Credentials
from tapestry.apiserver.access.reloading_file import ReloadingFile
from tapestry.apiserver.core.private_files import lock_file, replace_file
from tapestry.apiserver.core.requests import User

TOKENS_FILE = "tokens.json"
TOKEN_PREFIX = "tapestry."
MAX_LIFETIME = timedelta(days=365)


class Token(msgspec.Struct, frozen=True, rename="camel"):
    """One stored token."""

    id: str
    hash: str
    user: str
    groups: tuple[str, ...]
    created: datetime
    expires: datetime


Tokens = dict[str, Token]
"""Tokens by ID."""


def load_tokens(path: Path) -> Tokens:
    """Load the tokens of a file; empty if it does not exist. Raises ValueError for a malformed file."""
    try:
        result = msgspec.json.decode(path.read_bytes(), type=list[Token])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{path}: tokens cannot be read: {error}") from error
    return {each.id: each for each in result}


@contextmanager
def edit_tokens(folder: Path, now: datetime) -> Iterator[Tokens]:
    """Yield the tokens below `folder` for modification, and write them afterwards if they changed.

    A lock file serializes changes between processes. Expired tokens are removed.
    """
    path = folder / TOKENS_FILE
    with lock_file(path):
        before = load_tokens(path)
        tokens = {id: each for id, each in before.items() if each.expires > now}
        yield tokens
        if tokens != before:
            replace_file(path, msgspec.json.format(msgspec.json.encode(list(tokens.values())), indent=1) + b"\n")


def create_token(folder: Path, user: str, groups: tuple[str, ...], ttl: timedelta, now: datetime) -> tuple[Token, str]:
    """Create a token; return it and its text, which is not stored. Raises ValueError for invalid arguments."""
    if not user.strip():
        raise ValueError("a token needs a user: the user name is empty")
    if not timedelta(0) < ttl <= MAX_LIFETIME:
        raise ValueError(f"token lifetime {ttl} is not between 0 and {MAX_LIFETIME.days} days")
    secret = secrets.token_urlsafe(32)
    created = now.replace(microsecond=0)
    token = Token(secrets.token_hex(5), secret_hash(secret), user, groups, created, created + ttl)
    with edit_tokens(folder, now) as tokens:
        tokens[token.id] = token
    return token, f"{TOKEN_PREFIX}{token.id}.{secret}"


def revoke_token(folder: Path, id: str, now: datetime) -> Token:
    """Remove a token and return it. Raises KeyError for an unknown ID."""
    with edit_tokens(folder, now) as tokens:
        return tokens.pop(id)


def revoke_user_tokens(folder: Path, user: str, now: datetime) -> None:
    """Remove all tokens of a user."""
    with edit_tokens(folder, now) as tokens:
        for each in [token for token in tokens.values() if token.user == user]:
            del tokens[each.id]


def has_expired_tokens(folder: Path, now: datetime) -> bool:
    return any(each.expires <= now for each in load_tokens(folder / TOKENS_FILE).values())


def remove_expired_tokens(folder: Path, now: datetime) -> None:
    """Remove expired tokens from the file."""
    with edit_tokens(folder, now):
        pass


def secret_hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(frozen=True)
class EphemeralTokenAuthenticator:
    """Authenticate tokens of this module until they expire or are revoked."""

    tokens: ReloadingFile[Tokens]
    now: Callable[[], datetime]

    def __call__(self, credentials: Credentials) -> User | None:
        if not credentials.bearer_token.startswith(TOKEN_PREFIX):
            return None
        id, _, secret = credentials.bearer_token.removeprefix(TOKEN_PREFIX).partition(".")
        token = self.tokens().get(id) or self.tokens.latest().get(id)
        if token is None or not hmac.compare_digest(token.hash, secret_hash(secret)) or token.expires <= self.now():
            return None
        return User(token.user, token.groups, extra={CREDENTIAL_ID: (f"TOKEN={id}",)})
