"""Formats that a schema can ask a text to have."""

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from urllib.parse import urlsplit
from uuid import UUID

DURATION = re.compile(r"[-+]?(\d+(\.\d*)?(ns|us|µs|ms|s|m|h|d|w))+|0")
EMAIL = re.compile(r"[^@\s]+@[^@\s]+")
HOSTNAME = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?)*"
)


def parses(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            parse(text)
        except (ValueError, binascii.Error):
            return False
        return True

    return check


def matches(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.fullmatch(text) is not None


def date_time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text}: a time without a zone")
    return found


FORMATS: Mapping[str, Callable[[str], bool]] = {
    "date-time": parses(date_time),
    "date": parses(date.fromisoformat),
    "duration": matches(DURATION),
    "email": matches(EMAIL),
    "hostname": matches(HOSTNAME),
    "ipv4": parses(ipaddress.IPv4Address),
    "ipv6": parses(ipaddress.IPv6Address),
    "cidr": parses(lambda text: ipaddress.ip_network(text, strict=False)),
    "uri": lambda text: bool(urlsplit(text).scheme),
    "uuid": parses(UUID),
    "byte": parses(lambda text: base64.b64decode(text, validate=True)),
}
"""Those that are checked; texts of another format may say anything."""
