"""Names of planes, and the plane that a request is for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.errors import ApiError
from tapestry.planes.plane_names import PlaneNames, route_of

NAMES = PlaneNames("example.org")


def route(target: bytes, host: str = "localhost:6444", connection: str = "") -> tuple[str, bytes, str] | int:
    """Return the parts of a route, or the status of its error."""
    try:
        found = route_of(target, host, connection, NAMES)
    except ApiError as error:
        return error.code
    return found.plane_id, found.target, found.base_path


@pytest.mark.parametrize(
    ("name", "plane"),
    [
        ("a.planes.example.org", "a"),
        ("A.Planes.Example.ORG.", "a"),
        (NAMES.server_name("x-1"), "x-1"),
        ("planes.example.org", ""),
        (".planes.example.org", ""),
        ("b.a.planes.example.org", ""),
        ("-a.planes.example.org", ""),
        ("a.planes.example.org.evil.org", ""),
        ("a_planes.example.org", ""),
        ("", ""),
    ],
)
def test_server_name_names_plane(name: str, plane: str) -> None:
    assert NAMES.plane_of(name) == plane


@pytest.mark.parametrize(
    ("target", "found"),
    [
        (b"/planes/a/api/v1?watch=1", ("a", b"/api/v1?watch=1", "/planes/a")),
        (b"/planes/a", ("a", b"/", "/planes/a")),
        (b"/planes/a/", ("a", b"/", "/planes/a")),
        (b"/planes/a?x=/planes/b", ("a", b"/?x=/planes/b", "/planes/a")),
        (b"/planes/a/planes/b/api", ("a", b"/planes/b/api", "/planes/a")),
        (b"/planes/a//planes/b", ("a", b"//planes/b", "/planes/a")),
        (b"/planes/a/../b/api", ("a", b"/../b/api", "/planes/a")),
        (b"/planes/a/%2e%2e/b/api", ("a", b"/%2e%2e/b/api", "/planes/a")),
        (b"/planes/a%2f..%2fb/api", 404),
        (b"/planes/a%2F../b/api", 404),
        (b"/planes/a;/../b", 404),
        (b"/planes/a\\..\\b", 404),
        (b"/planes/../planes/b", 404),
        (b"/planes//b", 404),
        (b"/planes/%61/api", 404),
        (b"/%70lanes/a/api", 404),
        (b"//planes/a/api", 404),
        (b"/./planes/a/api", 404),
        (b"/planes/A/api", 404),
        (b"/planes/", 404),
        (b"/api/v1", 404),
        (b"/", 404),
        (b"https://localhost/planes/a/api", 400),
        (b"*", 400),
        (b"planes/a", 400),
        (b"", 400),
    ],
)
def test_path_names_plane(target: bytes, found: tuple[str, bytes, str] | int) -> None:
    assert route(target) == found


@pytest.mark.parametrize(
    ("target", "host", "found"),
    [
        (b"/api", "localhost", ("a", b"/api", "")),
        (b"/api", "a.planes.example.org:6444", ("a", b"/api", "")),
        (b"/planes/a/api", "[::1]:6444", ("a", b"/api", "/planes/a")),
        (b"/planes/b/api", "localhost", 421),
        (b"/api", "b.planes.example.org", 421),
        (b"/api", "B.planes.example.org.:6444", 421),
        (b"/planes/a/api", "b.planes.example.org", 421),
        (b"/planes/a/../b/api", "localhost", ("a", b"/../b/api", "/planes/a")),
        (b"/%70lanes/b/api", "localhost", ("a", b"/%70lanes/b/api", "")),
        (b"https://b.planes.example.org/api", "localhost", 400),
    ],
)
def test_connection_is_for_one_plane(target: bytes, host: str, found: tuple[str, bytes, str] | int) -> None:
    assert route(target, host, "a") == found


@pytest.mark.parametrize(("host", "found"), [("a.planes.example.org", "a"), ("b.planes.example.org", 421)])
def test_host_and_path_agree(host: str, found: str | int) -> None:
    result = route(b"/planes/a/api", host)
    assert (result if isinstance(result, int) else result[0]) == found


def test_host_alone_selects_no_plane() -> None:
    assert route(b"/api", "a.planes.example.org") == 421


@given(st.binary(max_size=40), st.sampled_from(["", "/planes/a", "/planes/b", "//planes/b", "/planes/b/.."]))
def test_connection_of_a_plane_never_reaches_another(rest: bytes, start: str) -> None:
    result = route(start.encode() + rest, "localhost", "a")
    assert isinstance(result, int) or result[0] == "a"
