"""Structured logging: fixed messages with values as fields, and redaction of secrets.

    log = logs.logger("tapestry.syncer")

    with logs.log_context(controller="pods", key="default/web-0"):
        log.info("reconcile finished", seconds=0.004)

Lines are JSON objects, or readable text on a terminal.  Records go through the standard library, so other packages log
in the same format.  All texts are redacted: messages, values, errors and tracebacks.
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
from tapestry.process.work_meter import CURRENT_METER

Format = Literal["auto", "json", "human"]
Level = Literal["debug", "info", "warning", "error"]

MASK = "[redacted]"

_context: ContextVar[Mapping[str, Any]] = ContextVar("bound", default=EMPTY_MAPPING)


class Log:
    """A logger with fixed messages and values as keywords.

    A value may be anything.  An error is logged as its class and message, a Kubernetes object as its kind and name.  A
    call below the current level costs little more than the level check.
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
        """Log an error with the traceback of the current exception.  For unexpected errors."""
        self._log(logging.ERROR, phrase, values, exc_info=True)

    def _log(self, level: int, phrase: str, values: dict[str, Any], exc_info: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            # One attribute for all values, because a value could overwrite other attributes of the LogRecord.
            self._logger.log(level, phrase, extra={"values": values}, exc_info=exc_info)


def logger(name: str) -> Log:
    return Log(logging.getLogger(name))


@contextmanager
def log_context(**values: Any) -> Iterator[None]:
    """Add `values` to every line logged in this block and in tasks started there."""
    token = _context.set({**_context.get(), **values})
    try:
        yield
    finally:
        _context.reset(token)


def configure(level: Level = "info", format: Format = "auto", stream: TextIO | None = None) -> None:
    """Send all records of the process to `stream` (default stderr) only.  The last call wins."""
    target = sys.stderr if stream is None else stream
    human = target.isatty() if format == "auto" else format == "human"
    handler = logging.StreamHandler(target)
    handler.setFormatter(LineFormatter(human_line if human else json_line))
    logging.getLogger().handlers = [handler]
    set_level(level)


def set_level(level: Level) -> None:
    logging.getLogger().setLevel(level.upper())


def install_level_signals(loop: asyncio.AbstractEventLoop) -> None:
    """Enable debug logging on SIGUSR1, and restore the current level on SIGUSR2."""
    root = logging.getLogger()
    loop.add_signal_handler(signal.SIGUSR1, root.setLevel, logging.DEBUG)
    loop.add_signal_handler(signal.SIGUSR2, root.setLevel, root.level)


class LineFormatter(logging.Formatter):
    """Format a record as one line.  In the human format, a traceback follows."""

    def __init__(self, render: Callable[[dict[str, Any]], str]) -> None:
        super().__init__()
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        return self._render(fields_of(record))


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a line: fixed keys, context, values of the call, then the exception."""
    fields: dict[str, Any] = {
        "time": timestamp(record.created),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": safe_text(record.getMessage()),
    }
    meter = CURRENT_METER.get()
    part = meter.log_values if meter is not None else EMPTY_MAPPING
    for key, value in loggable_items({**part, **_context.get(), **getattr(record, "values", EMPTY_MAPPING)}):
        fields[f"{key}_" if key in fields else key] = value
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        fields.setdefault("error", loggable(error))
        fields["traceback"] = safe_text("".join(traceback.format_exception(error)).rstrip())
    return fields


def timestamp(seconds: float) -> str:
    """Format seconds since the epoch as RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def loggable(value: Any) -> Any:
    """Return `value` in loggable form: objects by name, since their content may be secret, and no raw bytes."""
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
    """Return `text` redacted and encodable: file names that are not UTF-8 contain lone surrogates."""
    return redacted(text if text.isascii() else text.encode("utf-8", "backslashreplace").decode())


def json_line(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def human_line(fields: dict[str, Any]) -> str:
    parts = [fields.pop("time"), f"{fields.pop('level'):<7}", f"{fields.pop('logger')}:", fields.pop("message")]
    trace = fields.pop("traceback", None)
    parts += [f"{key}={human_value(value)}" for key, value in fields.items()]
    text = " ".join(parts) if trace is None else f"{' '.join(parts)}\n{trace}"
    # Untrusted text must not control the terminal.
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda control: f"\\x{ord(control[0]):02x}", text)


def human_value(value: Any) -> str:
    """Return a single word unchanged, anything else as JSON."""
    return value if isinstance(value, str) and re.fullmatch(r'[^\s"=]+', value) else json_line(value)


# Secrets that no line may contain (safety rule 7).  Group 1 of a pattern is kept, the rest of the match is masked.
_KEY = r"token|passw(?:or)?d|api[-_]?key|client[-_]?secret|client-(?:key|certificate)-data|certificate-authority-data"
_KEYED = re.compile(rf"((?:{_KEY})[\"'\\]*\s*[:=]\s*(\\*[\"'])?)(?(2)[^\"'\\]+|[^\s\"'\\,;]+)", re.I)

# By a lower-case text that every match contains.  Most lines contain none, so the check must be cheap.
SECRET_PATTERNS = {
    "private key": re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|\Z)", re.S),
    "ls0tls1crudjti": re.compile(r"()\bLS0tLS1CRUdJTi[\w+/=]*"),  # PEM in base64
    "eyj": re.compile(r"()(?<![\w-])eyJ[\w-]{5,}\.[\w-]+(?:\.[\w-]*)*"),  # a JWT
    "zxlk": re.compile(r"()\bZXlK[\w+/]{30,}=*"),  # a JWT in base64, as in a Secret
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
    """Return `text` without bearer tokens, JWTs, private keys, passwords and kubeconfig credentials."""
    lowered = text.lower()
    for hint, secret in SECRET_PATTERNS.items():
        if hint in lowered:
            text = secret.sub(rf"\g<1>{MASK}", text)
    return text


@lru_cache(maxsize=1024)
def is_secret_key(key: str) -> bool:
    return re.search(rf"(?:{_KEY})$", key, re.I) is not None
