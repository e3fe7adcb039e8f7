"""ConfigMaps and Secrets."""

import base64
import binascii
from collections.abc import Iterator
from typing import Any

import msgspec

from tapestry.apiserver.customs.structural import Fault
from tapestry.apiserver.validation import names
from tapestry.apiserver.validation.faults import forbidden, invalid, required, too_long, unchanged
from tapestry.kube.objects import Object, annotations_of

SIZE_LIMIT = 1024 * 1024
STAYS = "field is immutable when `immutable` is set"
ACCOUNT = "kubernetes.io/service-account.name"
NEEDED = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}


def keys(value: Any, path: str) -> Iterator[Fault]:
    for key in value:
        for why in names.config_key(key):
            yield invalid(f"{path}[{key}]", key, why)


def config_map(obj: Object, _: str = "") -> Iterator[Fault]:
    data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    yield from keys(data, "data")
    for key in data.keys() & binary.keys():
        yield invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    yield from keys(binary, "binaryData")
    if sum(len(text.encode()) for text in data.values()) + sum(map(decoded_size, binary.values())) > SIZE_LIMIT:
        yield too_long("", SIZE_LIMIT)


def decoded_size(text: str) -> int:
    return len(text) // 4 * 3 - text.count("=", -2)


def changed_config_map(old: Object, new: Object) -> Iterator[Fault]:
    yield from still_immutable(old, new, "data", "binaryData")
    yield from config_map(new)


def still_immutable(old: Object, new: Object, *fields: str) -> Iterator[Fault]:
    if not old.get("immutable"):
        return
    if not new.get("immutable"):
        yield forbidden("immutable", STAYS)
    for field in fields:
        if (old.get(field) or {}) != (new.get(field) or {}):
            yield forbidden(field, STAYS)


def secret(obj: Object, _: str = "") -> Iterator[Fault]:
    data, type = obj.get("data") or {}, obj.get("type", "Opaque")
    yield from keys(data, "data")
    if sum(map(decoded_size, data.values())) > SIZE_LIMIT:
        yield too_long("data", SIZE_LIMIT)
    if type == "kubernetes.io/service-account-token" and not annotations_of(obj).get(ACCOUNT):
        yield required(f"metadata.annotations[{ACCOUNT}]")
    if type == "kubernetes.io/basic-auth" and not data.keys() & {"username", "password"}:
        yield from (required(f"data[{key}]") for key in ("username", "password"))
    for key in NEEDED.get(type, ()):
        if key not in data:
            yield required(f"data[{key}]")
        elif key.startswith(".docker") and not is_object(data[key]):
            yield invalid(f"data[{key}]", "<secret contents redacted>", "it is not a JSON object")


def is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(base64.b64decode(text)), dict)
    except (msgspec.DecodeError, binascii.Error, UnicodeDecodeError, RecursionError):
        return False


def changed_secret(old: Object, new: Object) -> Iterator[Fault]:
    yield from unchanged(old.get("type"), new.get("type"), "type")
    yield from still_immutable(old, new, "data")
    yield from secret(new)
