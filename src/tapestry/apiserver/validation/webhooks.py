"""Validation of webhook configurations and of the conversion webhooks of CRDs."""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

from tapestry.apiserver.core import names
from tapestry.apiserver.core.faults import (
    Fault,
    Validator,
    between,
    duplicate_value,
    forbidden_field,
    invalid_value,
    item_validator,
    one_of,
    required_fields,
    required_value,
    struct_validator,
    too_many,
    unsupported_value,
    validate_unique_items,
)
from tapestry.apiserver.core.match_conditions import compile_conditions
from tapestry.apiserver.core.metadata import validate_label_selector
from tapestry.kube.cel.errors import CompileError

REVIEW_VERSIONS = ("v1", "v1beta1")
ALLOWED_SIDE_EFFECTS = ("None", "NoneOnDryRun")
OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
MAX_MATCH_CONDITIONS = 64
URL_FORMAT_HINT = "; desired format: https://host[/path]"


# -- client configuration


def validate_client_config(value: Any, path: str) -> Iterator[Fault]:
    url, service = value.get("url"), value.get("service")
    if (url is None) == (service is None):
        yield required_value(path, "exactly one of url or service is required")
    elif url is not None:
        yield from validate_webhook_url(url, f"{path}.url")
    else:
        yield from validate_webhook_service(service, f"{path}.service")


def validate_webhook_url(value: str, path: str) -> Iterator[Fault]:
    try:
        parts = urlsplit(value)
    except ValueError as error:
        yield required_value(path, f"url must be a valid URL: {error}{URL_FORMAT_HINT}")
        return
    if parts.scheme != "https":
        yield invalid_value(path, parts.scheme, f"'https' is the only allowed URL scheme{URL_FORMAT_HINT}")
    if not parts.netloc:
        yield invalid_value(path, parts.netloc, f"host must be specified{URL_FORMAT_HINT}")
    yield from validate_url_extras(parts, path)


def validate_url_extras(parts: SplitResult, path: str) -> Iterator[Fault]:
    user, at, _ = parts.netloc.rpartition("@")
    if at:
        yield invalid_value(path, user, "user information is not permitted in the URL")
    if parts.fragment:
        yield invalid_value(path, parts.fragment, "fragments are not permitted in the URL")
    if parts.query:
        yield invalid_value(path, parts.query, "query parameters are not permitted in the URL")


def validate_webhook_service(value: Any, path: str) -> Iterator[Fault]:
    for field in ("name", "namespace"):
        if not value.get(field):
            yield required_value(f"{path}.{field}")
    port = value.get("port", 443)
    if not 1 <= port <= 65535:
        yield invalid_value(f"{path}.port", port, "port is not valid: must be between 1 and 65535, inclusive")
    if value.get("path") not in (None, "", "/"):
        yield from validate_service_path(value["path"], f"{path}.path")


def validate_service_path(value: str, path: str) -> Iterator[Fault]:
    if value == "//":
        yield invalid_value(path, value, "segment[0] may not be empty")
        return
    if not value.startswith("/"):
        yield invalid_value(path, value, "must start with a '/'")
    for number, each in enumerate(value[1:].removesuffix("/").split("/")):
        if not each:
            yield invalid_value(path, value, f"segment[{number}] may not be empty")
            continue
        for msg in names.dns_subdomain_errors(each):
            yield invalid_value(path, value, f"segment[{number}]: {msg}")


def validate_review_versions(value: Sequence[str], path: str, detail: str = "") -> Iterator[Fault]:
    """Require at least one review version that this server can send."""
    supported = ", ".join(REVIEW_VERSIONS)
    if not value:
        yield required_value(path, detail)
        return
    seen = set()
    for number, each in enumerate(value):
        if each in seen:
            yield invalid_value(f"{path}[{number}]", each, "duplicate version")
            continue
        seen.add(each)
        for msg in names.dns_1035_label_errors(each):
            yield invalid_value(f"{path}[{number}]", each, msg)
    if not set(value) & set(REVIEW_VERSIONS):
        yield invalid_value(path, value, f"must include at least one of {supported}")


# -- configurations


def validate_webhook_name(value: str, path: str) -> Iterator[Fault]:
    if faults := names.dns_subdomain_errors(value):
        yield invalid_value(path, value, ",".join(faults))
    elif value.count(".") < 2:
        yield invalid_value(path, value, "should be a domain with at least three segments separated by dots")


