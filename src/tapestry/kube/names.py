"""What Kubernetes allows as a name, and names of our own that always qualify.

A complaint says in words what is wrong with a text, or is None when nothing is.  A hashed name stands for a tuple of
texts: whoever computes it again, in another process or another year, gets the same name, and two different tuples do
not meet.
"""

import base64
import hashlib
import re

LABEL_LIMIT = 63
SUBDOMAIN_LIMIT = 253

HASH_LENGTH = 16  # characters of base32, 5 bits each: 80 bits

DNS_LABEL = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?")
DNS_1035_LABEL = re.compile("[a-z]([-a-z0-9]*[a-z0-9])?")
DNS_SUBDOMAIN = re.compile(rf"{DNS_LABEL.pattern}(\.{DNS_LABEL.pattern})*")
QUALIFIED_NAME = re.compile("[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?")


def dns_label_error(text: str) -> str | None:
    """What keeps `text` from being a DNS-1123 label: the name of a namespace, of a container."""
    rule = "lower case letters, digits and '-', with a letter or digit at both ends"
    return _format_error(text, DNS_LABEL, LABEL_LIMIT, rule)


def dns_1035_label_error(text: str) -> str | None:
    """What keeps `text` from being a DNS-1035 label: the name of a Service."""
    rule = "lower case letters, digits and '-', with a letter first and a letter or digit last"
    return _format_error(text, DNS_1035_LABEL, LABEL_LIMIT, rule)


def dns_subdomain_error(text: str) -> str | None:
    """What keeps `text` from being a DNS-1123 subdomain: the name of most objects."""
    rule = "lower case letters, digits, '-' and '.', with a letter or digit at both ends and around each '.'"
    return _format_error(text, DNS_SUBDOMAIN, SUBDOMAIN_LIMIT, rule)


def label_key_error(text: str) -> str | None:
    """What keeps `text` from being the key of a label or annotation: `name` or `example.com/name`."""
    prefix, slash, name = text.rpartition("/")
    complaint = dns_subdomain_error(prefix) if slash else None
    if complaint:
        return f"{text!r}: the part before '/': {complaint}"
    rule = "letters, digits, '-', '_' and '.', with a letter or digit at both ends"
    complaint = _format_error(name, QUALIFIED_NAME, LABEL_LIMIT, rule)
    return f"{text!r}: the part after '/': {complaint}" if complaint and slash else complaint


def label_value_error(text: str) -> str | None:
    """What keeps `text` from being the value of a label; the empty text is one."""
    rule = "empty, or letters, digits, '-', '_' and '.', with a letter or digit at both ends"
    return _format_error(text, QUALIFIED_NAME, LABEL_LIMIT, rule) if text else None


def _format_error(text: str, pattern: re.Pattern[str], limit: int, rule: str) -> str | None:
    if len(text) > limit:
        return f"{text[:limit]!r}... has {len(text)} characters; at most {limit} are allowed"
    return None if pattern.fullmatch(text) else f"{text!r} is not allowed; it must be {rule}"


def hashed_name(prefix: str, *parts: str, limit: int = LABEL_LIMIT) -> str:
    """A DNS-1123 label of at most `limit` characters that stands for `parts`.

    The prefix is there for people: it is made to fit, and names of the same parts differ by no more than that.
    """
    if not HASH_LENGTH <= limit <= LABEL_LIMIT:
        raise ValueError(f"limit: {limit} is not between {HASH_LENGTH} and {LABEL_LIMIT}")
    readable = re.sub("[^a-z0-9]+", "-", prefix.lower())
    return _with_hash(readable, parts, limit)


def safe_label_value(text: str) -> str:
    """`text` where it can be the value of a label, else what can be kept of its beginning and a hash of the whole."""
    if label_value_error(text) is None:
        return text
    return _with_hash(re.sub("[^-_.A-Za-z0-9]+", "-", text), (text,), LABEL_LIMIT)


def _with_hash(readable: str, parts: tuple[str, ...], limit: int) -> str:
    kept = readable.lstrip("-_.")[: max(0, limit - HASH_LENGTH - 1)].rstrip("-_.")
    return f"{kept}-{_hash(parts)}" if kept else _hash(parts)


def _hash(parts: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        # The length in front keeps ("a", "bc") and ("ab", "c") apart.
        digest.update(len(data).to_bytes(8, "big") + data)
    return base64.b32encode(digest.digest()).decode()[:HASH_LENGTH].lower()
