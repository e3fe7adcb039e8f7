"""What may leave a cluster: objects and texts without what is secret (safety rule 7).  Pure.

Of objects, the fields that programs are told things by are hidden wherever they stand, whatever is in them: values of
environment variables, commands, data, headers, annotations that are not ours.  Every text that is left, and every log,
then loses what looks like a credential or a certificate, and secrets that are known, however they come.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tapestry.apis import keys
from tapestry.kube.objects import Object
from tapestry.process.logs import MASK, names_a_secret, redacted

MAPS = frozenset({"data", "stringData", "binaryData", "volumeAttributes", "options"})
"""Their keys are shown, their values not."""
PAIRS = frozenset({"env", "httpHeaders"})
"""Lists of names with values."""
LISTS = frozenset({"command", "args"})
TEXTS = {"httpGet": ("path",), "terminated": ("message",)}
"""Fields, by the part of an object that they stand in."""
DROPPED = frozenset({"managedFields"})
ANNOTATIONS = frozenset(
    key for key in vars(keys).values() if isinstance(key, str) and key.startswith(keys.PREFIX) and key != keys.PREFIX
) - {keys.EXPECTED_METADATA}
"""Ours, but for the one that repeats what others have written."""

CERTIFICATES = re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.S)
CERTIFICATE_FIELDS = re.compile(r"(?i)(ca[-_]?bundle|(ca|certificate|cert|tls\.crt|tls\.key)[-_]?data)$")
SECRET_NAMES = re.compile(r"(?i)token|passw|secret|credential|key|auth")
"""Of environment variables whose values are secret wherever else they turn up."""
NO_SECRETS = frozenset({"namespace"})
"""What the Secret of a service account has beside its token."""
SHORTEST = 8
"""Characters of a secret that is looked for: a shorter one is part of many words that are none."""
KEYED = re.compile(r"(?:token|password|[-\w]+-data)[\"']?\s*:\s*[\"']?([^\s\"',}]+)", re.I)
"""A credential in a kubeconfig."""


@dataclass(frozen=True)
class Redaction:
    """Hides what is secret; `known` are secrets that are looked for everywhere."""

    known: frozenset[str] = frozenset()
    _pattern: re.Pattern[str] | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        every = sorted({form for each in self.known for form in forms(each)}, key=len, reverse=True)
        object.__setattr__(self, "_pattern", re.compile("|".join(map(re.escape, every))) if every else None)

    def text(self, text: str) -> str:
        shown = CERTIFICATES.sub(MASK, text) if "-----BEGIN" in text else text
        shown = redacted(shown)
        return self._pattern.sub(MASK, shown) if self._pattern else shown

    def object(self, obj: Mapping[str, Any]) -> Object:
        return {self.text(key): self.part(key, value) for key, value in obj.items() if key not in DROPPED}

    def part(self, key: str, value: Any) -> Any:
        """What is in the field `key` of an object, as it may be shown."""
        match value:
            case str():
                return MASK if names_a_secret(key) or CERTIFICATE_FIELDS.search(key) else self.text(value)
            case Mapping():
                return self.mapping(key, value)
            case list():
                return self.sequence(key, value)
        return value

    def mapping(self, key: str, value: Mapping[str, Any]) -> Object:
        if key in MAPS:
            return {self.text(name): MASK for name in value}
        if key == "annotations":
            return {self.text(name): self.annotation(name, text) for name, text in value.items()}
        hidden = {name: MASK for name in TEXTS.get(key, ()) if name in value}
        return self.object({**value, **hidden})

    def sequence(self, key: str, value: list[Any]) -> list[Any]:
        if key in LISTS:
            return [MASK]
        if key in PAIRS:
            return [self.object({**each, "value": MASK} if "value" in each else each) for each in value]
        return [self.part(key, each) for each in value]

    def annotation(self, name: str, text: str) -> str:
        return self.text(text) if name in ANNOTATIONS else MASK


def forms(secret: str) -> Iterator[str]:
    """A secret, and how it looks where it is packed."""
    yield secret
    yield base64.b64encode(secret.encode()).decode().rstrip("=")


# -- what is known to be secret


def secrets_in(objects: Iterable[Object]) -> frozenset[str]:
    """What Secrets hold, and what variables are set to whose names sound like it."""
    found = {text for obj in objects for text in (*in_data(obj), *in_variables(obj))}
    return frozenset(text for text in found if len(text) >= SHORTEST)


def in_data(obj: Object) -> Iterator[str]:
    if obj.get("kind") != "Secret":
        return
    for key, packed in (obj.get("data") or {}).items():
        try:
            text = base64.b64decode(packed).decode(errors="replace").strip()
        except ValueError:  # what is not packed as it should be is nothing to look for
            continue
        if key not in NO_SECRETS and "\n" not in text and not text.startswith("{"):
            yield text
        yield from credentials_in(text)


def credentials_in(kubeconfig: str) -> Iterator[str]:
    """The credentials in the text of a kubeconfig."""
    yield from KEYED.findall(kubeconfig)


def in_variables(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for each in value.get("env") or ():
            if isinstance(each, Mapping) and SECRET_NAMES.search(each.get("name", "")) and each.get("value"):
                yield each["value"]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from in_variables(each)
