"""Validation of resource names, quantities, requests, limits and claims."""

from collections.abc import Callable, Iterator
from typing import Any

from tapestry.apiserver.core import names
from tapestry.apiserver.core.faults import (
    NEGATIVE_MESSAGE,
    NOT_POSITIVE_MESSAGE,
    Fault,
    duplicate_value,
    forbidden_field,
    invalid_value,
    required_value,
    value_not_found,
)
from tapestry.kube.objects import Object
from tapestry.kube.quantity import NANOS, Quantity, parse_quantity

COMPUTE_RESOURCES = ("cpu", "memory", "ephemeral-storage")
INTEGER_RESOURCES = (
    *("pods", "resourcequotas", "services", "replicationcontrollers", "secrets", "configmaps"),
    *("persistentvolumeclaims", "services.nodeports", "services.loadbalancers"),
)
QUOTA_RESOURCES = frozenset(
    {
        *(*COMPUTE_RESOURCES, *INTEGER_RESOURCES, "requests.storage"),
        *(f"{kind}.{each}" for kind in ("requests", "limits") for each in COMPUTE_RESOURCES),
    }
)
STANDARD_RESOURCES = QUOTA_RESOURCES | {"storage"}
HUGE_PAGES_PREFIX = "hugepages-"

NameValidator = Callable[[str, str], Iterator[Fault]]


def is_native_resource(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name


def is_extended_resource(name: str) -> bool:
    return (
        not is_native_resource(name)
        and not name.startswith("requests.")
        and not names.qualified_name_errors(f"requests.{name}")
    )


def is_overcommit_allowed(name: str) -> bool:
    return is_native_resource(name) and not name.startswith(HUGE_PAGES_PREFIX)


def is_quota_huge_page_resource(name: str) -> bool:
    return name.startswith((HUGE_PAGES_PREFIX, f"requests.{HUGE_PAGES_PREFIX}"))


def validate_resource_name(name: str, path: str) -> Iterator[Fault]:
    errors = names.qualified_name_errors(name)
    for msg in errors:
        yield invalid_value(path, name, msg)
    if not errors and "/" not in name and name not in STANDARD_RESOURCES and not is_quota_huge_page_resource(name):
        yield invalid_value(path, name, "must be a standard resource type or fully qualified")


def validate_container_resource_name(name: str, path: str) -> Iterator[Fault]:
    if name in COMPUTE_RESOURCES:
        return
    yield from validate_resource_name(name, path)
    if "/" not in name:
        if not name.startswith(HUGE_PAGES_PREFIX):
            yield invalid_value(path, name, "must be a standard resource for containers")
    elif not is_native_resource(name) and not is_extended_resource(name):
        yield invalid_value(path, name, "doesn't follow extended resource name standard")


def validate_quota_resource_name(name: str, path: str) -> Iterator[Fault]:
    yield from validate_resource_name(name, path)
    if "/" not in name and name not in QUOTA_RESOURCES and not is_quota_huge_page_resource(name):
        yield invalid_value(path, name, "must be a standard resource for quota")


def validate_resource_quantity(name: str, text: Any, path: str) -> Iterator[Fault]:
    """Validate that a quantity is not negative, and is an integer for countable resources."""
    quantity = parse_quantity(text)
    if quantity.nano < 0:
        yield invalid_value(path, str(quantity), NEGATIVE_MESSAGE)
    if quantity.nano % NANOS and (name in INTEGER_RESOURCES or is_extended_resource(name)):
        yield invalid_value(path, str(quantity), "must be an integer")


def validate_resource_list(
    value: Any, path: str, name_validator: NameValidator = validate_quota_resource_name
) -> Iterator[Fault]:
    for name, text in value.items():
        yield from name_validator(name, f"{path}[{name}]")
        yield from validate_resource_quantity(name, text, f"{path}[{name}]")


def validate_nonnegative_quantity(value: Any, path: str) -> Iterator[Fault]:
    if (quantity := parse_quantity(value)).nano < 0:
        yield invalid_value(path, str(quantity), NEGATIVE_MESSAGE)


def validate_positive_quantity(value: Any, path: str) -> Iterator[Fault]:
    if (quantity := parse_quantity(value)).nano <= 0:
        yield invalid_value(path, str(quantity), NOT_POSITIVE_MESSAGE)


def validate_resource_requirements(value: Any, path: str) -> Iterator[Fault]:
    """Validate the requests and limits of a container."""
    limits, requests = value.get("limits") or {}, value.get("requests") or {}
    for name, text in limits.items():
        at = f"{path}.limits[{name}]"
        yield from validate_container_resource_name(name, at)
        yield from validate_resource_quantity(name, text, at)
        yield from validate_huge_pages(name, text, at)
    for name, text in requests.items():
        at = f"{path}.requests[{name}]"
        yield from validate_container_resource_name(name, at)
        yield from validate_resource_quantity(name, text, at)
        yield from validate_request_against_limit(name, text, limits, path)
        yield from validate_huge_pages(name, text, at)
    combined = {**limits, **requests}
    if not combined.keys() & {"cpu", "memory"} and any(name.startswith(HUGE_PAGES_PREFIX) for name in combined):
        yield forbidden_field(path, "HugePages require cpu or memory")


def validate_request_against_limit(name: str, text: Any, limits: Object, path: str) -> Iterator[Fault]:
    if name not in limits:
        if not is_overcommit_allowed(name):
            yield required_value(f"{path}.limits", "Limit must be set for non overcommitable resources")
        return
    request, limit = parse_quantity(text), parse_quantity(limits[name])
    if request != limit and not is_overcommit_allowed(name):
        yield invalid_value(f"{path}.requests", str(request), f"must be equal to {name} limit of {limit}")
    elif request > limit:
        yield invalid_value(f"{path}.requests", str(request), f"must be less than or equal to {name} limit of {limit}")


def validate_huge_pages(name: str, text: Any, path: str) -> Iterator[Fault]:
    if name.startswith(HUGE_PAGES_PREFIX):
        page, quantity = huge_page_size(name), parse_quantity(text)
        if not page.nano or quantity.nano <= 0 or quantity.nano % page.nano:
            yield invalid_value(path, str(quantity), f"{quantity} is not positive integer multiple of {name}")


def huge_page_size(name: str) -> Quantity:
    try:
        return parse_quantity(name.removeprefix(HUGE_PAGES_PREFIX))
    except ValueError:
        return Quantity(0)


def validate_resource_claims(value: Any, path: str, pod_claims: set[str]) -> Iterator[Fault]:
    """Validate that each claim of a container is a claim of its pod."""
    seen: set[str] = set()
    for number, each in enumerate(value):
        at, name = f"{path}[{number}]", each.get("name", "")
        if not name:
            yield required_value(at)
            continue
        key = f"{name}/{each['request']}" if each.get("request") else name
        if key in seen:
            yield duplicate_value(at, key)
        seen.add(key)
        if name not in pod_claims:
            supported = ": " + ", ".join(sorted(pod_claims)) if pod_claims else " which is empty"
            yield value_not_found(at, name, f"must be one of the names in pod.spec.resourceClaims{supported}")
