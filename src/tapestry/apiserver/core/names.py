"""Validation of names, keys and addresses, with the messages of kube-apiserver.

Each `*_errors` function returns the error messages for a string; none if it is valid. Results are cached because a
cluster writes the same few thousand strings again and again.
"""

import ipaddress
import re
from collections.abc import Callable

from tapestry.apiserver.core.spec_cache import bounded_cache

LABEL_LIMIT, SUBDOMAIN_LIMIT, PORT_NAME_LIMIT = 63, 253, 15
LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
UNDERSCORED_LABEL = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"
QUALIFIED_NAME = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
ALPHANUMERIC_ENDS = "and must start and end with an alphanumeric character"
LOWERCASE_ALPHANUMERIC = "must consist of lower case alphanumeric characters"
IP_MESSAGE = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
CIDR_MESSAGE = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"

FormatCheck = Callable[[str], tuple[str, ...]]


def max_length_error(limit: int) -> str:
    return f"must be no more than {limit} characters"


def regex_error(message: str, pattern: str, *examples: str) -> str:
    quoted = " or ".join(f"'{each}', " for each in examples)
    return f"{message} (e.g. {quoted}regex used for validation is '{pattern}')"


def pattern_check(expression: str, message: str, *examples: str, limit: int = 0) -> FormatCheck:
    """Return a cached check of a string's length and pattern."""
    return bounded_cache(4096)(uncached_pattern(expression, message, *examples, limit=limit))


def uncached_pattern(expression: str, message: str, *examples: str, limit: int = 0) -> FormatCheck:
    """Return an uncached check, for callers that cache their own result."""
    compiled = re.compile(expression)
    mismatch = regex_error(message, expression, *examples)

    def errors(text: str) -> tuple[str, ...]:
        if limit and len(text) > limit:
            too_long = (max_length_error(limit),)
            return too_long if compiled.fullmatch(text) else (*too_long, mismatch)
        return () if compiled.fullmatch(text) else (mismatch,)

    return errors


dns_subdomain_errors = pattern_check(
    SUBDOMAIN,
    f"a lowercase RFC 1123 subdomain {LOWERCASE_ALPHANUMERIC}, '-' or '.', {ALPHANUMERIC_ENDS}",
    "example.com",
    limit=SUBDOMAIN_LIMIT,
)
underscored_subdomain_errors = pattern_check(
    rf"{UNDERSCORED_LABEL}(\.{UNDERSCORED_LABEL})*",
    f"a lowercase RFC 1123 subdomain {LOWERCASE_ALPHANUMERIC}, '_', '-' or '.', {ALPHANUMERIC_ENDS}",
    "example.com",
    limit=SUBDOMAIN_LIMIT,
)
wildcard_subdomain_errors = pattern_check(
    rf"\*\.{SUBDOMAIN}",
    "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which "
    f"{LOWERCASE_ALPHANUMERIC}, '-' or '.' and end with an alphanumeric character",
    "*.example.com",
    limit=SUBDOMAIN_LIMIT,
)
dns_1035_label_errors = pattern_check(
    "[a-z]([-a-z0-9]*[a-z0-9])?",
    f"a DNS-1035 label {LOWERCASE_ALPHANUMERIC} or '-', start with an alphabetic character, "
    "and end with an alphanumeric character",
    "my-name",
    "abc-123",
    limit=LABEL_LIMIT,
)
label_value_errors = pattern_check(
    f"({QUALIFIED_NAME})?",
    "a valid label must be an empty string or consist of alphanumeric characters, "
    f"'-', '_' or '.', {ALPHANUMERIC_ENDS}",
    "MyValue",
    "my_value",
    "12345",
    limit=LABEL_LIMIT,
)
percent_errors = pattern_check(
    "[0-9]+%", "a valid percent string must be a numeric string followed by an ending '%'", "1%", "93%"
)
header_name_errors = pattern_check(
    "[-A-Za-z0-9]+", "a valid HTTP header must consist of alphanumeric characters or '-'", "X-Header-Name"
)

