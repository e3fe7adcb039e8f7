"""Hostile kubeconfigs: each is rejected with the wrong field, and nothing is run, opened or dialed.

An audit hook of the interpreter watches every call and proves the second half.
"""

import base64
import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tapestry.client.addresses import AddressPolicy
from tapestry.client.errors import KubeconfigError
from tapestry.client.kubeconfig import load_access
from tapestry.client.strict_kubeconfig import MAX_BYTES, strict_access

# Audit events of running a program, accessing a file or connecting, by prefix.
DEEDS = (
    *("open", "os.", "subprocess.", "pty.", "shutil.", "tempfile.", "glob.", "pathlib.", "mmap.", "fcntl."),
    *("socket.", "urllib.", "http.", "ftplib.", "smtplib.", "telnetlib.", "webbrowser.", "ctypes.", "import"),
    *("exec", "compile", "marshal.", "pickle.", "code.", "sqlite3."),
)
watching: list[list[tuple[Any, ...]]] = []


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    wraps_a_descriptor = event == "open" and isinstance(arguments[0], int)  # anonymous memory for OpenSSL
    if watching and event.startswith(DEEDS) and not wraps_a_descriptor:
        watching[-1].append((event, *arguments))


sys.addaudithook(watch)  # cannot be removed; idle outside of side_effects()


@contextmanager
def side_effects() -> Iterator[list[tuple[Any, ...]]]:
    """Record the side effects of a block that are visible outside the process."""
    seen: list[tuple[Any, ...]] = []
    watching.append(seen)
    try:
        yield seen
    finally:
        watching.remove(seen)


