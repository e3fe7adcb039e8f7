"""Tokens of the token file, tokens that expire, and signing keys of service account tokens."""

import base64
import json
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tapestry.apiserver.access import ephemeral_tokens, reloading_file
from tapestry.apiserver.access.authentication import (
    AUTHENTICATED,
    Credentials,
    StaticTokenAuthenticator,
    UnionAuthenticator,
    authenticate_certificate,
    load_token_file,
)
from tapestry.apiserver.access.ephemeral_tokens import EphemeralTokenAuthenticator, load_tokens
from tapestry.apiserver.access.reloading_file import ReloadingFile
from tapestry.apiserver.access.service_account_tokens import ServiceAccountTokens
from tapestry.apiserver.access.token_keys import PrivateKey, load_token_keys
from tapestry.apiserver.core.requests import User
from tapestry.cli.token import token as command
from tapestry.kube.errors import Forbidden, Unauthorized

from ..conftest import ServerClient

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def write_private(path: Path, text: str) -> Path:
    """Write a file that only its owner can read, with a new modification time."""
    path.write_text(text)
    path.chmod(0o600)
    os.utime(path, ns=(0, write_private.count * 1_000_000))  # type: ignore[attr-defined]
    write_private.count += 1  # type: ignore[attr-defined]
    return path


