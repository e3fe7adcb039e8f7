"""Authentication of programs on this machine without credentials."""

import pytest

from tapestry.apiserver.access.authentication import LOCALHOST_USER, Credentials, authenticate_localhost


def user_of(peer: str = "127.0.0.1", token: str = "", **headers: str) -> object:
    all_headers = {name.replace("_", "-"): value for name, value in {"host": "localhost:6080", **headers}.items()}
    return authenticate_localhost(Credentials(bearer_token=token, peer=peer, headers=all_headers))


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:6080", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:65535"])
@pytest.mark.parametrize("peer", ["127.0.0.1", "::1"])
def test_local_programs_are_trusted(host: str, peer: str) -> None:
    assert user_of(peer, host=host) is LOCALHOST_USER
    assert user_of(peer, host=host, sec_fetch_site="none") is LOCALHOST_USER
    assert user_of(peer, host=host, sec_fetch_site="same-origin") is LOCALHOST_USER


@pytest.mark.parametrize(
    "host",
    [
        *(
            "",
            "evil.com",
            "localhost.evil.com",
            "localhost:80.evil.com",
            "localhost:80:80",
            "localhost:",
            "localhost:x",
        ),
        *("[::1].evil.com", "[::1]:80.evil.com", "[::1", "::1", "[::1]x", "127.0.0.1.evil.com", "127.0.0.2"),
        *(
            "evil.com@localhost",
            "localhost@evil.com",
            "localhost,evil.com",
            " localhost",
            "localhost\n",
            "localhost:999999",
        ),
    ],
)
def test_other_host_is_not_trusted(host: str) -> None:
    assert user_of(host=host) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "203.0.113.9") for name in ("x_forwarded_for", "x_real_ip", "true_client_ip", "x_client_ip")),
        *(("x_forwarded_host", "evil.com"), ("x_forwarded_proto", "https"), ("x_forwarded_anything", "")),
        *(("forwarded", "for=203.0.113.9"), ("via", "1.1 proxy")),
        *(("sec_fetch_site", "cross-site"), ("sec_fetch_site", "same-site"), ("sec_fetch_site", "Cross-Site")),
        *(("origin", "https://evil.com"), ("origin", "null")),
    ],
)
def test_proxies_and_web_pages_are_not_trusted(name: str, value: str) -> None:
    assert user_of(**{name: value}) is None


def test_other_machines_and_tokens_are_not_trusted() -> None:
    assert user_of("10.0.0.1") is None
    assert user_of("") is None
    assert user_of(token="x") is None
