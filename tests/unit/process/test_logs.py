import asyncio
import io
import json
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.errors import NotFound
from tapestry.process import logs

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJlLWJ5dGVz"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nTUlJRW93SUJBQUtDQVFFQQ==\n-----END RSA PRIVATE KEY-----"

log = logs.logger("tapestry.test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)


def lines(act: Callable[[], object], level: logs.Level = "info") -> list[dict[str, Any]]:
    stream = io.StringIO()
    logs.configure(level, "json", stream)
    act()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def line(phrase: str = "seen", **values: Any) -> dict[str, Any]:
    (found,) = lines(lambda: log.info(phrase, **values))
    return found


def human_text(act: Callable[[], object]) -> str:
    stream = io.StringIO()
    logs.configure("info", "human", stream)
    act()
    return stream.getvalue()


def test_line_has_message_and_values() -> None:
    found = line("reconciled", kind="Pod", name="web-0", seconds=0.004, ready=True, gone=None)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("time"))
    assert found == {
        "level": "info",
        "logger": "tapestry.test",
        "message": "reconciled",
        "kind": "Pod",
        "name": "web-0",
        "seconds": 0.004,
        "ready": True,
        "gone": None,
    }


def test_timestamp_is_utc_with_milliseconds() -> None:
    assert logs.timestamp(0) == "1970-01-01T00:00:00.000Z"
    assert logs.timestamp(1767225599.0625) == "2025-12-31T23:59:59.062Z"


def test_value_may_have_any_name() -> None:
    found = line("seen", message="m", level="l", args=1, exc_info=2, name="n", msg=3)
    assert (found["message"], found["message_"]) == ("seen", "m")
    assert (found["level"], found["level_"]) == ("info", "l")
    assert (found["args"], found["exc_info"], found["name"], found["msg"]) == (1, 2, "n", 3)


def test_context_applies_to_block_and_inner_wins() -> None:
    def act() -> None:
        with logs.log_context(controller="pods", key="a"):
            with logs.log_context(key="b"):
                log.info("inner")
                log.info("own", key="c")
            log.info("outer")
        log.info("outside")

    found = lines(act)
    assert [entry.get("key") for entry in found] == ["b", "c", "a", None]
    assert [entry.get("controller") for entry in found] == ["pods", "pods", "pods", None]


async def test_tasks_inherit_the_context() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream)

    async def work(key: str, mine: asyncio.Event, other: asyncio.Event) -> None:
        with logs.log_context(key=key):
            mine.set()
            await other.wait()
            log.info("worked")

    one, two = asyncio.Event(), asyncio.Event()
    with logs.log_context(controller="pods"):
        async with asyncio.TaskGroup() as group:
            group.create_task(work("a", one, two))
            group.create_task(work("b", two, one))
    found = [json.loads(entry) for entry in stream.getvalue().splitlines()]
    assert sorted((entry["controller"], entry["key"]) for entry in found) == [("pods", "a"), ("pods", "b")]


def test_lower_levels_are_not_written() -> None:
    def act() -> None:
        log.debug("quiet")
        log.warning("loud")

    assert [entry["message"] for entry in lines(act)] == ["loud"]
    assert [entry["message"] for entry in lines(act, level="debug")] == ["quiet", "loud"]


def test_other_packages_log_in_the_same_format() -> None:
    (found,) = lines(lambda: logging.getLogger("other").warning("%s of %d", "three", 5))
    assert (found["logger"], found["level"], found["message"]) == ("other", "warning", "three of 5")


def test_exception_is_one_line_with_traceback_field() -> None:
    def act() -> None:
        try:
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise RuntimeError("outer") from error
        except RuntimeError:
            log.exception("reconcile broke", key="a")

    (found,) = lines(act)
    assert (found["level"], found["message"], found["key"]) == ("error", "reconcile broke", "a")
    assert found["error"] == "RuntimeError: outer"
    assert "KeyError: 'inner'" in found["traceback"]
    assert "direct cause" in found["traceback"]


def test_error_value_is_class_and_message() -> None:
    error = NotFound(404, "NotFound", "pods web-0 not found")
    assert line(error=error)["error"] == "NotFound: 404 NotFound: pods web-0 not found"
    assert line(error=TimeoutError())["error"] == "TimeoutError"


def test_kubernetes_object_is_logged_by_name_only() -> None:
    secret = {"kind": "Secret", "metadata": {"namespace": "default", "name": "db"}, "data": {"pw": "aHVudGVyMg=="}}
    assert line(object=secret)["object"] == "Secret default/db"
    assert line(objects=[{"kind": "Node", "metadata": {"name": "a"}}])["objects"] == ["Node a"]
    assert line(items={"kind": "SecretList", "metadata": {}, "items": [secret]})["items"] == "SecretList"


def test_any_value_can_be_logged() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    found = line(a={1: {2}}, b=Odd(), c=b"body", d=2**70, e=Path("x"), f=float("nan"), g=(1, "x"))
    assert (found["a"], found["b"], found["c"], found["d"]) == ({"1": [2]}, "odd", "<4 bytes>", 2**70)
    assert (found["e"], found["f"], found["g"]) == ("x", None, [1, "x"])


def test_non_unicode_text_is_logged() -> None:
    found = line(file="\udcff.yaml", nested=[{"\udcff": 1}])
    assert (found["file"], found["nested"]) == ("\\udcff.yaml", [{"\\udcff": 1}])


