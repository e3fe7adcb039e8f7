"""What may be a name of what, in Kubernetes' words: each function says what keeps a text from being one.

Answers are remembered: a cluster writes the same few thousand texts over and over.
"""

import ipaddress
import re
from collections.abc import Callable

from tapestry.apiserver.recurring import cached

LABEL_LIMIT, SUBDOMAIN_LIMIT, PORT_NAME_LIMIT = 63, 253, 15
LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
UNDERSCORED = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"
QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
ENDS = "and must start and end with an alphanumeric character"
LOWER = "must consist of lower case alphanumeric characters"
NOT_IP = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
NOT_CIDR = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"

Complaints = Callable[[str], tuple[str, ...]]


def longer_than(limit: int) -> str:
    return f"must be no more than {limit} characters"


def regex_error(message: str, pattern: str, *examples: str) -> str:
    listed = " or ".join(f"'{each}', " for each in examples)
    return f"{message} (e.g. {listed}regex used for validation is '{pattern}')"


def pattern(expression: str, message: str, *examples: str, limit: int = 0) -> Complaints:
    """Complaints of texts that are too long, or that do not match."""
    return cached(4096)(uncached_pattern(expression, message, *examples, limit=limit))


def uncached_pattern(expression: str, message: str, *examples: str, limit: int = 0) -> Complaints:
    """The same for whoever remembers what is made of the answer."""
    compiled = re.compile(expression)
    mismatch = regex_error(message, expression, *examples)

    def complaints(text: str) -> tuple[str, ...]:
        if limit and len(text) > limit:
            long = (longer_than(limit),)
            return long if compiled.fullmatch(text) else (*long, mismatch)
        return () if compiled.fullmatch(text) else (mismatch,)

    return complaints


subdomain = pattern(
    SUBDOMAIN, f"a lowercase RFC 1123 subdomain {LOWER}, '-' or '.', {ENDS}", "example.com", limit=SUBDOMAIN_LIMIT
)
underscored_subdomain = pattern(
    rf"{UNDERSCORED}(\.{UNDERSCORED})*",
    f"a lowercase RFC 1123 subdomain {LOWER}, '_', '-' or '.', {ENDS}",
    "example.com",
    limit=SUBDOMAIN_LIMIT,
)
wildcard_subdomain = pattern(
    rf"\*\.{SUBDOMAIN}",
    "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which "
    f"{LOWER}, '-' or '.' and end with an alphanumeric character",
    "*.example.com",
    limit=SUBDOMAIN_LIMIT,
)
label_1035 = pattern(
    "[a-z]([-a-z0-9]*[a-z0-9])?",
    f"a DNS-1035 label {LOWER} or '-', start with an alphabetic character, and end with an alphanumeric character",
    "my-name",
    "abc-123",
    limit=LABEL_LIMIT,
)
label_value = pattern(
    f"({QUALIFIED})?",
    f"a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', {ENDS}",
    "MyValue",
    "my_value",
    "12345",
    limit=LABEL_LIMIT,
)
percent = pattern("[0-9]+%", "a valid percent string must be a numeric string followed by an ending '%'", "1%", "93%")
header_name = pattern(
    "[-A-Za-z0-9]+", "a valid HTTP header must consist of alphanumeric characters or '-'", "X-Header-Name"
)

_label = uncached_pattern(
    LABEL, f"a lowercase RFC 1123 label {LOWER} or '-', {ENDS}", "my-name", "123-abc", limit=LABEL_LIMIT
)
_key = uncached_pattern(
    "[-._a-zA-Z0-9]+",
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
    "key.name",
    "KEY_NAME",
    "key-name",
    limit=SUBDOMAIN_LIMIT,
)
_part = uncached_pattern(
    QUALIFIED, f"must consist of alphanumeric characters, '-', '_' or '.', {ENDS}", "MyName", "my.name", "123-abc"
)
IS_SUBDOMAIN, IS_LABEL, IS_PORT_NAME = re.compile(SUBDOMAIN), re.compile(LABEL), re.compile("[-a-z0-9]+")
HAS_LETTER = re.compile("[a-z]")


@cached(4096)
def label(text: str) -> tuple[str, ...]:
    found = _label(text)
    if found and not IS_LABEL.fullmatch(text) and IS_SUBDOMAIN.fullmatch(text):
        return *found[:-1], "must not contain dots"
    return found


@cached(4096)
def qualified(text: str) -> tuple[str, ...]:
    """A label's key: a name, perhaps with a domain before it."""
    prefix, slash, name = text.partition("/")
    if "/" in name:
        optional = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return (f"a qualified name {_part('')[0]} {optional}",)
    found: list[str] = []
    if not slash:
        name = prefix
    elif not prefix:
        found.append("prefix part must be non-empty")
    else:
        found += (f"prefix part {each}" for each in subdomain(prefix))
    if not name:
        found.append("name part must be non-empty")
    elif len(name) > LABEL_LIMIT:
        found.append(f"name part {longer_than(LABEL_LIMIT)}")
    return (*found, *(f"name part {each}" for each in _part(name)))


def annotation_key(text: str) -> tuple[str, ...]:
    return qualified(text.lower())


@cached(4096)
def config_key(text: str) -> tuple[str, ...]:
    """A key of a ConfigMap or a Secret, which becomes the name of a file."""
    found = _key(text)
    if not text.startswith("."):
        return found
    if text in (".", ".."):
        return *found, f"must not be '{text}'"
    return (*found, "must not start with '..'") if text.startswith("..") else found


@cached(4096)
def variable_name(text: str) -> tuple[str, ...]:
    """A name in the environment: whatever can be printed."""
    if all(" " <= each <= "~" and each != "=" for each in text):
        return ()
    return ("a valid environment variable name must consist only of printable ASCII characters other than '='",)


@cached(1024)
def port_name(text: str) -> tuple[str, ...]:
    found = [longer_than(PORT_NAME_LIMIT)] if len(text) > PORT_NAME_LIMIT else []
    if not IS_PORT_NAME.fullmatch(text):
        found.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not HAS_LETTER.search(text):
        found.append("must contain at least one letter (a-z)")
    if "--" in text:
        found.append("must not contain consecutive hyphens")
    if text.startswith("-") or text.endswith("-"):
        found.append("must not begin or end with a hyphen")
    return tuple(found)


def path_segment(text: str) -> tuple[str, ...]:
    """What can stand in a URL, the least that any name has to fulfil."""
    if text in (".", ".."):
        return (f"may not be '{text}'",)
    return tuple(f"may not contain '{each}'" for each in "/%" if each in text)


def ip(text: str) -> tuple[str, ...]:
    return () if address(text) is not None else (NOT_IP,)


def canonical_ip(text: str) -> tuple[str, ...]:
    found = address(text)
    if found is None:
        return (NOT_IP,)
    return () if str(found) == text else (f'must be in canonical form ("{found}")',)


def cidr(text: str) -> tuple[str, ...]:
    return () if network(text) is not None else (NOT_CIDR,)


def canonical_cidr(text: str) -> tuple[str, ...]:
    found = network(text)
    if found is None:
        return (NOT_CIDR,)
    if str(found.network_address) != text.partition("/")[0]:
        return ("must not have bits set beyond the prefix length",)
    return () if str(found) == text else (f'must be in canonical form ("{found}")',)


def address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False) if "/" in text else None
    except ValueError:
        return None


def prefix_of_name(text: str) -> str:
    """What stands for a generateName when it is judged as a name: something follows its last dash."""
    return f"{text[:-2]}a" if len(text) > 1 and text.endswith("-") else text
