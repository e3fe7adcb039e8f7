"""What a stranger says: values of any type, read as what they should be or as nothing.

What is read has the very form in which an API server gives it back: times in UTC and to the second, amounts and
addresses as they are usually written.  Texts will be seen on terminals, so they are cut and lose what works there.
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
"""Bytes."""
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Controls but tabs and line ends, what turns the direction of text around, and halves of characters."""
INT32 = range(-(2**31), 2**31)
ZERO_TIME = "0001-01-01T00:00:00Z"
"""What stands for no time in Go; an API server gives it back as null."""


def as_object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else EMPTY_MAPPING


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def is_int32(value: object) -> TypeGuard[int]:
    return type(value) is int and value in INT32


def text_fields(source: Mapping[str, Any], *fields: str) -> dict[str, str]:
    """Those of `fields` that hold a text which is not empty, cut."""
    return {field: text for field in fields if (text := sanitized_text(source.get(field)))}


def sanitized_text(value: object) -> str:
    return truncate_text(value) if isinstance(value, str) else ""


def truncate_text(text: str) -> str:
    """`text` as far as it can be shown."""
    if len(text) <= MAX_TEXT_BYTES // 4 and text.isprintable():
        return text
    return UNPRINTABLE.sub("", text[:MAX_TEXT_BYTES]).encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


def time_fields(source: Mapping[str, Any], *fields: str) -> dict[str, str]:
    """Those of `fields` that hold a time, as Kubernetes writes it."""
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
    """Whether this is an address of any kind."""
    try:
        return isinstance(value, str) and len(value) < 64 and bool(ip_address(value).version)
    except ValueError:
        return False


def is_routable(text: str) -> bool:
    """Whether an address can be that of a pod: not one that means something else to whoever calls it."""
    return bool(routable_address(text))


def routable_address(value: object) -> str:
    """An address that leads somewhere, in its canonical form; empty where it is none."""
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
        means_another = ip.packed[0] == 0 or ip == IPv4Address("255.255.255.255")
    else:
        means_another = int(ip) >> 32 in (0, 0xFFFF)  # an IPv4 address, or none
    return "" if means_another else str(ip)


def sanitized_amount(name: object, value: object, limit: int = 2**63) -> str:
    """An amount below `limit` as Kubernetes writes it; empty where it is none, or none of anything."""
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
    if amount.nano % MILLI.nano:  # an API server keeps no less than a thousandth
        amount = MILLI.scaled(amount.milli_value())
    return str(amount)
