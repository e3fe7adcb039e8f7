"""Arguments of the commands on pods."""

import pytest

from tapestry.cli.pod_access import ForwardedPort, parse_ports, streams_query


@pytest.mark.parametrize(
    ("text", "expected"), [("80", (80, 80)), ("8080:80", (8080, 80)), (":80", (0, 80)), ("0:80", (0, 80))]
)
def test_ports_are_parsed(text: str, expected: tuple[int, int]) -> None:
    assert parse_ports(text) == ForwardedPort(*expected)


@pytest.mark.parametrize("text", ["", "x", "80:", "0", "65536", "65536:80", "1:2:3", "-1:80"])
def test_invalid_ports_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="LOCAL"):
        parse_ports(text)


def test_terminal_has_no_stderr() -> None:
    query = streams_query("c", stdin=True, tty=True)
    assert query == [("stdin", "true"), ("stdout", "true"), ("tty", "true"), ("container", "c")]
