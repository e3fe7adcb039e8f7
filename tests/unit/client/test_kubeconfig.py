import base64
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tapestry.client.errors import CredentialsError
from tapestry.client.kubeconfig import (
    Access,
    KubeconfigError,
    default_access,
    in_cluster_access,
    kubeconfig_paths,
    load_access,
)
from tapestry.client.kubeconfig_entries import Kubeconfig, parse_kubeconfig
from tapestry.client.tls import CHECK_INTERVAL

ENVIRON = {"PATH": os.environ["PATH"]}


def base64_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def new_kubeconfig(*, user: Any = None, cluster: Any = None, context: Any = None, name: str = "one") -> dict[str, Any]:
    """Return a kubeconfig with one context.  Arguments replace or add fields of its parts."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.test:6443", **(cluster or {})}}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, **(context or {})}}],
    }


def written(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


def loaded(tmp_path: Path, document: Any, context: str | None = None) -> Access:
    return load_access([written(tmp_path / "config", document)], context, environ=ENVIRON)


def error_message(tmp_path: Path, document: Any, context: str | None = None) -> str:
    """Return the error of a kubeconfig, without the name of its file."""
    with pytest.raises(KubeconfigError) as caught:
        loaded(tmp_path, document, context)
    return str(caught.value).removeprefix(f"{tmp_path / 'config'}: ")


# -- contexts


def test_current_context_selects_server_and_user(tmp_path) -> None:
    access = loaded(tmp_path, new_kubeconfig(context={"namespace": "team-a"}))
    assert (access.server, access.namespace) == ("https://one.test:6443", "team-a")


def test_default_namespace_is_default(tmp_path) -> None:
    assert loaded(tmp_path, new_kubeconfig()).namespace == "default"


def test_context_can_be_named(tmp_path) -> None:
    one, two = new_kubeconfig(name="one"), new_kubeconfig(name="two")
    both = {**one, **{part: one[part] + two[part] for part in ("clusters", "users", "contexts")}}
    assert loaded(tmp_path, both).server == "https://one.test:6443"
    assert loaded(tmp_path, both, "two").server == "https://two.test:6443"


async def test_context_without_user_is_anonymous(tmp_path) -> None:
    access = loaded(tmp_path, new_kubeconfig(context={"user": ""}))
    assert await access.credentials.headers() == []


def test_unknown_context_error_lists_the_choices(tmp_path) -> None:
    document = new_kubeconfig()
    assert error_message(tmp_path, document, "two") == "context: 'two' does not exist; choose one of 'one'"
    document["current-context"] = "three"
    assert error_message(tmp_path, document) == "current-context: 'three' does not exist; choose one of 'one'"
    del document["current-context"]
    assert error_message(tmp_path, document) == "current-context: not set; choose one of 'one'"
    assert error_message(tmp_path, "") == "current-context: not set; choose one of none, there are no entries"


@pytest.mark.parametrize("field", ["cluster", "user"])
def test_context_with_unknown_reference_is_rejected(tmp_path, field) -> None:
    message = error_message(tmp_path, new_kubeconfig(context={field: "gone"}))
    assert message == f"contexts[0].context.{field}: 'gone' does not exist; choose one of 'one'"


def test_unknown_keys_and_nulls_are_ignored(tmp_path) -> None:
    document = new_kubeconfig(
        user={"token": "abc", "exec": None, "tokenFile": None}, cluster={"disable-compression": True}
    )
    access = loaded(tmp_path, {**document, "preferences": {}, "extensions": None, "novelty": [1]})
    assert access.server == "https://one.test:6443"


# -- merging


def test_first_file_with_an_entry_wins(tmp_path) -> None:
    first = new_kubeconfig(name="one")
    second = new_kubeconfig(name="one", cluster={"server": "https://other.test"})
    second["contexts"].append({"name": "two", "context": {"cluster": "one", "user": "", "namespace": "second"}})
    second["current-context"] = "two"
    paths = [tmp_path / "missing", written(tmp_path / "a", first), written(tmp_path / "b", second)]
    assert load_access(paths, environ=ENVIRON).namespace == "default"
    access = load_access(paths, "two", environ=ENVIRON)
    assert (access.server, access.namespace) == ("https://one.test:6443", "second")


def test_single_file_must_exist(tmp_path) -> None:
    for names in (["a"], ["a", "b"]):
        with pytest.raises(KubeconfigError, match=f"{names[-1]}: no such file; name a kubeconfig that exists"):
            load_access([tmp_path / name for name in names], environ=ENVIRON)


def test_unreadable_file_is_never_skipped(tmp_path) -> None:
    good = written(tmp_path / "good", new_kubeconfig())
    with pytest.raises(KubeconfigError, match="Is a directory"):
        load_access([tmp_path, good], environ=ENVIRON)
    with pytest.raises(KubeconfigError, match="line 2, column 1: not YAML"):
        load_access([good, written(tmp_path / "bad", "a: [")], environ=ENVIRON)


def test_relative_paths_start_at_their_kubeconfig(tmp_path, authority, client_seen_by_server) -> None:
    pair = authority.issue("alice.test")
    for name, content in {"ca.crt": authority.pem, "tls.crt": pair.certificate, "tls.key": pair.key}.items():
        (tmp_path / "a" / "pki").mkdir(parents=True, exist_ok=True)
        (tmp_path / "a" / "pki" / name).write_bytes(content)
    user = {"client-certificate": "pki/tls.crt", "client-key": "pki/tls.key"}
    first = new_kubeconfig(user=user, cluster={"certificate-authority": "pki/ca.crt"})
    paths = [written(tmp_path / "b" / "config", {}), written(tmp_path / "a" / "config", first)]
    assert client_seen_by_server(load_access(paths, environ=ENVIRON).credentials.ssl_context()) == "alice.test"


NAMES = st.sampled_from(["a", "b", "c"])


@given(st.lists(st.dictionaries(NAMES, st.integers().map(str)), max_size=4))
def test_merge_takes_each_entry_from_the_first_file(files: list[dict[str, str]]) -> None:
    merged = Kubeconfig()
    for file in files:
        users = [{"name": name, "user": {"token": token}} for name, token in file.items()]
        merged = merged.merged_over(parse_kubeconfig({"users": users}, origin="", directory=Path()))
    expected: dict[str, str] = {}
    for file in files:
        expected = {**file, **expected}
    assert {name: entry.value.token for name, entry in merged.users.items()} == expected


# -- users


async def headers(tmp_path: Path, user: dict[str, Any]) -> list[tuple[str, str]]:
    return await loaded(tmp_path, new_kubeconfig(user=user)).credentials.headers()


async def test_token_becomes_bearer_header(tmp_path) -> None:
    assert await headers(tmp_path, {"token": "abc"}) == [("Authorization", "Bearer abc")]


async def test_username_and_password_become_basic_header(tmp_path) -> None:
    assert await headers(tmp_path, {"username": "u", "password": "p"}) == [("Authorization", "Basic dTpw")]


async def test_token_file_wins_over_token(tmp_path) -> None:
    (tmp_path / "token").write_text("from-file")
    assert await headers(tmp_path, {"token": "abc", "tokenFile": "token"}) == [("Authorization", "Bearer from-file")]


async def test_relative_exec_command_is_run(tmp_path) -> None:
    answer = {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": {"token": "abc"}}
    program = written(tmp_path / "bin" / "login", f"#!/bin/sh\necho {shlex.quote(json.dumps(answer))}\n")
    program.chmod(0o700)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "bin/login", "args": None}}
    assert await headers(tmp_path, user) == [("Authorization", "Bearer abc")]


async def test_token_wins_over_exec(tmp_path) -> None:
    user = {"token": "abc", "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "false"}}
    assert await headers(tmp_path, user) == [("Authorization", "Bearer abc")]


async def test_exec_plugin_may_get_cluster_info(tmp_path, authority) -> None:
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    seen = shlex.quote(str(tmp_path / "seen"))
    program = written(tmp_path / "login", f'#!/bin/sh\nprintf %s "$KUBERNETES_EXEC_INFO" > {seen}; exit 1\n')
    program.chmod(0o700)
    spec = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "./login", "provideClusterInfo": True}
    extensions = [
        {"name": "other", "extension": {"a": 1}},
        {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x", "depth": 3}},
    ]
    cluster = {"certificate-authority": "ca.crt", "tls-server-name": "api.test", "extensions": extensions}
    access = loaded(tmp_path, new_kubeconfig(user={"exec": spec}, cluster=cluster))
    with pytest.raises(CredentialsError, match=r"users\[0\]\.user\.exec: .*login' ended with 1"):
        await access.credentials.headers()
    assert json.loads((tmp_path / "seen").read_text())["spec"]["cluster"] == {
        "server": "https://one.test:6443",
        "tls-server-name": "api.test",
        "certificate-authority-data": base64_of(authority.pem),
        "config": {"audience": "x", "depth": 3},
    }


def test_inline_certificates_may_contain_line_breaks(tmp_path, authority, client_seen_by_server) -> None:
    pair = authority.issue("alice.test")
    user = {
        "client-certificate-data": base64.encodebytes(pair.certificate).decode(),
        "client-key-data": base64_of(pair.key),
    }
    cluster = {"certificate-authority-data": base64_of(authority.pem)}
    access = loaded(tmp_path, new_kubeconfig(user=user, cluster=cluster))
    assert client_seen_by_server(access.credentials.ssl_context()) == "alice.test"


def test_impersonation_becomes_headers(tmp_path) -> None:
    user = {
        "as": "jane",
        "as-uid": "7",
        "as-groups": ["devs", "admins"],
        "as-user-extra": {"scopes": ["view", "edit"], "acme.test/Größe": ["xl"]},
    }
    assert loaded(tmp_path, new_kubeconfig(user=user)).impersonation == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "devs"),
        ("Impersonate-Group", "admins"),
        ("Impersonate-Extra-acme.test%2FGr%C3%B6%C3%9Fe", "xl"),
        ("Impersonate-Extra-scopes", "view"),
        ("Impersonate-Extra-scopes", "edit"),
    )


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ({"token": 12345}, "users[0].user.token: Expected `str`, got `int`"),
        ({"token": "s3cret\r\nX-Evil: yes"}, "users[0].user.token: has control characters"),
        ({"username": "s3cret\n"}, "users[0].user.username: has control characters"),
        ({"password": "s3cret\0"}, "users[0].user.password: has control characters"),
        ({"token": "s3cret", "username": "u"}, "users[0].user: both a token and a username or password; keep one"),
        ({"auth-provider": {"name": "oidc"}}, "users[0].user.auth-provider: not supported"),
        ({"client-certificate": "x"}, "users[0].user.client-key: not set"),
        ({"client-key-data": "czNjcmV0"}, "users[0].user.client-certificate: not set"),
        ({"client-key": "x", "client-key-data": "czNjcmV0"}, "users[0].user.client-key: given in client-key-data too"),
        ({"client-key-data": "s3cret!"}, "users[0].user.client-key-data: not base64"),
        ({"exec": {"command": "x"}}, "users[0].user.exec.apiVersion: '' is none of client.authentication.k8s.io/v1"),
        ({"as-groups": ["devs"]}, "users[0].user.as-groups[0]: no user is impersonated; set `as`"),
        ({"as-uid": "1"}, "users[0].user.as-uid: no user is impersonated"),
        ({"as": " "}, "users[0].user.as: empty, or has control characters"),
        ({"as": "jane", "as-groups": ["devs", "s3cret\n"]}, "users[0].user.as-groups[1]: empty, or has control"),
        ({"as": "jane", "as-user-extra": {"a": ["s3cret\r"]}}, "users[0].user.as-user-extra: empty, or has control"),
        ({"as": "jane", "as-user-extra": {"a": "s3cret"}}, "users[0].user.as-user-extra[...]: Expected `array`"),
        ({"as": "jane", "as-user-extra": {1: ["s3cret"]}}, "users[0].user.as-user-extra: Expected `str`, got `int`"),
    ],
)
def test_invalid_user_error_names_field_without_secrets(tmp_path, user, expected) -> None:
    message = error_message(tmp_path, new_kubeconfig(user=user))
    assert message.startswith(expected)
    assert "s3cret" not in message


def test_invalid_certificates_are_rejected_at_once(tmp_path) -> None:
    user = {"client-certificate-data": base64_of(b"s3cret"), "client-key-data": base64_of(b"s3cret")}
    message = error_message(tmp_path, new_kubeconfig(user=user))
    assert message.startswith("users[0].user.client-certificate-data, ")
    assert "s3cret" not in message
    missing = error_message(tmp_path, new_kubeconfig(cluster={"certificate-authority": "gone.crt"}))
    assert missing == f"clusters[0].cluster.certificate-authority: {tmp_path / 'gone.crt'}: No such file or directory"


# -- clusters


@pytest.mark.parametrize(
    ("given_url", "server"),
    [
        ("https://a.test", "https://a.test"),
        ("https://a.test:6443/", "https://a.test:6443"),
        ("HTTPS://a.test/k8s/clusters/c-1/", "https://a.test/k8s/clusters/c-1"),
        ("https://[fd00::1]:6443", "https://[fd00::1]:6443"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
    ],
)
def test_server_keeps_path_without_trailing_slash(tmp_path, given_url, server) -> None:
    access = loaded(tmp_path, new_kubeconfig(cluster={"server": given_url}))
    assert access.server == server
    assert (access.credentials.ssl_context() is None) == server.startswith("http:")


def test_proxy_url_is_not_in_repr(tmp_path) -> None:
    cluster = {"tls-server-name": "api.test", "proxy-url": "http://u:s3cret@proxy.test:3128"}
    access = loaded(tmp_path, new_kubeconfig(cluster=cluster))
    assert access.tls_server_name == "api.test"
    assert access.proxy_url == "http://u:s3cret@proxy.test:3128"
    assert "s3cret" not in repr(access)


def test_verification_can_be_disabled(tmp_path, client_seen_by_server) -> None:
    access = loaded(tmp_path, new_kubeconfig(cluster={"insecure-skip-tls-verify": True}))
    assert access.verification.insecure
    assert client_seen_by_server(access.credentials.ssl_context()) is None


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ({"server": ""}, "server: a URL must begin with https:// or http://"),
        ({"server": "a.test:6443"}, "server: a URL must begin with"),
        ({"server": "ftp://a.test"}, "server: a URL must begin with"),
        ({"server": "https://"}, "server: a URL without a host"),
        ({"server": "https://:6443"}, "server: a URL without a host"),
        ({"server": "https://u:s3cret@a.test"}, "server: a URL with a user or password"),
        ({"server": "https://a.test?s3cret"}, "server: a URL with a query or fragment"),
        ({"server": "https://a.test/#s3cret"}, "server: a URL with a query or fragment"),
        ({"server": "https://a.test/\r\nX-Evil: s3cret"}, "server: a URL with spaces, backslashes or characters"),
        ({"server": "https://a.test\\@s3cret"}, "server: a URL with spaces, backslashes or characters"),
        ({"server": "https://ä.test"}, "server: a URL with spaces, backslashes or characters beyond ASCII"),
        ({"server": "https://a.test:s3cret"}, "server: not a URL"),
        ({"server": "https://a.test:0"}, "server: a URL with port 0"),
        ({"server": "https://[fd00::1"}, "server: not a URL"),
        ({"server": "https://[fe80::1%25eth0]"}, "server: not a host name or address"),
        ({"server": "https://a%2e.test"}, "server: not a host name or address"),
        ({"tls-server-name": "a.test\n"}, "tls-server-name: not a host name or address"),
        ({"proxy-url": "socks5://a.test"}, "proxy-url: SOCKS proxies are not supported"),
        ({"proxy-url": "u:s3cret@a.test"}, "proxy-url: a URL must begin with"),
        ({"certificate-authority-data": "s3cret!"}, "certificate-authority-data: not base64"),
        ({"certificate-authority": "x", "insecure-skip-tls-verify": True}, "insecure-skip-tls-verify: true makes"),
        ({"certificate-authority": "x", "certificate-authority-data": "YQ=="}, "certificate-authority: given in"),
        ({"insecure-skip-tls-verify": "yes"}, "insecure-skip-tls-verify: Expected `bool`, got `str`"),
    ],
)
def test_invalid_cluster_error_names_field_without_value(tmp_path, cluster, expected) -> None:
    message = error_message(tmp_path, new_kubeconfig(cluster=cluster))
    assert message.startswith(f"clusters[0].cluster.{expected}")
    assert "s3cret" not in message


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("just text", "document: Expected `object`, got `str`; this is not a kubeconfig"),
        ({"clusters": {"a": {}}}, "clusters: Expected `array`, got `object`"),
        ({"kind": "Pod", "apiVersion": "v1"}, "kind: not a kubeconfig"),
        ({1: 2}, "document: Expected `str`"),
        ({"users": [{"name": "a"}, {"name": "a"}]}, "users[1].name: 'a' is already used by an earlier entry"),
        (new_kubeconfig(context={"namespace": "../x"}), "contexts[0].context.namespace: '../x' cannot be the name"),
        ("a: 2026-13-45", "not YAML"),
        ("token: *s3cret", "line 1, column 8: not YAML"),
    ],
)
def test_document_that_is_not_a_kubeconfig_is_rejected(tmp_path, document, expected) -> None:
    message = error_message(tmp_path, document)
    assert message.startswith(expected)
    assert "s3cret" not in message


def test_long_name_is_truncated_in_errors(tmp_path) -> None:
    assert len(error_message(tmp_path, new_kubeconfig(), "x" * 100_000)) < 300


# -- in a pod


@pytest.fixture
def service_account(tmp_path, authority) -> Path:
    root = tmp_path / "serviceaccount"
    root.mkdir()
    (root / "token").write_text("first")
    (root / "ca.crt").write_bytes(authority.pem)
    (root / "namespace").write_text("team-a\n")
    return root


POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


async def test_pod_uses_service_account_and_follows_token(service_account, client_seen_by_server) -> None:
    time = [0.0]
    access = in_cluster_access(service_account, environ=POD, monotonic=lambda: time[0])
    assert (access.server, access.namespace) == ("https://10.0.0.1:443", "team-a")
    assert await access.credentials.headers() == [("Authorization", "Bearer first")]
    (service_account / "token").write_text("second")
    time[0] += CHECK_INTERVAL
    assert await access.credentials.headers() == [("Authorization", "Bearer second")]
    assert client_seen_by_server(access.credentials.ssl_context()) is None


def test_service_address_may_be_ipv6(service_account) -> None:
    access = in_cluster_access(service_account, environ={**POD, "KUBERNETES_SERVICE_HOST": "fd00::1"})
    assert access.server == "https://[fd00::1]:443"


def test_outside_a_pod_is_an_error(service_account) -> None:
    with pytest.raises(KubeconfigError, match="not set, so this is not a pod"):
        in_cluster_access(service_account, environ={})
    (service_account / "namespace").unlink()
    assert in_cluster_access(service_account, environ=POD).namespace == "default"
    (service_account / "ca.crt").unlink()
    with pytest.raises(KubeconfigError, match=r"service account: .*ca\.crt: No such file"):
        in_cluster_access(service_account, environ=POD)
    (service_account / "token").unlink()
    with pytest.raises(KubeconfigError, match="automountServiceAccountToken"):
        in_cluster_access(service_account, environ=POD)


# -- defaults


def test_search_order_of_default_access(tmp_path, service_account) -> None:
    given_path = written(tmp_path / "given", new_kubeconfig(name="given"))
    variable = written(tmp_path / "variable", new_kubeconfig(name="variable"))
    home = written(tmp_path / ".kube" / "config", new_kubeconfig(name="home"))
    environ = {**POD, "KUBECONFIG": str(variable)}

    def server(kubeconfig: Path | None = None) -> str:
        found = default_access(kubeconfig, environ=environ, home=tmp_path, service_account=service_account)
        return found.server

    assert server(given_path) == "https://given.test:6443"
    assert server() == "https://variable.test:6443"
    del environ["KUBECONFIG"]
    assert server() == "https://home.test:6443"
    home.unlink()
    assert server() == "https://10.0.0.1:443"


def test_named_context_never_uses_the_pod(tmp_path, service_account) -> None:
    with pytest.raises(KubeconfigError, match="context 'prod': KUBECONFIG is not set and"):
        default_access(None, "prod", environ=POD, home=tmp_path, service_account=service_account)


def test_kubeconfig_variable_without_file_is_an_error(tmp_path) -> None:
    written(tmp_path / ".kube" / "config", new_kubeconfig())
    with pytest.raises(KubeconfigError, match="gone: no such file"):
        default_access(environ={"KUBECONFIG": str(tmp_path / "gone")}, home=tmp_path)


def test_no_kubeconfig_error_lists_what_was_tried(tmp_path) -> None:
    with pytest.raises(KubeconfigError) as caught:
        default_access(environ={}, home=tmp_path)
    for word in ("none was given", "KUBECONFIG is not set", str(tmp_path / ".kube" / "config"), "not a pod", "give a"):
        assert word in str(caught.value)


def test_variable_may_name_several_files() -> None:
    assert kubeconfig_paths(os.pathsep.join(["a", "", "b/c"])) == [Path("a"), Path("b/c")]
    assert kubeconfig_paths("") == []


def test_repr_shows_no_secrets(tmp_path) -> None:
    document = new_kubeconfig(user={"token": "s3cret", "exec": {"args": ["s3cret"]}})
    merged = parse_kubeconfig(document, origin="", directory=tmp_path)
    assert "s3cret" not in repr(merged)
    assert "s3cret" not in repr(loaded(tmp_path, new_kubeconfig(user={"token": "s3cret"})))
