"""Logs of containers, and what is said instead of them."""

import pytest

from tapestry.client.client import Client
from tapestry.client.logs import pod_log
from tapestry.client.transport import Response
from tapestry.kube.errors import ApiError

from .script import POD, Script, refusal


async def test_a_log_comes_in_pieces_and_one_that_is_followed_may_take_its_time_to_begin() -> None:
    script = Script(Response(200, {}, b"one\ntwo\nthree\n"))
    for query in ({"tailLines": "3"}, {"follow": "true"}):
        async with pod_log(Client(script), "web", "default", query) as chunks:
            assert b"".join([chunk async for chunk in chunks]) == b"one\ntwo\nthree\n"
    at_once, followed = script.asked
    assert (str(at_once), at_once.query) == (f"GET {POD}/log", {"tailLines": "3"})
    assert at_once.timeout == 30 < 3600 < followed.timeout


async def test_what_is_said_instead_of_a_log_is_an_error_of_which_only_the_beginning_is_read() -> None:
    waiting = ApiError(400, "BadRequest", "container is waiting to start")
    endless = Response(502, {"endless": "yes"}, b"a proxy speaks")
    for trouble, words in ((refusal(waiting), "waiting to start"), (endless, "a proxy speaks")):
        with pytest.raises(ApiError, match=words):
            async with pod_log(Client(Script(trouble)), "web", "default", {}):
                raise AssertionError("there is no log")
