"""JSON formatting: indentation for people, one line for programs."""

from typing import Any

import pytest

from tapestry.apiserver.core.requests import Call
from tapestry.apiserver.serving.json_format import formatted_body

from ..conftest import ADMIN

ONE_LINE = b'{"a":{"b":[]}}'
INDENTED = b'{\n  "a": {\n    "b": []\n  }\n}'


def formatted(path: str = "/api/v1/pods", content_type: str = "application/json", **request: Any) -> bytes:
    headers = {name.replace("_", "-"): value for name, value in request.items() if name != "query"}
    return formatted_body(ONE_LINE, content_type, Call("GET", path, request.get("query", {}), headers, b"", ADMIN))


@pytest.mark.parametrize("agent", ["curl/8.5.0", "Wget/1.21", "Mozilla/5.0 (X11; Linux x86_64)"])
def test_interactive_agents_get_indented_json(agent: str) -> None:
    assert formatted(user_agent=agent) == INDENTED


@pytest.mark.parametrize("agent", ["", "kubectl/v1.34.3", "mozilla/5.0", "Go-http-client/2.0"])
def test_programs_get_one_line(agent: str) -> None:
    assert formatted(user_agent=agent) == ONE_LINE + b"\n"


@pytest.mark.parametrize(
    ("value", "indented"), [("true", True), ("1", True), ("T", True), ("false", False), ("x", False)]
)
def test_pretty_parameter_overrides_user_agent(value: str, indented: bool) -> None:
    for agent in ("curl/8.5.0", "kubectl/v1.34.3"):
        result = formatted(user_agent=agent, query={"pretty": value})
        assert result == (INDENTED if indented else ONE_LINE + b"\n")
    assert formatted(user_agent="curl", query={"pretty": ""}) == INDENTED


def test_accept_header_can_request_indentation() -> None:
    assert formatted(accept="application/json;pretty=1") == INDENTED
    assert formatted(accept="application/json;pretty=true") == ONE_LINE + b"\n"


def test_version_is_always_indented() -> None:
    assert formatted("/version", user_agent="kubectl") == INDENTED


def test_other_documents_are_unchanged() -> None:
    assert formatted("/openapi/v3", user_agent="curl") == ONE_LINE
    assert formatted("/livez", "text/plain", user_agent="curl") == ONE_LINE
    event = Call("GET", "/api/v1/pods", {"pretty": "true"}, {}, b"", ADMIN)
    assert formatted_body(ONE_LINE + b"\n", "application/json", event) == ONE_LINE + b"\n"


def test_long_response_is_not_indented() -> None:
    text = b'{"a":' * 200 + b"[" + b"1," * 50_000 + b"1]" + b"}" * 200
    call = Call("GET", "/api/v1/pods", {"pretty": "true"}, {}, b"", ADMIN)
    assert formatted_body(text, "application/json", call) == text + b"\n"