write_private.count = 1  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check files for changes on every request."""
    monkeypatch.setattr(reloading_file, "CHECK_INTERVAL", 0.0)


# -- the token file


def test_changed_token_file_is_reloaded(tmp_path: Path) -> None:
    path = write_private(tmp_path / "tokens", 'aaa,jane,1,"devs,ops"\n')
    tokens = StaticTokenAuthenticator(ReloadingFile(path, load_token_file))
    assert tokens(Credentials(bearer_token="aaa")) == User("jane", ("devs", "ops", AUTHENTICATED), "1")
    write_private(path, "bbb,joe,2\n")
    assert tokens(Credentials(bearer_token="aaa")) is None
    assert tokens(Credentials(bearer_token="bbb")) == User("joe", (AUTHENTICATED,), "2")


@pytest.mark.parametrize("fault", ["unreadable", "public", "missing"])
def test_invalid_token_file_keeps_previous_tokens(tmp_path: Path, fault: str) -> None:
    path = write_private(tmp_path / "tokens", "aaa,jane,1\n")
    tokens = StaticTokenAuthenticator(ReloadingFile(path, load_token_file))
    if fault == "unreadable":
        write_private(path, "bbb\n")
    elif fault == "public":
        write_private(path, "bbb,joe,1\n").chmod(0o644)
    else:
        path.unlink()
    assert tokens(Credentials(bearer_token="aaa")) == User("jane", (AUTHENTICATED,), "1")
    assert tokens(Credentials(bearer_token="bbb")) is None


def test_initially_invalid_token_file_is_rejected(tmp_path: Path) -> None:
    path = write_private(tmp_path / "tokens", "aaa,jane,1\n")
    path.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        ReloadingFile(path, load_token_file)


def test_kubectl_cannot_use_static_tokens_when_forbidden(tmp_path: Path) -> None:
    path = write_private(tmp_path / "tokens", "aaa,jane,1\n")
    tokens = StaticTokenAuthenticator(ReloadingFile(path, load_token_file), rejects_kubectl=True)
    with pytest.raises(Forbidden, match="tapestry token create"):
        tokens(Credentials(bearer_token="aaa", user_agent="kubectl/v1.34.3"))
    assert tokens(Credentials(bearer_token="other", user_agent="kubectl/v1.34.3")) is None
    assert tokens(Credentials(bearer_token="aaa", user_agent="curl/8")) == User("jane", (AUTHENTICATED,), "1")


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
def authenticator(tmp_path: Path, clock: Clock) -> EphemeralTokenAuthenticator:
    return EphemeralTokenAuthenticator(ReloadingFile(tmp_path / ephemeral_tokens.TOKENS_FILE, load_tokens), clock)


def test_token_is_valid_until_it_expires(
    tmp_path: Path, clock: Clock, authenticator: EphemeralTokenAuthenticator
) -> None:
    token, text = ephemeral_tokens.create_token(tmp_path, "jane", ("devs",), HOUR, NOW)
    extra = {"authentication.kubernetes.io/credential-id": (f"TOKEN={token.id}",)}
    assert authenticator(Credentials(bearer_token=text)) == User("jane", ("devs",), extra=extra)
    clock.now = NOW + HOUR
    assert authenticator(Credentials(bearer_token=text)) is None


def test_revoked_token_is_rejected(tmp_path: Path, authenticator: EphemeralTokenAuthenticator) -> None:
    first, text = ephemeral_tokens.create_token(tmp_path, "jane", (), HOUR, NOW)
    _, other = ephemeral_tokens.create_token(tmp_path, "joe", (), HOUR, NOW)
    assert authenticator(Credentials(bearer_token=text)) is not None
    ephemeral_tokens.revoke_token(tmp_path, first.id, NOW)
    assert authenticator(Credentials(bearer_token=text)) is None
    assert authenticator(Credentials(bearer_token=other)) is not None
    with pytest.raises(KeyError):
        ephemeral_tokens.revoke_token(tmp_path, first.id, NOW)


def test_token_with_wrong_secret_is_rejected(tmp_path: Path, authenticator: EphemeralTokenAuthenticator) -> None:
    token, text = ephemeral_tokens.create_token(tmp_path, "jane", (), HOUR, NOW)
    for guess in (text[:-1], text + "x", f"tapestry.{token.id}.", f"tapestry.{token.id}.{token.hash}", "tapestry..x"):
        assert authenticator(Credentials(bearer_token=guess)) is None
    with pytest.raises(Unauthorized):
        UnionAuthenticator([authenticator])(Credentials(bearer_token=text + "x"))


def test_token_file_is_private_and_has_no_secrets(tmp_path: Path) -> None:
    _, text = ephemeral_tokens.create_token(tmp_path, "jane", (), HOUR, NOW)
    path = tmp_path / ephemeral_tokens.TOKENS_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert text.rpartition(".")[2] not in path.read_text()


def test_expired_tokens_are_removed(tmp_path: Path) -> None:
    ephemeral_tokens.create_token(tmp_path, "jane", (), HOUR, NOW)
    late, _ = ephemeral_tokens.create_token(tmp_path, "joe", (), HOUR, NOW + 2 * HOUR)
    assert set(load_tokens(tmp_path / ephemeral_tokens.TOKENS_FILE)) == {late.id}
    ephemeral_tokens.remove_expired_tokens(tmp_path, NOW + 3 * HOUR)
    assert load_tokens(tmp_path / ephemeral_tokens.TOKENS_FILE) == {}


@pytest.mark.parametrize(("user", "ttl"), [(" ", HOUR), ("jane", timedelta(0)), ("jane", timedelta(days=1000))])
def test_invalid_token_arguments_are_rejected(tmp_path: Path, user: str, ttl: timedelta) -> None:
    with pytest.raises(ValueError, match=r"a token needs|token lifetime"):
        ephemeral_tokens.create_token(tmp_path, user, (), ttl, NOW)
    assert not (tmp_path / ephemeral_tokens.TOKENS_FILE).exists()


def test_malformed_token_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / ephemeral_tokens.TOKENS_FILE).write_text("nonsense")
    with pytest.raises(ValueError, match=ephemeral_tokens.TOKENS_FILE):
        load_tokens(tmp_path / ephemeral_tokens.TOKENS_FILE)


def test_command_creates_lists_and_revokes_tokens(tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(command, [arguments[0], "--file-rootpath", str(tmp_path), *arguments[1:]])
        return result.exit_code, result.output

    code, text = run("create", "--user", "jane", "--group", "devs", "--group", "ops", "--ttl", "30m")
    assert (code, text.startswith("tapestry.")) == (0, True)
    _, id, secret = text.strip().split(".", 2)
    code, listed = run("list")
    header, line = listed.splitlines()
    assert (header.split(), line.split()[:3]) == (["ID", "USER", "GROUPS", "EXPIRES"], [id, "jane", "devs,ops"])
    assert secret not in listed
    assert run("revoke", id) == (0, f"token {id} of jane is revoked\n")
    code, output = run("revoke", id)
    assert (code, "there is no such token" in output) == (1, True)
    assert run("list")[1].splitlines() == ["ID   USER   GROUPS   EXPIRES"]
    code, output = run("create", "--user", "jane", "--ttl", "soon")
    assert (code, "--ttl" in output) == (1, True)


# -- certificates


def test_certificate_digest_is_the_credential_id() -> None:
    user = authenticate_certificate(Credentials(certificate={"commonName": ["jane"], "sha256": ["abc"]}))
    assert user is not None
    assert user.extra == {"authentication.kubernetes.io/credential-id": ("X509SHA256=abc",)}


def test_anonymous_requests_can_be_disabled() -> None:
    assert UnionAuthenticator([])(Credentials()).name == "system:anonymous"
    with pytest.raises(Unauthorized):
        UnionAuthenticator([], allow_anonymous=False)(Credentials())


# -- keys


def pem(key: PrivateKey, path: Path, *, public: bool = False) -> Path:
    if public:
        raw = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    else:
        raw = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    path.write_bytes(raw)
    return path


KEY_GENERATORS: dict[str, Callable[[], PrivateKey]] = {
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "ES512": lambda: ec.generate_private_key(ec.SECP521R1()),
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
}


@pytest.mark.parametrize("algorithm", KEY_GENERATORS)
def test_token_is_verified_by_its_signing_key(tmp_path: Path, algorithm: str) -> None:
    keys = load_token_keys(pem(KEY_GENERATORS[algorithm](), tmp_path / "key"))
    token = keys.sign({"sub": "jane"})
    head = json.loads(base64.urlsafe_b64decode(token.partition(".")[0] + "=="))
    assert head == {"alg": algorithm, "kid": keys.jwks[0]["kid"]}
    assert keys.verified_claims(token) == {"sub": "jane"}
    body, _, signature = token.rpartition(".")
    other = "A" if signature[0] != "A" else "B"
    assert keys.verified_claims(f"{body}.{other}{signature[1:]}") is None
    assert load_token_keys(pem(KEY_GENERATORS[algorithm](), tmp_path / "another")).verified_claims(token) is None
    for nonsense in ("", "..", "a.b.c", token + "=", "é.é.é"):
        assert keys.verified_claims(nonsense) is None


def test_token_has_one_form_only(tmp_path: Path) -> None:
    keys = load_token_keys(tmp_path / "key")
    token = next(each for number in range(1000) if "-" in (each := keys.sign({"sub": str(number)})))
    assert keys.verified_claims(token) is not None
    assert keys.verified_claims(token.replace("-", "+")) is None  # the other alphabet of base64
    assert keys.verified_claims(token[:-1] + chr(ord(token[-1]) + 1)) is None  # other bits after the last byte
    assert keys.verified_claims(token + "\n") is None


def test_key_rotation_keeps_tokens_valid(tmp_path: Path) -> None:
    old, new = KEY_GENERATORS["ES256"](), KEY_GENERATORS["RS256"]()
    before = load_token_keys(pem(old, tmp_path / "old"), [pem(new, tmp_path / "new.pub", public=True)])
    after = load_token_keys(pem(new, tmp_path / "new"), [pem(old, tmp_path / "old.pub", public=True)])
    assert after.verified_claims(before.sign({"sub": "jane"})) == {"sub": "jane"}
    assert before.verified_claims(after.sign({"sub": "joe"})) == {"sub": "joe"}
    assert [key["alg"] for key in after.jwks] == ["RS256", "ES256"]
    assert {key["kid"] for key in before.jwks} == {key["kid"] for key in after.jwks}


@pytest.mark.parametrize("content", [b"", b"nonsense", "ed25519"])
def test_file_without_usable_key_is_rejected(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "key"
    if isinstance(content, str):
        content = ed25519.Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    path.write_bytes(content)
    with pytest.raises(ValueError, match="key"):
        load_token_keys(path)


# -- audiences


async def test_tokens_are_for_server_audiences_by_default(call: ServerClient, tmp_path: Path) -> None:
    account = await call.made("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "robot"}})
    store, now = call.server.verbs.store, call.accounts.now
    load_keys = partial(load_token_keys, tmp_path / "other")
    accounts = ServiceAccountTokens(store, load_keys, "https://here", now, ("api", "https://api"))
    for audiences, is_own in (([], True), (["api"], True), (["vault"], False)):
        token = accounts.issue_token(account, {"audiences": audiences}, None)["token"]
        assert (accounts(Credentials(bearer_token=token)) is not None) is is_own
        assert (accounts.user_for_token(token, ["vault"]) is not None) is not is_own


async def test_token_review_returns_user_and_audiences(call: ServerClient) -> None:
    account = await call.made("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "robot"}})
    token = call.accounts.issue_token(account, {}, None)["token"]
    reviews = "/apis/authentication.k8s.io/v1/tokenreviews"
    _, result = await call("POST", reviews, {"spec": {"token": token}})
    status = result["status"]
    assert (status["authenticated"], status["audiences"]) == (True, ["https://here"])
    assert status["user"]["username"] == "system:serviceaccount:default:robot"
    assert "system:authenticated" in status["user"]["groups"]
    _, result = await call("POST", reviews, {"spec": {"token": token, "audiences": ["vault"]}})
    assert "authenticated" not in result["status"]
