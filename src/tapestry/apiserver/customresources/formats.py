"""String formats that schemas can require."""

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


def parse_check(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            parse(text)
        except (ValueError, binascii.Error):
            return False
        return True

    return check


def pattern_check(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.fullmatch(text) is not None


def date_time(text: str) -> datetime:
    parsed = datetime.fromisoformat(text)
    if parsed.tzinfo is None:
        raise ValueError(f"{text}: a time without a zone")
    return parsed


FORMATS: Mapping[str, Callable[[str], bool]] = {
    "date-time": parse_check(date_time),
    "date": parse_check(date.fromisoformat),
    "duration": pattern_check(DURATION),
    "email": pattern_check(EMAIL),
    "hostname": pattern_check(HOSTNAME),
    "ipv4": parse_check(ipaddress.IPv4Address),
    "ipv6": parse_check(ipaddress.IPv6Address),
    "cidr": parse_check(lambda text: ipaddress.ip_network(text, strict=False)),
    "uri": lambda text: bool(urlsplit(text).scheme),
    "uuid": parse_check(UUID),
    "byte": parse_check(lambda text: base64.b64decode(text, validate=True)),
}
"""The formats that are checked. Other formats accept any string."""