def new_kubeconfig(*, user: Any = None, cluster: Any = None, context: Any = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "https://api.test:6443", **(cluster or {})}}],
        "users": [{"name": "c", "user": {"token": "s3cret", **(user or {})}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c", **(context or {})}}],
    }


def with_harmless_entries_first(document: dict[str, Any]) -> dict[str, Any]:
    """Return `document` with harmless entries first, and the current context on these."""
    harmless = new_kubeconfig()
    names = {part: [{**each, "name": "hidden"} for each in document[part]] for part in ("clusters", "users")}
    return {**harmless, **{part: harmless[part] + names[part] for part in names}}


def data(document: Any) -> bytes:
    if isinstance(document, bytes):
        return document
    return (document if isinstance(document, str) else yaml.safe_dump(document)).encode()


@pytest.fixture(scope="module", autouse=True)
def warm_up() -> None:
    """Import and cache everything that is loaded on first use."""
    strict_access(data(new_kubeconfig()))
    for broken in (
        "a: [",
        "a: &x 1",
        new_kubeconfig(user={"exec": {}}),
        new_kubeconfig(cluster={"server": "https://ä"}),
    ):
        with pytest.raises(KubeconfigError):
            strict_access(data(broken))


def rejection_of(document: Any, **options: Any) -> str:
    """Return the error of a kubeconfig.  It must occur without side effects and contain no secrets."""
    content = data(document)
    with side_effects() as seen:
        try:
            strict_access(content, **options)
        except KubeconfigError as error:
            refused: KubeconfigError | None = error
        else:
            refused = None
    assert seen == []
    assert refused is not None
    assert "s3cret" not in "".join(traceback.format_exception(refused))
    return str(refused)


EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh", "args": ["-c", "touch /tmp/pwned"]}

HOSTILE_USERS: dict[str, tuple[dict[str, Any], str]] = {
    "a program": ({"exec": EXEC}, "exec: not allowed in a kubeconfig from a Secret; use a token or inline"),
    "a program instead of a token": ({"token": "", "exec": EXEC}, "exec: not allowed"),
    "a program by a name on the path": ({"exec": {**EXEC, "command": "curl"}}, "exec: not allowed"),
    "an empty program": ({"exec": {}}, "exec: not allowed"),
    "a program that is a text": ({"exec": "rm -rf /"}, "exec: Expected `object | null`, got `str`"),
    "a program in a list": ({"exec": [EXEC]}, "exec: Expected `object | null`, got `array`"),
    "an auth provider": (
        {"auth-provider": {"name": "gcp", "config": {"cmd-path": "sh"}}},
        "auth-provider: not allowed",
    ),
    "an empty auth provider": ({"auth-provider": {}}, "auth-provider: not allowed"),
    "an auth provider that is a text": ({"auth-provider": "gcp"}, "auth-provider: not allowed"),
    "our own token": ({"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}, "tokenFile: not allowed"),
    "a device": ({"tokenFile": "/dev/zero"}, "tokenFile: not allowed"),
    "a relative token file": ({"tokenFile": "../token"}, "tokenFile: not allowed"),
    "a key in a file": ({"client-key": "/etc/shadow"}, "client-key: not allowed"),
    "a key in a file beside one inline": ({"client-key": "x", "client-key-data": "eA=="}, "client-key: not allowed"),
    "a certificate in a file": ({"client-certificate": "/proc/self/environ"}, "client-certificate: not allowed"),
    "a certificate without a key": ({"client-certificate-data": "eA=="}, "client-key: not set"),
    "a key that is not base64": ({"client-key-data": "s3cret*"}, "client-key-data: not base64"),
    "a header in a token": ({"token": "s3cret\r\nImpersonate-User: admin"}, "token: has control characters"),
    "a line break in a token": ({"token": "s3cret\n"}, "token: has control characters"),
    "a NUL in a user name": ({"token": "", "username": "s3cret\0"}, "username: has control characters"),
    "a header in a password": ({"token": "", "password": "s3cret\r\na: b"}, "password: has control characters"),
    "two ways at once": ({"username": "root"}, "users[0].user: both a token and a username or password"),
    "a header in an impersonated user": ({"as": "s3cret\r\nAuthorization: x"}, "as: not allowed"),
    "a header in a uid": ({"as": "a", "as-uid": "s3cret\n"}, "as: not allowed"),
    "a header in a group": ({"as": "a", "as-groups": ["a", "s3cret\r"]}, "as: not allowed"),
    "an empty group": ({"as": "a", "as-groups": [""]}, "as: not allowed"),
    "groups of nobody": ({"as-groups": ["system:masters"]}, "as-groups: not allowed"),
    "a header in an extra": ({"as": "a", "as-user-extra": {"k": ["s3cret\n"]}}, "as: not allowed"),
    "somebody else": ({"as": "system:admin"}, "as: not allowed in a kubeconfig from a Secret"),
    "the uid of somebody else": ({"as-uid": "1"}, "as-uid: not allowed"),
    "an extra of somebody else": ({"as-user-extra": {"k": ["v"]}}, "as-user-extra: not allowed"),
    "a misspelled field": ({"tokenfile": "/etc/passwd"}, "tokenfile: not a field of a kubeconfig"),
    "a field that may be a secret": ({"s3cret s3cret": "x"}, "?: not a field of a kubeconfig"),
    "a token that is a mapping": ({"token": {"a": "s3cret"}}, "token: Expected `str`, got `object`"),
    "a file name in a list": ({"tokenFile": ["/etc/passwd"]}, "tokenFile: Expected `str`, got `array`"),
}

HOSTILE_CLUSTERS: dict[str, tuple[dict[str, Any], str]] = {
    "an authority in a file": ({"certificate-authority": "/etc/passwd"}, "certificate-authority: not allowed"),
    "a relative authority": ({"certificate-authority": "ca.crt"}, "certificate-authority: not allowed"),
    "a proxy": ({"proxy-url": "http://evil.test:3128"}, "proxy-url: not allowed in a kubeconfig from a Secret"),
    "a SOCKS proxy": ({"proxy-url": "socks5://evil.test"}, "proxy-url: not allowed"),
    "no verification": ({"insecure-skip-tls-verify": True}, "insecure-skip-tls-verify: not allowed"),
    "no verification in words": ({"insecure-skip-tls-verify": "true"}, "insecure-skip-tls-verify: Expected `bool`"),
    "plain HTTP": ({"server": "http://api.test"}, "server: not allowed in a kubeconfig from a Secret; plain HTTP"),
    "plain HTTP to ourselves": ({"server": "http://127.0.0.1:6080"}, "server: not allowed"),
    "plain HTTP in capitals": ({"server": "HTTP://api.test"}, "server: not allowed"),
    "the metadata service": ({"server": "http://169.254.169.254/latest"}, "server: not allowed"),
    "the metadata service by TLS": ({"server": "https://169.254.169.254"}, "server: not allowed in a kubeconfig from"),
    "the metadata service by IPv6": ({"server": "https://[::ffff:a9fe:a9fe]"}, "server: not allowed"),
    "the metadata service by NAT64": ({"server": "https://[64:ff9b::a9fe:a9fe]"}, "server: not allowed"),
    "an address of the link": ({"server": "https://[fe80::1]:6443"}, "server: not allowed"),
    "loopback": ({"server": "https://127.0.0.1:6443"}, "server: not allowed"),
    "loopback by another address": ({"server": "https://127.9.9.9:6443"}, "server: not allowed"),
    "loopback by IPv6": ({"server": "https://[::1]:6443"}, "server: not allowed"),
    "loopback in an IPv6 address": ({"server": "https://[::ffff:127.0.0.1]:6443"}, "server: not allowed"),
    "loopback by name": ({"server": "https://LocalHost.:6443"}, "server: not allowed"),
    "loopback by a name below": ({"server": "https://api.localhost"}, "server: not allowed"),
    "no address": ({"server": "https://0.0.0.0:6443"}, "server: not allowed"),
    "no address by IPv6": ({"server": "https://[::]:6443"}, "server: not allowed"),
    "a multicast address": ({"server": "https://224.0.0.1"}, "server: not allowed"),
    "an unknown field": ({"serverr": "x"}, "serverr: not a field of a kubeconfig; remove it"),
    "a file as a server": ({"server": "file:///etc/passwd"}, "server: a URL must begin with https://"),
    "a socket as a server": ({"server": "unix:///run/docker.sock"}, "server: a URL must begin with https://"),
    "a server without a scheme": ({"server": "api.test:6443"}, "server: a URL must begin with https://"),
    "no server": ({"server": ""}, "server: a URL must begin with https://"),
    "a server without a host": ({"server": "https:///api"}, "server: a URL without a host"),
    "a user in the server": ({"server": "https://u:s3cret@api.test"}, "server: a URL with a user or password"),
    "another host behind an at sign": ({"server": "https://api.test@evil.test"}, "server: a URL with a user"),
    "a query in the server": ({"server": "https://api.test/?x=s3cret"}, "server: a URL with a query or fragment"),
    "an empty query": ({"server": "https://api.test/?"}, "server: a URL with a query or fragment"),
    "a fragment in the server": ({"server": "https://api.test/#s3cret"}, "server: a URL with a query or fragment"),
    "a backslash in the server": ({"server": "https://api.test\\.evil.test"}, "server: a URL with spaces, backslashes"),
    "a header in the server": ({"server": "https://api.test/\r\nHost: s3cret"}, "server: a URL with spaces"),
    "a tab that others drop": ({"server": "htt\tps://api.test"}, "server: a URL with spaces"),
    "letters that look alike": ({"server": "https://аpi.test"}, "server: a URL with spaces, backslashes or characters"),
    "a port that is none": ({"server": "https://api.test:99999"}, "server: not a URL"),
    "an address of one link": ({"server": "https://[fe80::1%25lo]:6443"}, "server: not a host name or address"),
    "an authority that is not base64": ({"certificate-authority-data": "s3cret*"}, "certificate-authority-data: not"),
}

HOSTILE_DOCUMENTS: dict[str, tuple[Any, str]] = {
    "nothing": (b"", "current-context: not set"),
    "a list": ("[]", "document: Expected `object`, got `array`"),
    "a text": ("s3cret", "document: Expected `object`, got `str`"),
    "another kind": ({**new_kubeconfig(), "kind": "Secret"}, "kind: not a kubeconfig"),
    "users that are a mapping": ({**new_kubeconfig(), "users": {"c": {}}}, "users: Expected `array`, got `object`"),
    "an unknown key": ({**new_kubeconfig(), "Users": []}, "Users: not a field of a kubeconfig"),
    "an unknown key of a preference": (
        {**new_kubeconfig(), "preferences": {"exec": "x"}},
        "preferences.exec: not a field",
    ),
    "an unknown key of a context": (new_kubeconfig(context={"users": "x"}), "contexts[0].context.users: not a field"),
    "no current context": ({**new_kubeconfig(), "current-context": ""}, "current-context: not set; choose one of 'c'"),
    "an unknown context": ({**new_kubeconfig(), "current-context": "x"}, "current-context: 'x' does not exist"),
    "an unknown cluster": (
        new_kubeconfig(context={"cluster": "x"}),
        "contexts[0].context.cluster: 'x' does not",
    ),
    "an unknown user": (new_kubeconfig(context={"user": "x"}), "contexts[0].context.user: 'x' does not exist"),
    "a namespace that is a path": (new_kubeconfig(context={"namespace": "a/../b"}), "contexts[0].context.namespace: "),
    "two users of one name": (
        {**new_kubeconfig(), "users": [*new_kubeconfig()["users"], {"name": "c", "user": {"token": "s3cret"}}]},
        "users[1].name: 'c' is already used by an earlier entry",
    ),
    "a server name with a line break": (
        new_kubeconfig(cluster={"tls-server-name": "a\nb"}),
        "clusters[0].cluster.tls-",
    ),
    "a key of another certificate": (
        new_kubeconfig(user={"client-certificate-data": "eA==", "client-key-data": "eA=="}),
        "users[0].user.client-certificate-data, users[0].user.client-key-data: not a certificate",
    ),
    "an authority without a certificate": (
        new_kubeconfig(cluster={"certificate-authority-data": base64.b64encode(b"s3cret").decode()}),
        "clusters[0].cluster.certificate-authority-data: contains no certificate",
    ),
    "laughs by the billion": (
        "a: &a [x, x]\n" + "\n".join(f"{b}: &{b} [*{a}, *{a}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
        "a: YAML anchors are not allowed",
    ),
    "an alias": ("users: [*s3cret]", "users[0]: YAML aliases are not allowed"),
    "a document that holds itself": ("users: &u [*u]", "users: YAML anchors are not allowed"),
    "an object of Python": ("users: !!python/object/apply:os.system ['id']", "users: YAML tags are not allowed"),
    "a harmless tag": ("users: [{name: !!str c}]", "users[0].name: YAML tags are not allowed"),
    "binary by a tag": ("users: [{user: {token: !!binary czNjcmV0}}]", "users[0].user.token: YAML tags are"),
    "a tag directive": ("%TAG ! tag:evil.test,2026:\n---\nusers: []", "document: tag directives are not allowed"),
    "a merge key": ("users: [{user: {<<: {exec: {command: sh}}}}]", "users[0].user: merge keys are not allowed"),
    "a key given twice": ("users: [{user: {token: a, token: s3cret}}]", "users[0].user.token: given twice"),
    "a program before nothing": ("users: [{user: {exec: {}, exec: null}}]", "users[0].user.exec: given twice"),
    "a second document": (data(new_kubeconfig()) + b"---\n" + data(new_kubeconfig()), "document: more than one"),
    "a key that is a list": ("? [users]\n: []", "document: a key that is not a string"),
    "no YAML": ("users: [s3cret", "line 2, column 1: not YAML"),
    "no text": (b"users: \xff\xfe", "not YAML"),
    "a NUL": (b"users: []\0", "not YAML"),
    "depths": (b"[" * 500_000, "nested deeper than 16"),
    "a number to choke on": ("users: [{name: " + "1:" * 400_000 + "1}]\nkind: X", "kind: not a kubeconfig"),
    "too much": (b"#" * (MAX_BYTES + 1), "document: 1048577 bytes are over 1048576"),
}


def test_audit_hook_detects_side_effects(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    path = tmp_path / "config"
    path.write_bytes(data(new_kubeconfig(cluster={"certificate-authority": "gone.crt"})))
    with side_effects() as seen, pytest.raises(KubeconfigError):
        load_access([path], environ={})
    assert {("open", str(path)), ("open", str(tmp_path / "gone.crt"))} <= {(each[0], str(each[1])) for each in seen}


@pytest.mark.parametrize(("user", "expected"), HOSTILE_USERS.values(), ids=HOSTILE_USERS)
def test_hostile_user_is_rejected_in_any_entry(user: dict[str, Any], expected: str) -> None:
    document = new_kubeconfig(user=user)
    for place, refused in (("users[0].user", document), ("users[1].user", with_harmless_entries_first(document))):
        field = expected.replace("users[0].user", place) if expected.startswith("users") else f"{place}.{expected}"
        assert rejection_of(refused).startswith(field)


@pytest.mark.parametrize(("cluster", "expected"), HOSTILE_CLUSTERS.values(), ids=HOSTILE_CLUSTERS)
def test_hostile_cluster_is_rejected_in_any_entry(cluster: dict[str, Any], expected: str) -> None:
    document = new_kubeconfig(cluster=cluster)
    assert rejection_of(document).startswith(f"clusters[0].cluster.{expected}")
    assert rejection_of(with_harmless_entries_first(document)).startswith(f"clusters[1].cluster.{expected}")


@pytest.mark.parametrize(("document", "expected"), HOSTILE_DOCUMENTS.values(), ids=HOSTILE_DOCUMENTS)
def test_hostile_document_is_rejected(document: Any, expected: str) -> None:
    assert expected in rejection_of(document)


@pytest.mark.parametrize("field", ["exec", "proxy-url", "certificate-authority", "tokenFile", "auth-provider"])
def test_allow_insecure_allows_nothing_else(field: str) -> None:
    where = "cluster" if field in ("proxy-url", "certificate-authority") else "user"
    value = {} if field in ("exec", "auth-provider") else "http://evil.test"
    assert f"{field}: not allowed" in rejection_of(new_kubeconfig(**{where: {field: value}}), allow_insecure=True)


def test_contradictory_verification_is_rejected() -> None:
    cluster = {"insecure-skip-tls-verify": True, "certificate-authority-data": "eA=="}
    message = rejection_of(new_kubeconfig(cluster=cluster), allow_insecure=True)
    assert message.startswith("clusters[0].cluster.insecure-skip-tls-verify: true makes the authority useless")


def test_size_limit_is_configurable() -> None:
    assert rejection_of(new_kubeconfig(), max_bytes=100).endswith("bytes are over 100")


def extensions() -> list[dict[str, Any]]:
    return [{"name": "z", "extension": {"any": {"thing": 1}}}]


@pytest.fixture(scope="module")
def full(authority: Any) -> dict[str, Any]:
    """Return a kubeconfig with everything that is allowed in a Secret."""
    pair = authority.issue("alice.test")
    user = {
        "client-certificate-data": base64.b64encode(pair.certificate).decode(),
        "client-key-data": base64.b64encode(pair.key).decode(),
        "extensions": [{"name": "y", "extension": "anything"}],
    }
    cluster = {
        "server": "https://api.test:6443/prefix/",
        "certificate-authority-data": base64.b64encode(authority.pem).decode(),
        "tls-server-name": "kubernetes",
        "disable-compression": True,
        "extensions": [{"name": "x", "extension": {"since": "2026-01-01", "count": 3}}],
    }
    more = {"preferences": {"colors": True, "extensions": extensions()}, "extensions": extensions()}
    context = {"namespace": "team-a", "extensions": extensions()}
    return {**new_kubeconfig(user=user, cluster=cluster, context=context), **more}


async def test_valid_kubeconfig_is_accepted_without_opening_files(full, client_seen_by_server) -> None:
    content = data(full)
    with side_effects() as seen:
        access = strict_access(content)
    assert seen == []
    assert access.server == "https://api.test:6443/prefix"
    assert (access.namespace, access.tls_server_name) == ("team-a", "kubernetes")
    assert access.address_policy == AddressPolicy(allow_loopback=False)
    assert await access.credentials.headers() == [("Authorization", "Bearer s3cret")]
    assert client_seen_by_server(access.credentials.ssl_context()) == "alice.test"
    assert "s3cret" not in repr(access)


async def test_json_and_basic_auth_are_accepted() -> None:
    document = new_kubeconfig(user={"token": None, "username": "u", "password": "12345"})
    access = strict_access(json.dumps(document).encode())
    assert await access.credentials.headers() == [("Authorization", "Basic dToxMjM0NQ==")]


def test_empty_and_null_fields_count_as_absent() -> None:
    empty = {"tokenFile": "", "client-key": "", "client-certificate": None, "exec": None, "auth-provider": None}
    access = strict_access(data(new_kubeconfig(user=empty, cluster={"proxy-url": "", "certificate-authority": ""})))
    assert access.server == "https://api.test:6443"


def test_insecure_connections_can_be_allowed() -> None:
    plain = strict_access(data(new_kubeconfig(cluster={"server": "http://api.test:6080"})), allow_insecure=True)
    assert plain.credentials.ssl_context() is None
    unverified = strict_access(data(new_kubeconfig(cluster={"insecure-skip-tls-verify": True})), allow_insecure=True)
    assert unverified.verification.insecure


def test_loopback_can_be_allowed_but_not_link_local() -> None:
    for server in ("https://127.0.0.1:6443", "https://[::1]:6443", "https://localhost:6443"):
        access = strict_access(data(new_kubeconfig(cluster={"server": server})), allow_loopback=True)
        assert access.address_policy == AddressPolicy(allow_loopback=True)
    with pytest.raises(KubeconfigError, match="it is a link-local address"):
        strict_access(data(new_kubeconfig(cluster={"server": "https://169.254.0.23"})), allow_loopback=True)


@given(st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), min_size=1))
def test_token_is_sent_unchanged_or_rejected(token: str) -> None:
    content = json.dumps(new_kubeconfig(user={"token": token})).encode()
    if any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in token):
        with pytest.raises(KubeconfigError, match=r"^users\[0\]\.user\.token: has control characters$"):
            strict_access(content)
    else:
        headers = strict_access(content).credentials.headers()
        with pytest.raises(StopIteration) as sent:  # a static token never awaits
            headers.send(None)
        assert sent.value.value == [("Authorization", f"Bearer {token}")]


@given(st.binary(max_size=200))
def test_random_content_is_rejected_without_a_crash(content: bytes) -> None:
    with pytest.raises(KubeconfigError):
        strict_access(content)
