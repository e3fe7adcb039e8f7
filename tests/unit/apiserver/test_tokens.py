"""Tokens: those of a file, those that expire, and those of service accounts under more than one key."""

import base64
import json
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tapestry.apiserver.access import ephemeral, followed
from tapestry.apiserver.access.authentication import (
    AUTHENTICATED,
    Authenticator,
    Credentials,
    StaticTokens,
    by_certificate,
    token_file,
)
from tapestry.apiserver.access.ephemeral import EphemeralTokens, tokens_in
from tapestry.apiserver.access.followed import Followed
from tapestry.apiserver.access.service_accounts import Accounts
from tapestry.apiserver.access.signing import Private, keys_in
from tapestry.apiserver.requests import User
from tapestry.cli.token import token as command
from tapestry.kube.errors import Forbidden, Unauthorized

from .conftest import Hand

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def written(path: Path, text: str) -> Path:
    """A file that nobody else may read, and that differs in its time from what was there before."""
    path.write_text(text)
    path.chmod(0o600)
    os.utime(path, ns=(0, written.count * 1_000_000))  # type: ignore[attr-defined]
    written.count += 1  # type: ignore[attr-defined]
    return path


written.count = 1  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at on every request."""
    monkeypatch.setattr(followed, "PAUSE", 0.0)


# -- the token file


def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = written(tmp_path / "tokens", 'aaa,jane,1,"devs,ops"\n')
    tokens = StaticTokens(Followed(path, token_file))
    assert tokens(Credentials(bearer="aaa")) == User("jane", ("devs", "ops", AUTHENTICATED), "1")
    written(path, "bbb,joe,2\n")
    assert tokens(Credentials(bearer="aaa")) is None
    assert tokens(Credentials(bearer="bbb")) == User("joe", (AUTHENTICATED,), "2")


@pytest.mark.parametrize("fault", ["unreadable", "public", "gone"])
def test_a_token_file_that_becomes_unusable_leaves_what_was_in_it(tmp_path: Path, fault: str) -> None:
    path = written(tmp_path / "tokens", "aaa,jane,1\n")
    tokens = StaticTokens(Followed(path, token_file))
    if fault == "unreadable":
        written(path, "bbb\n")
    elif fault == "public":
        written(path, "bbb,joe,1\n").chmod(0o644)
    else:
        path.unlink()
    assert tokens(Credentials(bearer="aaa")) == User("jane", (AUTHENTICATED,), "1")
    assert tokens(Credentials(bearer="bbb")) is None


def test_a_token_file_that_is_unusable_from_the_start_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "tokens", "aaa,jane,1\n")
    path.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        Followed(path, token_file)


def test_kubectl_is_refused_tokens_that_last_where_it_must_use_others(tmp_path: Path) -> None:
    path = written(tmp_path / "tokens", "aaa,jane,1\n")
    tokens = StaticTokens(Followed(path, token_file), kubectl_refused=True)
    with pytest.raises(Forbidden, match="tapestry token create"):
        tokens(Credentials(bearer="aaa", agent="kubectl/v1.34.3"))
    assert tokens(Credentials(bearer="other", agent="kubectl/v1.34.3")) is None
    assert tokens(Credentials(bearer="aaa", agent="curl/8")) == User("jane", (AUTHENTICATED,), "1")


# -- tokens that expire


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def way(tmp_path: Path, clock: Clock) -> EphemeralTokens:
    return EphemeralTokens(Followed(tmp_path / ephemeral.NAME, tokens_in), clock)


def test_a_token_is_good_from_when_it_is_made_until_it_expires(
    tmp_path: Path, clock: Clock, way: EphemeralTokens
) -> None:
    token, text = ephemeral.create(tmp_path, "jane", ("devs",), HOUR, NOW)
    extra = {"authentication.kubernetes.io/credential-id": (f"TOKEN={token.id}",)}
    assert way(Credentials(bearer=text)) == User("jane", ("devs",), extra=extra)
    clock.now = NOW + HOUR
    assert way(Credentials(bearer=text)) is None


def test_a_token_that_is_revoked_is_good_no_more_and_others_are(tmp_path: Path, way: EphemeralTokens) -> None:
    first, text = ephemeral.create(tmp_path, "jane", (), HOUR, NOW)
    _, other = ephemeral.create(tmp_path, "joe", (), HOUR, NOW)
    assert way(Credentials(bearer=text)) is not None
    ephemeral.revoke(tmp_path, first.id, NOW)
    assert way(Credentials(bearer=text)) is None
    assert way(Credentials(bearer=other)) is not None
    with pytest.raises(KeyError):
        ephemeral.revoke(tmp_path, first.id, NOW)


def test_a_token_with_another_secret_is_nobodys(tmp_path: Path, way: EphemeralTokens) -> None:
    token, text = ephemeral.create(tmp_path, "jane", (), HOUR, NOW)
    for guess in (text[:-1], text + "x", f"tapestry.{token.id}.", f"tapestry.{token.id}.{token.hash}", "tapestry..x"):
        assert way(Credentials(bearer=guess)) is None
    with pytest.raises(Unauthorized):
        Authenticator([way])(Credentials(bearer=text + "x"))


def test_what_is_kept_is_for_its_owner_and_has_no_secrets_in_it(tmp_path: Path) -> None:
    _, text = ephemeral.create(tmp_path, "jane", (), HOUR, NOW)
    path = tmp_path / ephemeral.NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert text.rpartition(".")[2] not in path.read_text()


def test_tokens_that_have_expired_are_swept(tmp_path: Path) -> None:
    ephemeral.create(tmp_path, "jane", (), HOUR, NOW)
    late, _ = ephemeral.create(tmp_path, "joe", (), HOUR, NOW + 2 * HOUR)
    assert set(tokens_in(tmp_path / ephemeral.NAME)) == {late.id}
    ephemeral.sweep(tmp_path, NOW + 3 * HOUR)
    assert tokens_in(tmp_path / ephemeral.NAME) == {}


@pytest.mark.parametrize(("user", "ttl"), [(" ", HOUR), ("jane", timedelta(0)), ("jane", timedelta(days=1000))])
def test_a_token_that_makes_no_sense_is_not_made(tmp_path: Path, user: str, ttl: timedelta) -> None:
    with pytest.raises(ValueError, match="a token is"):
        ephemeral.create(tmp_path, user, (), ttl, NOW)
    assert not (tmp_path / ephemeral.NAME).exists()


def test_a_file_of_tokens_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    (tmp_path / ephemeral.NAME).write_text("nonsense")
    with pytest.raises(ValueError, match=ephemeral.NAME):
        tokens_in(tmp_path / ephemeral.NAME)


def test_the_command_makes_shows_and_revokes_tokens(tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(command, [arguments[0], "--file-rootpath", str(tmp_path), *arguments[1:]])
        return result.exit_code, result.output

    code, text = run("create", "--user", "jane", "--group", "devs", "--group", "ops", "--ttl", "30m")
    assert (code, text.startswith("tapestry.")) == (0, True)
    _, id, secret = text.strip().split(".", 2)
    code, shown = run("list")
    heads, line = shown.splitlines()
    assert (heads.split(), line.split()[:3]) == (["ID", "USER", "GROUPS", "EXPIRES"], [id, "jane", "devs,ops"])
    assert secret not in shown
    assert run("revoke", id) == (0, f"token {id} of jane is revoked\n")
    code, said = run("revoke", id)
    assert (code, "there is no such token" in said) == (1, True)
    assert run("list")[1].splitlines() == ["ID   USER   GROUPS   EXPIRES"]
    code, said = run("create", "--user", "jane", "--ttl", "soon")
    assert (code, "--ttl" in said) == (1, True)


# -- certificates


def test_a_certificate_is_told_apart_by_its_digest() -> None:
    user = by_certificate(Credentials(certificate={"commonName": ["jane"], "sha256": ["abc"]}))
    assert user is not None
    assert user.extra == {"authentication.kubernetes.io/credential-id": ("X509SHA256=abc",)}


def test_without_anonymous_requests_everybody_must_show_something() -> None:
    assert Authenticator([])(Credentials()).name == "system:anonymous"
    with pytest.raises(Unauthorized):
        Authenticator([], is_open=False)(Credentials())


# -- keys


def pem(key: Private, path: Path, *, public: bool = False) -> Path:
    if public:
        raw = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    else:
        raw = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    path.write_bytes(raw)
    return path


MAKERS: dict[str, Callable[[], Private]] = {
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "ES512": lambda: ec.generate_private_key(ec.SECP521R1()),
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
}


@pytest.mark.parametrize("algorithm", MAKERS)
def test_a_token_is_known_again_by_the_key_that_signed_it(tmp_path: Path, algorithm: str) -> None:
    keys = keys_in(pem(MAKERS[algorithm](), tmp_path / "key"))
    token = keys.signed({"sub": "jane"})
    head = json.loads(base64.urlsafe_b64decode(token.partition(".")[0] + "=="))
    assert head == {"alg": algorithm, "kid": keys.jwks[0]["kid"]}
    assert keys.claims(token) == {"sub": "jane"}
    body, _, signature = token.rpartition(".")
    other = "A" if signature[0] != "A" else "B"
    assert keys.claims(f"{body}.{other}{signature[1:]}") is None
    assert keys_in(pem(MAKERS[algorithm](), tmp_path / "another")).claims(token) is None
    for nonsense in ("", "..", "a.b.c", token + "=", "é.é.é"):
        assert keys.claims(nonsense) is None


def test_keys_can_be_changed_without_a_token_being_lost(tmp_path: Path) -> None:
    old, new = MAKERS["ES256"](), MAKERS["RS256"]()
    before = keys_in(pem(old, tmp_path / "old"), [pem(new, tmp_path / "new.pub", public=True)])
    after = keys_in(pem(new, tmp_path / "new"), [pem(old, tmp_path / "old.pub", public=True)])
    assert after.claims(before.signed({"sub": "jane"})) == {"sub": "jane"}
    assert before.claims(after.signed({"sub": "joe"})) == {"sub": "joe"}
    assert [key["alg"] for key in after.jwks] == ["RS256", "ES256"]
    assert {key["kid"] for key in before.jwks} == {key["kid"] for key in after.jwks}


@pytest.mark.parametrize("content", [b"", b"nonsense", "ed25519"])
def test_a_file_without_a_usable_key_is_refused(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "key"
    if isinstance(content, str):
        content = ed25519.Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    path.write_bytes(content)
    with pytest.raises(ValueError, match="key"):
        keys_in(path)


# -- audiences


async def test_tokens_are_for_the_audiences_of_the_server_unless_they_say_otherwise(call: Hand, tmp_path: Path) -> None:
    account = await call.made("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "robot"}})
    store, now = call.server.verbs.store, call.accounts.now
    accounts = Accounts(store, keys_in(tmp_path / "other"), "https://here", now, ("api", "https://api"))
    for audiences, is_ours in (([], True), (["api"], True), (["vault"], False)):
        token = accounts.token(account, {"audiences": audiences}, None)["token"]
        assert (accounts(Credentials(bearer=token)) is not None) is is_ours
        assert (accounts.user(token, ["vault"]) is not None) is not is_ours


async def test_a_review_of_a_token_says_whose_it_is_and_for_whom(call: Hand) -> None:
    account = await call.made("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "robot"}})
    token = call.accounts.token(account, {}, None)["token"]
    reviews = "/apis/authentication.k8s.io/v1/tokenreviews"
    _, found = await call("POST", reviews, {"spec": {"token": token}})
    status = found["status"]
    assert (status["authenticated"], status["audiences"]) == (True, ["https://here"])
    assert status["user"]["username"] == "system:serviceaccount:default:robot"
    assert "system:authenticated" in status["user"]["groups"]
    _, found = await call("POST", reviews, {"spec": {"token": token, "audiences": ["vault"]}})
    assert "authenticated" not in found["status"]