def exclusive_wildcard_validator(noun: str) -> Validator:
    """Return a validator for lists in which `*` must be the only item."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        if len(value) > 1 and "*" in value:
            yield invalid_value(path, value, f"if '*' is present, must not specify other {noun}")

    return faults


def validate_operations(value: Any, path: str) -> Iterator[Fault]:
    yield from exclusive_wildcard_validator("operations")(value, path)
    for number, each in enumerate(value):
        if each not in OPERATIONS:
            yield unsupported_value(f"{path}[{number}]", each, OPERATIONS)


def validate_not_empty(value: Any, path: str) -> Iterator[Fault]:
    if not value:
        yield required_value(path)


def validate_rule_resources(value: Any, path: str) -> Iterator[Fault]:
    wildcards: set[str] = set()
    for number, each in enumerate(value):
        at = f"{path}[{number}]"
        if not each:
            yield required_value(at)
        plural, slash, subresource = each.partition("/")
        if not slash:
            continue
        for pattern in (f"{plural}/*", f"*/{subresource}"):
            if pattern in wildcards:
                yield invalid_value(at, each, f"if '{pattern}' is present, must not specify {each}")
        if "*" in (plural, subresource):
            wildcards.add(each)
    if len(value) > 1 and "*/*" in value:
        yield invalid_value(path, value, "if '*/*' is present, must not specify other resources")
    if "*" in value and any("/" not in each and each != "*" for each in value):
        msg = "if '*' is present, must not specify other resources without subresources"
        yield invalid_value(path, value, msg)


validate_webhook_rule = struct_validator(
    required_fields("operations"),
    ("operations", validate_operations),
    required_fields("apiGroups"),
    ("apiGroups", exclusive_wildcard_validator("API groups")),
    required_fields("apiVersions"),
    ("apiVersions", exclusive_wildcard_validator("API versions")),
    ("apiVersions", item_validator(validate_not_empty)),
    required_fields("resources"),
    ("resources", validate_rule_resources),
    ("scope", one_of("*", "Cluster", "Namespaced")),
)


def validate_admission_review_versions(value: Any, path: str) -> Iterator[Fault]:
    msg = f"must specify one of {', '.join(REVIEW_VERSIONS)}"
    yield from validate_review_versions(
        value.get("admissionReviewVersions") or (), f"{path}.admissionReviewVersions", msg
    )


def validate_match_conditions(value: Any, path: str) -> Iterator[Fault]:
    if len(value) > MAX_MATCH_CONDITIONS:
        yield too_many(path, len(value), MAX_MATCH_CONDITIONS)
        return
    for number, each in enumerate(value):
        at = f"{path}[{number}]"
        if not each.get("expression", "").strip():
            yield required_value(f"{at}.expression")
        else:
            yield from validate_match_expression(each, f"{at}.expression")
        if not each.get("name"):
            yield required_value(f"{at}.name")
            continue
        for msg in names.qualified_name_errors(each["name"]):
            yield invalid_value(f"{at}.name", each["name"], msg)
    yield from validate_unique_items("name", [each for each in value if each.get("name")], path)


def validate_match_expression(condition: Any, path: str) -> Iterator[Fault]:
    try:
        compile_conditions([{"name": "", **condition}])
    except CompileError as error:
        yield invalid_value(path, condition["expression"], f"compilation failed: {error}")


def webhook_validator(*extra_fields: tuple[str, Validator]) -> Validator:
    return struct_validator(
        required_fields("name"),
        ("name", validate_webhook_name),
        ("rules", item_validator(validate_webhook_rule)),
        ("failurePolicy", one_of("Fail", "Ignore")),
        ("matchPolicy", one_of("Equivalent", "Exact")),
        required_fields("sideEffects", detail=f"must specify one of {', '.join(ALLOWED_SIDE_EFFECTS)}"),
        ("sideEffects", one_of(*ALLOWED_SIDE_EFFECTS)),
        ("timeoutSeconds", between(1, 30, "the timeout value must be between 1 and 30 seconds")),
        ("namespaceSelector", validate_label_selector),
        ("objectSelector", validate_label_selector),
        *extra_fields,
        ("clientConfig", validate_client_config),
        ("matchConditions", validate_match_conditions),
        ("", validate_admission_review_versions),
    )


def configuration_validator(validator: Validator) -> Validator:
    def faults(value: Any, _: str) -> Iterator[Fault]:
        seen: set[str] = set()
        for number, each in enumerate(value.get("webhooks") or ()):
            at = f"webhooks[{number}]"
            yield from validator(each, at)
            if (name := each.get("name")) and name in seen:
                yield duplicate_value(f"{at}.name", name)
            seen.add(name or "")

    return faults


validate_mutating_configuration = configuration_validator(
    webhook_validator(("reinvocationPolicy", one_of("IfNeeded", "Never")))
)
validate_validating_configuration = configuration_validator(webhook_validator())


# -- conversions


def validate_conversion(definition: Any, _: str) -> Iterator[Fault]:
    """Validate a CRD's conversion. Paths are those of v1beta1 definitions, as in kube-apiserver."""
    value, path = definition["spec"].get("conversion") or {"strategy": "None"}, "spec.conversion"
    webhook = value.get("webhook") or {}
    client, reviews = webhook.get("clientConfig"), webhook.get("conversionReviewVersions") or ()
    at, versions_at = f"{path}.webhookClientConfig", f"{path}.conversionReviewVersions"
    yield from one_of("None", "Webhook")(value.get("strategy", ""), f"{path}.strategy")
    if value.get("strategy") == "Webhook":
        if client is None:
            yield required_value(at, "required when strategy is set to Webhook")
        else:
            yield from validate_client_config(client, at)
        yield from validate_review_versions(reviews, versions_at)
        return
    for part, field_path in ((client, at), (reviews, versions_at)):
        if part:
            yield forbidden_field(field_path, "should not be set when strategy is not set to Webhook")
