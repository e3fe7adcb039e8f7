"""Validation of Kubernetes names, and hashed names that are always valid.

Each `*_error` function returns the error for an invalid string, or None. A hashed name identifies a tuple of strings.
It is stable across processes and releases, and different tuples get different names.
"""

import base64
import hashlib
import re

LABEL_LIMIT = 63
SUBDOMAIN_LIMIT = 253

SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of the random suffixes of generated names: without vowels, so that no words appear."""
SUFFIX_PAIRS = [first + second for first in SUFFIX_LETTERS for second in SUFFIX_LETTERS]
HASH_LENGTH = 16  # base32 characters, 5 bits each: 80 bits

DNS_LABEL = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?")
DNS_1035_LABEL = re.compile("[a-z]([-a-z0-9]*[a-z0-9])?")
DNS_SUBDOMAIN = re.compile(rf"{DNS_LABEL.pattern}(\.{DNS_LABEL.pattern})*")
QUALIFIED_NAME = re.compile("[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?")


def generated_suffix(fraction: float) -> str:
    """Return the suffix of a generated name, five letters, for a random number from 0 to 1 (exclusive)."""
    pairs = len(SUFFIX_PAIRS)
    rest, last = divmod(int(fraction * len(SUFFIX_LETTERS) * pairs * pairs), pairs)
    first, middle = divmod(rest, pairs)
    return SUFFIX_LETTERS[first] + SUFFIX_PAIRS[middle] + SUFFIX_PAIRS[last]


def dns_label_error(text: str) -> str | None:
    """Return the error if `text` is not a DNS-1123 label, the format of namespace and container names."""
    rule = "lower case letters, digits and '-', with a letter or digit at both ends"
    return _format_error(text, DNS_LABEL, LABEL_LIMIT, rule)


def dns_1035_label_error(text: str) -> str | None:
    """Return the error if `text` is not a DNS-1035 label, the format of Service names."""
    rule = "lower case letters, digits and '-', with a letter first and a letter or digit last"
    return _format_error(text, DNS_1035_LABEL, LABEL_LIMIT, rule)


def dns_subdomain_error(text: str) -> str | None:
    """Return the error if `text` is not a DNS-1123 subdomain, the format of most object names."""
    rule = "lower case letters, digits, '-' and '.', with a letter or digit at both ends and around each '.'"
    return _format_error(text, DNS_SUBDOMAIN, SUBDOMAIN_LIMIT, rule)


def label_key_error(text: str) -> str | None:
    """Return the error if `text` is not a label or annotation key: `name` or `example.com/name`."""
    prefix, slash, name = text.rpartition("/")
    error = dns_subdomain_error(prefix) if slash else None
    if error:
        return f"{text!r}: the part before '/': {error}"
    rule = "letters, digits, '-', '_' and '.', with a letter or digit at both ends"
    error = _format_error(name, QUALIFIED_NAME, LABEL_LIMIT, rule)
    return f"{text!r}: the part after '/': {error}" if error and slash else error


def label_value_error(text: str) -> str | None:
    """Return the error if `text` is not a label value. The empty string is valid."""
    rule = "empty, or letters, digits, '-', '_' and '.', with a letter or digit at both ends"
    return _format_error(text, QUALIFIED_NAME, LABEL_LIMIT, rule) if text else None


def _format_error(text: str, pattern: re.Pattern[str], limit: int, rule: str) -> str | None:
    if len(text) > limit:
        return f"{text[:limit]!r}... has {len(text)} characters; at most {limit} are allowed"
    return None if pattern.fullmatch(text) else f"{text!r} is not allowed; it must be {rule}"


def hashed_name(prefix: str, *parts: str, limit: int = LABEL_LIMIT) -> str:
    """Return a DNS-1123 label of at most `limit` characters that identifies `parts`.

    The prefix only helps readers. It is sanitized and shortened to fit.
    """
    if not HASH_LENGTH <= limit <= LABEL_LIMIT:
        raise ValueError(f"limit: {limit} is not between {HASH_LENGTH} and {LABEL_LIMIT}")
    readable = re.sub("[^a-z0-9]+", "-", prefix.lower())
    return _with_hash(readable, parts, limit)


def safe_label_value(text: str) -> str:
    """Return `text` if it is a valid label value, else its sanitized prefix and a hash of the whole text."""
    if label_value_error(text) is None:
        return text
    return _with_hash(re.sub("[^-_.A-Za-z0-9]+", "-", text), (text,), LABEL_LIMIT)


def _with_hash(readable: str, parts: tuple[str, ...], limit: int) -> str:
    prefix = readable.lstrip("-_.")[: max(0, limit - HASH_LENGTH - 1)].rstrip("-_.")
    return f"{prefix}-{_hash(parts)}" if prefix else _hash(parts)


def _hash(parts: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        # The length prefix distinguishes ("a", "bc") from ("ab", "c").
        digest.update(len(data).to_bytes(8, "big") + data)
    return base64.b32encode(digest.digest()).decode()[:HASH_LENGTH].lower()
