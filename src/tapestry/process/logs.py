"""Logs: one line per unit of work, a static phrase and the values as keys.

    log = logs.logger("tapestry.syncer")

    with logs.bound(controller="pods", key="default/web-0"):
        log.info("reconciled", seconds=0.004)

Off a terminal a line is a JSON object, on one it is meant for people.  The standard library carries the records, so
what other packages log comes out the same way.  Every text on its way into a line is redacted: messages, values,
errors and tracebacks alike, whoever wrote them.
"""

import asyncio
import logging
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, TextIO

import msgspec

from tapestry.kube.objects import EMPTY_MAPPING, value_at

Format = Literal["auto", "json", "human"]
Level = Literal["debug", "info", "warning", "error"]

MASK = "[redacted]"

_context: ContextVar[Mapping[str, Any]] = ContextVar("bound", default=EMPTY_MAPPING)


class Log:
    """A logger whose messages are static phrases and whose values are keywords.

    A value may be anything: an error is logged as its class and message, a Kubernetes object as its kind and name.
    Below the level in force a call costs little more than the look at that level.
    """

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, phrase: str, /, **values: Any) -> None:
        self._log(logging.DEBUG, phrase, values)

    def info(self, phrase: str, /, **values: Any) -> None:
        self._log(logging.INFO, phrase, values)

    def warning(self, phrase: str, /, **values: Any) -> None:
        self._log(logging.WARNING, phrase, values)

    def error(self, phrase: str, /, **values: Any) -> None:
        self._log(logging.ERROR, phrase, values)

    def exception(self, phrase: str, /, **values: Any) -> None:
        """An error with the traceback of the exception that is being handled: for what should not have happened."""
        self._log(logging.ERROR, phrase, values, exc_info=True)

    def _log(self, level: int, phrase: str, values: dict[str, Any], exc_info: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            # One attribute for all values: a LogRecord has attributes of its own that a value could overwrite.
            self._logger.log(level, phrase, extra={"values": values}, exc_info=exc_info)


def logger(name: str) -> Log:
    return Log(logging.getLogger(name))


@contextmanager
def log_context(**values: Any) -> Iterator[None]:
    """Adds `values` to every line logged in this block and in the tasks started there."""
    token = _context.set({**_context.get(), **values})
    try:
        yield
    finally:
        _context.reset(token)


def configure(level: Level = "info", format: Format = "auto", stream: TextIO | None = None) -> None:
    """Sends every record of the process to `stream` (stderr), and nowhere else; the last call counts."""
    target = sys.stderr if stream is None else stream
    human = target.isatty() if format == "auto" else format == "human"
    handler = logging.StreamHandler(target)
    handler.setFormatter(LineFormatter(human_line if human else json_line))
    logging.getLogger().handlers = [handler]
    set_level(level)


def set_level(level: Level) -> None:
    logging.getLogger().setLevel(level.upper())


def install_level_signals(loop: asyncio.AbstractEventLoop) -> None:
    """SIGUSR1 turns debug lines on, SIGUSR2 goes back to the level in force now."""
    root = logging.getLogger()
    loop.add_signal_handler(signal.SIGUSR1, root.setLevel, logging.DEBUG)
    loop.add_signal_handler(signal.SIGUSR2, root.setLevel, root.level)


class LineFormatter(logging.Formatter):
    """Makes a line of a record; in the human form a traceback follows it."""

    def __init__(self, render: Callable[[dict[str, Any]], str]) -> None:
        super().__init__()
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        return self._render(fields_of(record))


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What a line says: the fixed keys first, what is bound, the call's own values, then the exception."""
    fields: dict[str, Any] = {
        "time": timestamp(record.created),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": safe_text(record.getMessage()),
    }
    for key, value in loggable_items({**_context.get(), **getattr(record, "values", EMPTY_MAPPING)}):
        fields[f"{key}_" if key in fields else key] = value
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        fields.setdefault("error", loggable(error))
        fields["traceback"] = safe_text("".join(traceback.format_exception(error)).rstrip())
    return fields


def timestamp(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds, of seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def loggable(value: Any) -> Any:
    """`value` as it may stand in a line: objects by name, since their content may be secret, and no raw bytes."""
    match value:
        case str():
            return safe_text(value)
        case int() | float() | None:
            return value
        case {"metadata": _}:
            kind, namespace = value.get("kind", "object"), value_at(value, "metadata", "namespace")
            name = value_at(value, "metadata", "name", default="")
            return safe_text(f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}".rstrip())
        case Mapping():
            return dict(loggable_items(value))
        case list() | tuple() | set() | frozenset():
            return [loggable(item) for item in value]
        case bytes() | bytearray() | memoryview():
            return f"<{len(value)} bytes>"
        case BaseException():
            return safe_text(f"{type(value).__name__}: {value}".removesuffix(": "))
    return safe_text(str(value))


def loggable_items(values: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = safe_text(str(key))
        yield name, MASK if is_secret_key(name) else loggable(value)


def safe_text(text: str) -> str:
    """`text` redacted, and fit to be encoded: a file name that is not UTF-8 comes with lone surrogates."""
    return redacted(text if text.isascii() else text.encode("utf-8", "backslashreplace").decode())


def json_line(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def human_line(fields: dict[str, Any]) -> str:
    words = [fields.pop("time"), f"{fields.pop('level'):<7}", f"{fields.pop('logger')}:", fields.pop("message")]
    below = fields.pop("traceback", None)
    words += [f"{key}={human_value(value)}" for key, value in fields.items()]
    text = " ".join(words) if below is None else f"{' '.join(words)}\n{below}"
    # What a stranger wrote must not steer the terminal.
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda control: f"\\x{ord(control[0]):02x}", text)


def human_value(value: Any) -> str:
    """One word as it is, anything else as JSON."""
    return value if isinstance(value, str) and re.fullmatch(r'[^\s"=]+', value) else json_line(value)


# What no line may carry (safety rule 7).  Group 1 of a pattern is kept, the rest of the match is masked.
_KEY = r"token|passw(?:or)?d|api[-_]?key|client[-_]?secret|client-(?:key|certificate)-data|certificate-authority-data"
_KEYED = re.compile(rf"((?:{_KEY})[\"'\\]*\s*[:=]\s*(\\*[\"'])?)(?(2)[^\"'\\]+|[^\s\"'\\,;]+)", re.I)

# By a text that every match has in it, in lower case: most lines have none, and finding that out must cost little.
SECRET_PATTERNS = {
    "private key": re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|\Z)", re.S),
    "ls0tls1crudjti": re.compile(r"()\bLS0tLS1CRUdJTi[\w+/=]*"),  # PEM in base64
    "eyj": re.compile(r"()(?<![\w-])eyJ[\w-]{5,}\.[\w-]+(?:\.[\w-]*)*"),  # a JWT
    "zxlk": re.compile(r"()\bZXlK[\w+/]{30,}=*"),  # a JWT in base64, as a Secret has it
    "authorization": re.compile(
        r"(\bauthorization[\"'\\]*\s*[:=]\s*[\"'\\]*(?:(?:bearer|basic)\s+)?)[^\s\"'\\,]+", re.I
    ),
    "bearer": re.compile(r"(\bbearer\s+)[\w.~+/=-]{8,}", re.I),
    "token": _KEYED,
    "passw": _KEYED,
    "secret": _KEYED,
    "api": _KEYED,
    "-data": _KEYED,
    "://": re.compile(r"(://[^\s/:@]*:)[^\s/@]+(?=@)"),  # a password in a URL
}


def redacted(text: str) -> str:
    """`text` without bearer tokens, JWTs, private keys, passwords and the credentials of a kubeconfig."""
    lowered = text.lower()
    for hint, secret in SECRET_PATTERNS.items():
        if hint in lowered:
            text = secret.sub(rf"\g<1>{MASK}", text)
    return text


@lru_cache(maxsize=1024)
def is_secret_key(key: str) -> bool:
    return re.search(rf"(?:{_KEY})$", key, re.I) is not None
