"""Removal of secrets from objects and texts before they leave a cluster (safety rule 7). Pure.

In objects, fields that pass data to programs are always masked: values of environment variables, commands, data,
headers and foreign annotations.  In all remaining texts and logs, everything that looks like a credential or a
certificate is masked, and known secrets in any encoding.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tapestry.apis import keys
from tapestry.kube.objects import Object
from tapestry.process.logs import MASK, is_secret_key, redacted

SECRET_MAPS = frozenset({"data", "stringData", "binaryData", "volumeAttributes", "options"})
"""Mappings whose keys are shown and values are masked."""
NAME_VALUE_LISTS = frozenset({"env", "httpHeaders"})
"""Lists of names with values."""
SECRET_LISTS = frozenset({"command", "args"})
SECRET_TEXTS = {"httpGet": ("path",), "terminated": ("message",)}
"""Fields by the part of an object that contains them."""
DROPPED_FIELDS = frozenset({"managedFields"})
VISIBLE_ANNOTATIONS = frozenset(
    key for key in vars(keys).values() if isinstance(key, str) and key.startswith(keys.PREFIX) and key != keys.PREFIX
) - {keys.EXPECTED_METADATA}
"""Tapestry's own annotations, except the one that repeats foreign metadata."""

PEM_BLOCKS = re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.S)
CERTIFICATE_FIELDS = re.compile(r"(?i)(ca[-_]?bundle|(ca|certificate|cert|tls\.crt|tls\.key)[-_]?data)$")
SECRET_NAMES = re.compile(r"(?i)token|passw|secret|credential|key|auth")
"""Names of environment variables whose values are masked everywhere."""
NON_SECRET_KEYS = frozenset({"namespace"})
"""Keys of a service account Secret that are not secret."""
MIN_SECRET_LENGTH = 8
"""Shortest secret to search for; a shorter one would match ordinary words."""
KUBECONFIG_CREDENTIAL = re.compile(r"(?:token|password|[-\w]+-data)[\"']?\s*:\s*[\"']?([^\s\"',}]+)", re.I)


@dataclass(frozen=True)
class Redaction:
    """Mask secrets; `known` secrets are masked everywhere."""

    known: frozenset[str] = frozenset()
    _pattern: re.Pattern[str] | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        forms = sorted({form for each in self.known for form in secret_encodings(each)}, key=len, reverse=True)
        object.__setattr__(self, "_pattern", re.compile("|".join(map(re.escape, forms))) if forms else None)

    def redact_text(self, text: str) -> str:
        masked = PEM_BLOCKS.sub(MASK, text) if "-----BEGIN" in text else text
        masked = redacted(masked)
        return self._pattern.sub(MASK, masked) if self._pattern else masked

    def redact_object(self, obj: Mapping[str, Any]) -> Object:
        return {
            self.redact_text(key): self.redact_field(key, value)
            for key, value in obj.items()
            if key not in DROPPED_FIELDS
        }

    def redact_field(self, key: str, value: Any) -> Any:
        match value:
            case str():
                return MASK if is_secret_key(key) or CERTIFICATE_FIELDS.search(key) else self.redact_text(value)
            case Mapping():
                return self.redact_mapping(key, value)
            case list():
                return self.redact_list(key, value)
        return value

    def redact_mapping(self, key: str, value: Mapping[str, Any]) -> Object:
        if key in SECRET_MAPS:
            return {self.redact_text(name): MASK for name in value}
        if key == "annotations":
            return {self.redact_text(name): self.redact_annotation(name, text) for name, text in value.items()}
        hidden = {name: MASK for name in SECRET_TEXTS.get(key, ()) if name in value}
        return self.redact_object({**value, **hidden})

    def redact_list(self, key: str, value: list[Any]) -> list[Any]:
        if key in SECRET_LISTS:
            return [MASK]
        if key in NAME_VALUE_LISTS:
            return [self.redact_object({**each, "value": MASK} if "value" in each else each) for each in value]
        return [self.redact_field(key, each) for each in value]

    def redact_annotation(self, name: str, text: str) -> str:
        return self.redact_text(text) if name in VISIBLE_ANNOTATIONS else MASK


def secret_encodings(secret: str) -> Iterator[str]:
    """Yield a secret and its base64 encoding."""
    yield secret
    yield base64.b64encode(secret.encode()).decode().rstrip("=")


# -- known secrets


def secrets_in(objects: Iterable[Object]) -> frozenset[str]:
    """Return the data of Secrets and the values of variables with secret names."""
    found = {text for obj in objects for text in (*secret_data_values(obj), *secret_variable_values(obj))}
    return frozenset(text for text in found if len(text) >= MIN_SECRET_LENGTH)


def secret_data_values(obj: Object) -> Iterator[str]:
    if obj.get("kind") != "Secret":
        return
    for key, encoded in (obj.get("data") or {}).items():
        try:
            text = base64.b64decode(encoded).decode(errors="replace").strip()
        except ValueError:  # invalid base64 is no secret to search for
            continue
        if key not in NON_SECRET_KEYS and "\n" not in text and not text.startswith("{"):
            yield text
        yield from credentials_in(text)


def credentials_in(kubeconfig: str) -> Iterator[str]:
    yield from KUBECONFIG_CREDENTIAL.findall(kubeconfig)


def secret_variable_values(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for each in value.get("env") or ():
            if isinstance(each, Mapping) and SECRET_NAMES.search(each.get("name", "")) and each.get("value"):
                yield each["value"]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from secret_variable_values(each)
