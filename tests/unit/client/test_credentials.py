import base64
from pathlib import Path

import pytest

from tapestry.client.credentials import Credentials, StaticAuthorization, TokenFile, basic_header, bearer_header
from tapestry.client.errors import CredentialsError
from tapestry.client.tls import CHECK_INTERVAL
from tapestry.kube.errors import TransportError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


def token_file(path: Path, clock: Clock, fallback: str = "") -> Credentials:
    return Credentials(TokenFile(path, "users[0].user.tokenFile", fallback=fallback, monotonic=clock))


def with_token(token: str) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {token}")]


async def test_anonymous_sends_no_header_and_needs_no_tls() -> None:
    anonymous = Credentials()
    assert await anonymous.headers() == []
    assert anonymous.ssl_context() is None
    assert not anonymous.handle_unauthorized()


async def test_static_header_never_changes() -> None:
    credentials = Credentials(StaticAuthorization(bearer_header("abc")))
    assert await credentials.headers() == with_token("abc")
    assert not credentials.handle_unauthorized()
    assert await credentials.headers() == with_token("abc")


def test_basic_auth_supports_non_ascii() -> None:
    assert base64.b64decode(basic_header("bjørn", "pa:ss").removeprefix("Basic ")).decode() == "bjørn:pa:ss"


async def test_token_file_is_reread_only_after_change(token, clock) -> None:
    credentials = token_file(token, clock)
    assert await credentials.headers() == with_token("first")
    token.write_text("second, longer")
    assert await credentials.headers() == with_token("first")
    clock.now += CHECK_INTERVAL
    assert await credentials.headers() == with_token("second, longer")


async def test_token_file_is_reread_at_once_after_401(token, clock) -> None:
    credentials = token_file(token, clock)
    assert await credentials.headers() == with_token("first")
    assert not credentials.handle_unauthorized(), "the file still holds the token that was refused"
    token.write_text("second")
    assert credentials.handle_unauthorized()
    assert await credentials.headers() == with_token("second")


async def test_last_token_stays_while_file_is_missing(token, clock) -> None:
    credentials = token_file(token, clock)
    assert await credentials.headers() == with_token("first")
    token.unlink()
    clock.now += CHECK_INTERVAL
    assert await credentials.headers() == with_token("first")
    token.write_text("second")
    clock.now += CHECK_INTERVAL
    assert await credentials.headers() == with_token("second")


async def test_unreadable_change_is_read_later(token, clock, no_more_files) -> None:
    credentials = token_file(token, clock)
    assert await credentials.headers() == with_token("first")
    token.write_text("second")
    clock.now += CHECK_INTERVAL
    with no_more_files():
        assert await credentials.headers() == with_token("first")
    clock.now += CHECK_INTERVAL
    assert await credentials.headers() == with_token("second")


async def test_fallback_token_is_used_until_file_is_readable(token, clock) -> None:
    token.unlink()
    credentials = token_file(token, clock, fallback="inline")
    assert await credentials.headers() == with_token("inline")
    token.write_text("first")
    clock.now += CHECK_INTERVAL
    assert await credentials.headers() == with_token("first")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file"),
        (b" \n", "is empty"),
        (b"s3cret\r\nX-Evil: yes", "has control characters"),
        (b"s3cret\xff", "not text"),
    ],
)
async def test_invalid_token_file_is_named_and_retried(token, clock, content, problem) -> None:
    if content is None:
        token.unlink()
    else:
        token.write_bytes(content)
    credentials = token_file(token, clock)
    for _ in range(2):
        with pytest.raises(CredentialsError, match=rf"users\[0\]\.user\.tokenFile: .*token: {problem}") as caught:
            await credentials.headers()
        assert "s3cret" not in str(caught.value)
    token.write_text("first")
    assert await credentials.headers() == with_token("first")


def test_credentials_error_says_nothing_about_objects() -> None:
    error = CredentialsError("no token")
    assert isinstance(error, TransportError)
    assert not error.maybe_sent