_dns_label_errors = uncached_pattern(
    LABEL,
    f"a lowercase RFC 1123 label {LOWERCASE_ALPHANUMERIC} or '-', {ALPHANUMERIC_ENDS}",
    "my-name",
    "123-abc",
    limit=LABEL_LIMIT,
)
_config_key_errors = uncached_pattern(
    "[-._a-zA-Z0-9]+",
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
    "key.name",
    "KEY_NAME",
    "key-name",
    limit=SUBDOMAIN_LIMIT,
)
_name_part_errors = uncached_pattern(
    QUALIFIED_NAME,
    f"must consist of alphanumeric characters, '-', '_' or '.', {ALPHANUMERIC_ENDS}",
    "MyName",
    "my.name",
    "123-abc",
)
IS_SHORT_LABEL = re.compile("[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
"""DNS labels of allowed length."""
IS_SUBDOMAIN, IS_LABEL, IS_PORT_NAME = re.compile(SUBDOMAIN), re.compile(LABEL), re.compile("[-a-z0-9]+")
HAS_LETTER = re.compile("[a-z]")


def object_name_errors(text: str) -> tuple[str, ...]:
    """Check a DNS subdomain like `dns_subdomain_errors`, without a cache: most names are checked once."""
    return () if IS_SHORT_LABEL.fullmatch(text) else dns_subdomain_errors(text)


@bounded_cache(4096)
def dns_label_errors(text: str) -> tuple[str, ...]:
    errors = _dns_label_errors(text)
    if errors and not IS_LABEL.fullmatch(text) and IS_SUBDOMAIN.fullmatch(text):
        return *errors[:-1], "must not contain dots"
    return errors


@bounded_cache(4096)
def qualified_name_errors(text: str) -> tuple[str, ...]:
    """Return the errors of a label key: a name with an optional DNS prefix."""
    prefix, slash, name = text.partition("/")
    if "/" in name:
        optional = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return (f"a qualified name {_name_part_errors('')[0]} {optional}",)
    errors: list[str] = []
    if not slash:
        name = prefix
    elif not prefix:
        errors.append("prefix part must be non-empty")
    else:
        errors += (f"prefix part {each}" for each in dns_subdomain_errors(prefix))
    if not name:
        errors.append("name part must be non-empty")
    elif len(name) > LABEL_LIMIT:
        errors.append(f"name part {max_length_error(LABEL_LIMIT)}")
    return (*errors, *(f"name part {each}" for each in _name_part_errors(name)))


def annotation_key_errors(text: str) -> tuple[str, ...]:
    return qualified_name_errors(text.lower())


@bounded_cache(4096)
def config_key_errors(text: str) -> tuple[str, ...]:
    """Return the errors of a key of a ConfigMap or Secret, which can become a file name."""
    errors = _config_key_errors(text)
    if not text.startswith("."):
        return errors
    if text in (".", ".."):
        return *errors, f"must not be '{text}'"
    return (*errors, "must not start with '..'") if text.startswith("..") else errors


@bounded_cache(4096)
def env_var_name_errors(text: str) -> tuple[str, ...]:
    """Return the errors of an environment variable name: printable ASCII except `=`."""
    if all(" " <= each <= "~" and each != "=" for each in text):
        return ()
    return ("a valid environment variable name must consist only of printable ASCII characters other than '='",)


@bounded_cache(1024)
def port_name_errors(text: str) -> tuple[str, ...]:
    errors = [max_length_error(PORT_NAME_LIMIT)] if len(text) > PORT_NAME_LIMIT else []
    if not IS_PORT_NAME.fullmatch(text):
        errors.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not HAS_LETTER.search(text):
        errors.append("must contain at least one letter (a-z)")
    if "--" in text:
        errors.append("must not contain consecutive hyphens")
    if text.startswith("-") or text.endswith("-"):
        errors.append("must not begin or end with a hyphen")
    return tuple(errors)


def path_segment_errors(text: str) -> tuple[str, ...]:
    """Return the errors of a URL path segment. Every object name must be one."""
    if text in (".", ".."):
        return (f"may not be '{text}'",)
    return tuple(f"may not contain '{each}'" for each in "/%" if each in text)


def ip_errors(text: str) -> tuple[str, ...]:
    return () if parsed_ip(text) is not None else (IP_MESSAGE,)


def canonical_ip_errors(text: str) -> tuple[str, ...]:
    ip = parsed_ip(text)
    if ip is None:
        return (IP_MESSAGE,)
    return () if str(ip) == text else (f'must be in canonical form ("{ip}")',)


def cidr_errors(text: str) -> tuple[str, ...]:
    return () if parsed_cidr(text) is not None else (CIDR_MESSAGE,)


def canonical_cidr_errors(text: str) -> tuple[str, ...]:
    cidr = parsed_cidr(text)
    if cidr is None:
        return (CIDR_MESSAGE,)
    if str(cidr.network_address) != text.partition("/")[0]:
        return ("must not have bits set beyond the prefix length",)
    return () if str(cidr) == text else (f'must be in canonical form ("{cidr}")',)


def parsed_ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def parsed_cidr(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False) if "/" in text else None
    except ValueError:
        return None


def mask_trailing_dash(text: str) -> str:
    """Return a generateName in a form that can be validated as a name: the trailing dash is replaced."""
    return f"{text[:-2]}a" if len(text) > 1 and text.endswith("-") else text
