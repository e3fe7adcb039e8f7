"""Sanitizing of untrusted values of any type: each is read as its expected type or dropped.

Results have the form in which an API server returns them: times in UTC with seconds precision, amounts and addresses in
canonical form. Texts are shown on terminals, so they are truncated and stripped of control characters.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv4Address, ip_address
from typing import Any, TypeGuard

from tapestry.kube.names import label_key_error
from tapestry.kube.objects import EMPTY_MAPPING
from tapestry.kube.quantity import MILLI, QuantityError, parse_quantity
from tapestry.kube.times import parse_time, timestamp

MAX_TEXT_BYTES = 4096
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tabs and newlines, bidirectional overrides, and surrogates."""
INT32 = range(-(2**31), 2**31)
ZERO_TIME = "0001-01-01T00:00:00Z"
"""The zero time of Go, which an API server returns as null."""


def as_object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else EMPTY_MAPPING


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def is_int32(value: object) -> TypeGuard[int]:
    return type(value) is int and value in INT32


def text_fields(source: Mapping[str, Any], *fields: str) -> dict[str, str]:
    """Return those of `fields` that hold a non-empty text, sanitized."""
    return {field: text for field in fields if (text := sanitized_text(source.get(field)))}


def sanitized_text(value: object) -> str:
    return truncate_text(value) if isinstance(value, str) else ""


def truncate_text(text: str) -> str:
    """Truncate the text and remove unprintable characters."""
    if len(text) <= MAX_TEXT_BYTES // 4 and text.isprintable():
        return text
    return UNPRINTABLE.sub("", text[:MAX_TEXT_BYTES]).encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


def time_fields(source: Mapping[str, Any], *fields: str) -> dict[str, str]:
    """Return those of `fields` that hold a time, in the form that Kubernetes writes."""
    return {field: moment for field in fields if (moment := sanitized_time(source.get(field)))}


def sanitized_time(value: object) -> str:
    return _parsed_time(value) if isinstance(value, str) and len(value) < 64 else ""


@lru_cache(maxsize=4096)
def _parsed_time(text: str) -> str:
    try:
        moment = timestamp(parse_time(text))
    except ValueError:
        return ""
    return "" if moment == ZERO_TIME else moment


def is_ip_address(value: object) -> bool:
    """Return whether the value is an IP address of any kind."""
    try:
        return isinstance(value, str) and len(value) < 64 and bool(ip_address(value).version)
    except ValueError:
        return False


def is_routable(text: str) -> bool:
    """Return whether the address can be that of a pod, and not e.g. loopback or link-local."""
    return bool(routable_address(text))


def routable_address(value: object) -> str:
    """Return a routable address in canonical form; empty if the value is none."""
    return _parsed_address(value) if isinstance(value, str) and len(value) < 64 else ""


@lru_cache(maxsize=4096)
def _parsed_address(text: str) -> str:
    try:
        ip = ip_address(text)
    except ValueError:
        return ""
    if ip.is_loopback or ip.is_link_local or ip.is_multicast or "%" in text:
        return ""
    if isinstance(ip, IPv4Address):
        is_special = ip.packed[0] == 0 or ip == IPv4Address("255.255.255.255")
    else:
        is_special = int(ip) >> 32 in (0, 0xFFFF)  # unspecified, or an IPv4 address
    return "" if is_special else str(ip)


def sanitized_amount(name: object, value: object, limit: int = 2**63) -> str:
    """Return an amount below `limit` in the form that Kubernetes writes; empty if the name or the amount is invalid."""
    if isinstance(name, str) and isinstance(value, str) and len(name) + len(value) < 400:
        return _parsed_amount(name, value, limit)
    return ""


@lru_cache(maxsize=4096)
def _parsed_amount(name: str, text: str, limit: int) -> str:
    try:
        amount = parse_quantity(text)
    except QuantityError:
        return ""
    if not 0 <= amount.value() < limit or label_key_error(name) is not None:
        return ""
    if amount.nano % MILLI.nano:  # an API server keeps milli precision
        amount = MILLI.scaled(amount.milli_value())
    return str(amount)
