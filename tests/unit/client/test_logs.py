"""Streaming of container logs, and error responses."""

import pytest

from tapestry.client.client import Client
from tapestry.client.logs import pod_log
from tapestry.client.transport import Response
from tapestry.kube.errors import ApiError

from .script import POD, ScriptedTransport, error_response


async def test_log_is_streamed_with_long_follow_timeout() -> None:
    transport = ScriptedTransport(Response(200, {}, b"one\ntwo\nthree\n"))
    for query in ({"tailLines": "3"}, {"follow": "true"}):
        async with pod_log(Client(transport), "web", "default", query) as chunks:
            assert b"".join([chunk async for chunk in chunks]) == b"one\ntwo\nthree\n"
    at_once, followed = transport.requests
    assert (str(at_once), at_once.query) == (f"GET {POD}/log", {"tailLines": "3"})
    assert at_once.timeout == 30 < 3600 < followed.timeout


async def test_error_response_is_read_up_to_a_limit() -> None:
    waiting = ApiError(400, "BadRequest", "container is waiting to start")
    endless = Response(502, {"endless": "yes"}, b"a proxy speaks")
    for failure, message in ((error_response(waiting), "waiting to start"), (endless, "a proxy speaks")):
        with pytest.raises(ApiError, match=message):
            async with pod_log(Client(ScriptedTransport(failure)), "web", "default", {}):
                raise AssertionError("there is no log")
