"""Webhook configurations, and what they share with the conversions of custom resources: whom to call, and how."""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

from tapestry.apiserver.admission.conditions import conditions_of
from tapestry.apiserver.customs.structural import Fault
from tapestry.apiserver.validation import names
from tapestry.apiserver.validation.faults import (
    Rule,
    between,
    distinct,
    duplicate,
    every,
    forbidden,
    invalid,
    needs,
    one_of,
    required,
    struct,
    too_many,
    unsupported,
)
from tapestry.apiserver.validation.metadata import label_selector
from tapestry.kube.cel.errors import CompileError

REVIEWS = ("v1", "v1beta1")
WITHOUT_EFFECTS = ("None", "NoneOnDryRun")
OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
MOST_CONDITIONS = 64
FORM = "; desired format: https://host[/path]"


# -- whom to call


def client_config(value: Any, path: str) -> Iterator[Fault]:
    url, service = value.get("url"), value.get("service")
    if (url is None) == (service is None):
        yield required(path, "exactly one of url or service is required")
    elif url is not None:
        yield from webhook_url(url, f"{path}.url")
    else:
        yield from webhook_service(service, f"{path}.service")


def webhook_url(value: str, path: str) -> Iterator[Fault]:
    try:
        parts = urlsplit(value)
    except ValueError as error:
        yield required(path, f"url must be a valid URL: {error}{FORM}")
        return
    if parts.scheme != "https":
        yield invalid(path, parts.scheme, f"'https' is the only allowed URL scheme{FORM}")
    if not parts.netloc:
        yield invalid(path, parts.netloc, f"host must be specified{FORM}")
    yield from url_extras(parts, path)


def url_extras(parts: SplitResult, path: str) -> Iterator[Fault]:
    user, at, _ = parts.netloc.rpartition("@")
    if at:
        yield invalid(path, user, "user information is not permitted in the URL")
    if parts.fragment:
        yield invalid(path, parts.fragment, "fragments are not permitted in the URL")
    if parts.query:
        yield invalid(path, parts.query, "query parameters are not permitted in the URL")


def webhook_service(value: Any, path: str) -> Iterator[Fault]:
    for field in ("name", "namespace"):
        if not value.get(field):
            yield required(f"{path}.{field}")
    port = value.get("port", 443)
    if not 1 <= port <= 65535:
        yield invalid(f"{path}.port", port, "port is not valid: must be between 1 and 65535, inclusive")
    if value.get("path") not in (None, "", "/"):
        yield from service_path(value["path"], f"{path}.path")


def service_path(value: str, path: str) -> Iterator[Fault]:
    if value == "//":
        yield invalid(path, value, "segment[0] may not be empty")
        return
    if not value.startswith("/"):
        yield invalid(path, value, "must start with a '/'")
    for number, each in enumerate(value[1:].removesuffix("/").split("/")):
        if not each:
            yield invalid(path, value, f"segment[{number}] may not be empty")
            continue
        for why in names.subdomain(each):
            yield invalid(path, value, f"segment[{number}]: {why}")


def review_versions(value: Sequence[str], path: str, why: str = "") -> Iterator[Fault]:
    """Versions of reviews: one at least has to be one that the server can send."""
    listed = ", ".join(REVIEWS)
    if not value:
        yield required(path, why)
        return
    seen = set()
    for number, each in enumerate(value):
        if each in seen:
            yield invalid(f"{path}[{number}]", each, "duplicate version")
            continue
        seen.add(each)
        for complaint in names.label_1035(each):
            yield invalid(f"{path}[{number}]", each, complaint)
    if not set(value) & set(REVIEWS):
        yield invalid(path, value, f"must include at least one of {listed}")


# -- configurations


def hook_name(value: str, path: str) -> Iterator[Fault]:
    if faults := names.subdomain(value):
        yield invalid(path, value, ",".join(faults))
    elif value.count(".") < 2:
        yield invalid(path, value, "should be a domain with at least three segments separated by dots")


