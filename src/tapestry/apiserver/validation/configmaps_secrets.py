"""Validation of ConfigMaps and Secrets."""

import base64
import binascii
from collections.abc import Iterator
from typing import Any

import msgspec

from tapestry.apiserver.core import names
from tapestry.apiserver.core.faults import (
    Fault,
    forbidden_field,
    invalid_value,
    required_value,
    too_long,
    validate_immutable_field,
)
from tapestry.kube.objects import Object, annotations_of

MAX_DATA_BYTES = 1024 * 1024
IMMUTABLE_DATA_MESSAGE = "field is immutable when `immutable` is set"
SERVICE_ACCOUNT_ANNOTATION = "kubernetes.io/service-account.name"
REQUIRED_KEYS = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}


def validate_data_keys(value: Any, path: str) -> Iterator[Fault]:
    for key in value:
        for msg in names.config_key_errors(key):
            yield invalid_value(f"{path}[{key}]", key, msg)


def validate_config_map(obj: Object, _: str = "") -> Iterator[Fault]:
    data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    yield from validate_data_keys(data, "data")
    for key in data.keys() & binary.keys():
        yield invalid_value(f"data[{key}]", key, "duplicate of key present in binaryData")
    yield from validate_data_keys(binary, "binaryData")
    if (
        sum(len(text.encode()) for text in data.values()) + sum(map(base64_decoded_size, binary.values()))
        > MAX_DATA_BYTES
    ):
        yield too_long("", MAX_DATA_BYTES)


def base64_decoded_size(text: str) -> int:
    return len(text) // 4 * 3 - text.count("=", -2)


def validate_config_map_update(old: Object, new: Object) -> Iterator[Fault]:
    yield from validate_immutable_data(old, new, "data", "binaryData")
    yield from validate_config_map(new)


def validate_immutable_data(old: Object, new: Object, *fields: str) -> Iterator[Fault]:
    if not old.get("immutable"):
        return
    if not new.get("immutable"):
        yield forbidden_field("immutable", IMMUTABLE_DATA_MESSAGE)
    for field in fields:
        if (old.get(field) or {}) != (new.get(field) or {}):
            yield forbidden_field(field, IMMUTABLE_DATA_MESSAGE)


def validate_secret(obj: Object, _: str = "") -> Iterator[Fault]:
    data, type = obj.get("data") or {}, obj.get("type", "Opaque")
    yield from validate_data_keys(data, "data")
    if sum(map(base64_decoded_size, data.values())) > MAX_DATA_BYTES:
        yield too_long("data", MAX_DATA_BYTES)
    if type == "kubernetes.io/service-account-token" and not annotations_of(obj).get(SERVICE_ACCOUNT_ANNOTATION):
        yield required_value(f"metadata.annotations[{SERVICE_ACCOUNT_ANNOTATION}]")
    if type == "kubernetes.io/basic-auth" and not data.keys() & {"username", "password"}:
        yield from (required_value(f"data[{key}]") for key in ("username", "password"))
    for key in REQUIRED_KEYS.get(type, ()):
        if key not in data:
            yield required_value(f"data[{key}]")
        elif key.startswith(".docker") and not is_json_object(data[key]):
            yield invalid_value(f"data[{key}]", "<secret contents redacted>", "it is not a JSON object")


def is_json_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(base64.b64decode(text)), dict)
    except (msgspec.DecodeError, binascii.Error, UnicodeDecodeError, RecursionError):
        return False


def validate_secret_update(old: Object, new: Object) -> Iterator[Fault]:
    yield from validate_immutable_field(old.get("type"), new.get("type"), "type")
    yield from validate_immutable_data(old, new, "data")
    yield from validate_secret(new)