def test_format_follows_the_stream() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    logs.configure("info", "auto", terminal)
    log.info("seen", name="web-0")
    logs.configure("info", "auto", pipe)
    log.info("seen", name="web-0")
    assert re.fullmatch(r"\S+Z info +tapestry.test: seen name=web-0\n", terminal.getvalue())
    assert json.loads(pipe.getvalue())["name"] == "web-0"


def test_human_format_quotes_text_and_escapes_control_characters() -> None:
    text = human_text(lambda: log.info("seen", a="two words", b="", c="x=1", d="\x1b[31mred", e=[1], f="café"))
    assert text.endswith('seen a="two words" b="" c="x=1" d=\\x1b[31mred e=[1] f=café\n')


def test_human_format_has_traceback_after_the_line() -> None:
    def act() -> None:
        try:
            raise RuntimeError("broken\x1b[2J")
        except RuntimeError:
            log.exception("failed")

    first, *rest = human_text(act).splitlines()
    assert " failed error=" in first
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-1] == "RuntimeError: broken\\x1b[2J"


async def test_signals_change_and_restore_the_level() -> None:
    loop, root = asyncio.get_running_loop(), logging.getLogger()
    logs.configure("warning", "json", io.StringIO())
    logs.install_level_signals(loop)
    try:
        assert await level_after(signal.SIGUSR1, loop) == logging.DEBUG
        assert await level_after(signal.SIGUSR1, loop) == logging.DEBUG
        assert await level_after(signal.SIGUSR2, loop) == logging.WARNING
        assert root.level == logging.WARNING
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)
        loop.remove_signal_handler(signal.SIGUSR2)


async def level_after(number: signal.Signals, loop: asyncio.AbstractEventLoop) -> int:
    """Return the level after a signal.  Signals are delivered in order, so wait for one of our own."""
    seen = asyncio.Event()
    loop.add_signal_handler(signal.SIGWINCH, seen.set)
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), signal.SIGWINCH)
    await seen.wait()
    loop.remove_signal_handler(signal.SIGWINCH)
    return logging.getLogger().level


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Authorization: Bearer abc", "Authorization: Bearer [redacted]"),
        ("{'authorization': 'Basic dXNlcjpwYXNz'}", "{'authorization': 'Basic [redacted]'}"),
        ("sent bearer abcdefgh1234 to it", "sent bearer [redacted] to it"),
        (f"got {JWT}, expired", "got [redacted], expired"),
        (PEM, "-----BEGIN RSA PRIVATE KEY-----[redacted]-----END RSA PRIVATE KEY-----"),
        ("-----BEGIN PRIVATE KEY-----\ncut off", "-----BEGIN PRIVATE KEY-----[redacted]"),
        ("client-key-data: TUlJRW93", "client-key-data: [redacted]"),
        ("client-certificate-data: TUlJRW93\nname: a", "client-certificate-data: [redacted]\nname: a"),
        ('"certificate-authority-data": "TUlJRW93"', '"certificate-authority-data": "[redacted]"'),
        ("key LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0t==", "key [redacted]"),
        ('{"token": "abc def", "name": "x"}', '{"token": "[redacted]", "name": "x"}'),
        ('{\\"idToken\\": \\"abc\\"}', '{\\"idToken\\": \\"[redacted]\\"}'),
        ("password=hunter2, next", "password=[redacted], next"),
        ("client_secret: s3cr3t", "client_secret: [redacted]"),
        ("https://user:hunter2@example.com/x", "https://user:[redacted]@example.com/x"),
    ],
)
def test_rule_7_secrets_are_masked(text: str, wanted: str) -> None:
    assert logs.redacted(text) == wanted
    assert logs.redacted(wanted) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "secret default/db: not found",
        "the bearer token is old",
        "GET https://10.0.0.1:6443/api/v1/namespaces/a@b",
        "spec.tokenSeconds: 3 is under 600",
        "apiVersion: v1",
        "-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----",
    ],
)
def test_other_text_is_not_masked(text: str) -> None:
    assert logs.redacted(text) == text


def test_rule_7_long_text_of_near_misses_is_masked() -> None:
    near_misses = "token-eyJ-bearer " * 100_000
    assert logs.redacted(f"{near_misses}token=abc").endswith("token=[redacted]")


SECRETS = st.sampled_from([JWT, PEM, "Bearer abcdefgh1234", "password: hunter2", "token='q w e r t y'"])
PARTS = ("RSUzI1NiJ9", "c2lnbmF0", "TUlJRW93", "abcdefgh1234", "hunter2", "q w e r t y")


@given(before=st.text(max_size=20).map(lambda text: f"{text} "), secret=SECRETS, human=st.booleans())
def test_rule_7_no_secret_reaches_a_line(before: str, secret: str, human: bool) -> None:
    text = before + secret
    stream = io.StringIO()
    logs.configure("info", "human" if human else "json", stream)
    with logs.log_context(bound=text):
        logging.getLogger("other").warning("%s", text)
        try:
            raise RuntimeError(text)
        except RuntimeError as error:
            log.exception("failed", value=text, nested={"list": [text]}, error=error, token="hunter2", api_key=5)
    assert not [part for part in PARTS if part in stream.getvalue()]
    assert "[redacted]" in stream.getvalue()