def alone(noun: str) -> Rule:
    """A rule for lists in which `*` stands alone."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        if len(value) > 1 and "*" in value:
            yield invalid(path, value, f"if '*' is present, must not specify other {noun}")

    return faults


def operations(value: Any, path: str) -> Iterator[Fault]:
    yield from alone("operations")(value, path)
    for number, each in enumerate(value):
        if each not in OPERATIONS:
            yield unsupported(f"{path}[{number}]", each, OPERATIONS)


def not_empty(value: Any, path: str) -> Iterator[Fault]:
    if not value:
        yield required(path)


def resources(value: Any, path: str) -> Iterator[Fault]:
    wide: set[str] = set()
    for number, each in enumerate(value):
        at = f"{path}[{number}]"
        if not each:
            yield required(at)
        plural, slash, subresource = each.partition("/")
        if not slash:
            continue
        for pattern in (f"{plural}/*", f"*/{subresource}"):
            if pattern in wide:
                yield invalid(at, each, f"if '{pattern}' is present, must not specify {each}")
        if "*" in (plural, subresource):
            wide.add(each)
    if len(value) > 1 and "*/*" in value:
        yield invalid(path, value, "if '*/*' is present, must not specify other resources")
    if "*" in value and any("/" not in each and each != "*" for each in value):
        why = "if '*' is present, must not specify other resources without subresources"
        yield invalid(path, value, why)


rule = struct(
    needs("operations"),
    ("operations", operations),
    needs("apiGroups"),
    ("apiGroups", alone("API groups")),
    needs("apiVersions"),
    ("apiVersions", alone("API versions")),
    ("apiVersions", every(not_empty)),
    needs("resources"),
    ("resources", resources),
    ("scope", one_of("*", "Cluster", "Namespaced")),
)


def versions(value: Any, path: str) -> Iterator[Fault]:
    why = f"must specify one of {', '.join(REVIEWS)}"
    yield from review_versions(value.get("admissionReviewVersions") or (), f"{path}.admissionReviewVersions", why)


def match_conditions(value: Any, path: str) -> Iterator[Fault]:
    if len(value) > MOST_CONDITIONS:
        yield too_many(path, len(value), MOST_CONDITIONS)
        return
    for number, each in enumerate(value):
        at = f"{path}[{number}]"
        if not each.get("expression", "").strip():
            yield required(f"{at}.expression")
        else:
            yield from expression(each, f"{at}.expression")
        if not each.get("name"):
            yield required(f"{at}.name")
            continue
        for why in names.qualified(each["name"]):
            yield invalid(f"{at}.name", each["name"], why)
    yield from distinct("name", [each for each in value if each.get("name")], path)


def expression(condition: Any, path: str) -> Iterator[Fault]:
    try:
        conditions_of([{"name": "", **condition}])
    except CompileError as error:
        yield invalid(path, condition["expression"], f"compilation failed: {error}")


def hook(*more: tuple[str, Rule]) -> Rule:
    return struct(
        needs("name"),
        ("name", hook_name),
        ("rules", every(rule)),
        ("failurePolicy", one_of("Fail", "Ignore")),
        ("matchPolicy", one_of("Equivalent", "Exact")),
        needs("sideEffects", why=f"must specify one of {', '.join(WITHOUT_EFFECTS)}"),
        ("sideEffects", one_of(*WITHOUT_EFFECTS)),
        ("timeoutSeconds", between(1, 30, "the timeout value must be between 1 and 30 seconds")),
        ("namespaceSelector", label_selector),
        ("objectSelector", label_selector),
        *more,
        ("clientConfig", client_config),
        ("matchConditions", match_conditions),
        ("", versions),
    )


def configuration(one: Rule) -> Rule:
    def faults(value: Any, _: str) -> Iterator[Fault]:
        seen: set[str] = set()
        for number, each in enumerate(value.get("webhooks") or ()):
            at = f"webhooks[{number}]"
            yield from one(each, at)
            if (name := each.get("name")) and name in seen:
                yield duplicate(f"{at}.name", name)
            seen.add(name or "")

    return faults


mutating = configuration(hook(("reinvocationPolicy", one_of("IfNeeded", "Never"))))
validating = configuration(hook())


# -- conversions


def conversion(definition: Any, _: str) -> Iterator[Fault]:
    """Paths are those of a form of definitions that is no longer served, as in Kubernetes."""
    value, path = definition["spec"].get("conversion") or {"strategy": "None"}, "spec.conversion"
    webhook = value.get("webhook") or {}
    client, reviews = webhook.get("clientConfig"), webhook.get("conversionReviewVersions") or ()
    at, versions_at = f"{path}.webhookClientConfig", f"{path}.conversionReviewVersions"
    yield from one_of("None", "Webhook")(value.get("strategy", ""), f"{path}.strategy")
    if value.get("strategy") == "Webhook":
        if client is None:
            yield required(at, "required when strategy is set to Webhook")
        else:
            yield from client_config(client, at)
        yield from review_versions(reviews, versions_at)
        return
    for found, where in ((client, at), (reviews, versions_at)):
        if found:
            yield forbidden(where, "should not be set when strategy is not set to Webhook")
