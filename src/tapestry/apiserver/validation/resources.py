"""Amounts of resources: requests and limits, quotas, and what resources may be called."""

from collections.abc import Callable, Iterator
from typing import Any

from tapestry.apiserver.customs.structural import Fault
from tapestry.apiserver.validation import names
from tapestry.apiserver.validation.faults import (
    NEGATIVE,
    NOT_POSITIVE,
    duplicate,
    forbidden,
    invalid,
    not_found,
    required,
)
from tapestry.kube.objects import Object
from tapestry.kube.quantity import NANOS, Quantity, parse

COMPUTE = ("cpu", "memory", "ephemeral-storage")
COUNTED = (
    *("pods", "resourcequotas", "services", "replicationcontrollers", "secrets", "configmaps"),
    *("persistentvolumeclaims", "services.nodeports", "services.loadbalancers"),
)
QUOTAS = frozenset(
    {
        *(*COMPUTE, *COUNTED, "requests.storage"),
        *(f"{kind}.{each}" for kind in ("requests", "limits") for each in COMPUTE),
    }
)
STANDARD = QUOTAS | {"storage"}
HUGE = "hugepages-"

NameRule = Callable[[str, str], Iterator[Fault]]


def is_native(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name


def is_extended(name: str) -> bool:
    return not is_native(name) and not name.startswith("requests.") and not names.qualified(f"requests.{name}")


def may_be_overcommitted(name: str) -> bool:
    return is_native(name) and not name.startswith(HUGE)


def is_huge_in_quota(name: str) -> bool:
    return name.startswith((HUGE, f"requests.{HUGE}"))


def resource_name(name: str, path: str) -> Iterator[Fault]:
    complaints = names.qualified(name)
    for why in complaints:
        yield invalid(path, name, why)
    if not complaints and "/" not in name and name not in STANDARD and not is_huge_in_quota(name):
        yield invalid(path, name, "must be a standard resource type or fully qualified")


def container_resource(name: str, path: str) -> Iterator[Fault]:
    if name in COMPUTE:
        return
    yield from resource_name(name, path)
    if "/" not in name:
        if not name.startswith(HUGE):
            yield invalid(path, name, "must be a standard resource for containers")
    elif not is_native(name) and not is_extended(name):
        yield invalid(path, name, "doesn't follow extended resource name standard")


def quota_resource(name: str, path: str) -> Iterator[Fault]:
    yield from resource_name(name, path)
    if "/" not in name and name not in QUOTAS and not is_huge_in_quota(name):
        yield invalid(path, name, "must be a standard resource for quota")


def amount(name: str, text: Any, path: str) -> Iterator[Fault]:
    """Faults of an amount of something: it is not below zero, and whole where it counts things."""
    quantity = parse(text)
    if quantity.nano < 0:
        yield invalid(path, str(quantity), NEGATIVE)
    if quantity.nano % NANOS and (name in COUNTED or is_extended(name)):
        yield invalid(path, str(quantity), "must be an integer")


def amounts(value: Any, path: str, name_rule: NameRule = quota_resource) -> Iterator[Fault]:
    for name, text in value.items():
        yield from name_rule(name, f"{path}[{name}]")
        yield from amount(name, text, f"{path}[{name}]")


def nonnegative_quantity(value: Any, path: str) -> Iterator[Fault]:
    if (quantity := parse(value)).nano < 0:
        yield invalid(path, str(quantity), NEGATIVE)


def positive_quantity(value: Any, path: str) -> Iterator[Fault]:
    if (quantity := parse(value)).nano <= 0:
        yield invalid(path, str(quantity), NOT_POSITIVE)


def requirements(value: Any, path: str) -> Iterator[Fault]:
    """Of a container."""
    limits, requests = value.get("limits") or {}, value.get("requests") or {}
    for name, text in limits.items():
        at = f"{path}.limits[{name}]"
        yield from container_resource(name, at)
        yield from amount(name, text, at)
        yield from huge_pages(name, text, at)
    for name, text in requests.items():
        at = f"{path}.requests[{name}]"
        yield from container_resource(name, at)
        yield from amount(name, text, at)
        yield from against_limit(name, text, limits, path)
        yield from huge_pages(name, text, at)
    both = {**limits, **requests}
    if not both.keys() & {"cpu", "memory"} and any(name.startswith(HUGE) for name in both):
        yield forbidden(path, "HugePages require cpu or memory")


def against_limit(name: str, text: Any, limits: Object, path: str) -> Iterator[Fault]:
    if name not in limits:
        if not may_be_overcommitted(name):
            yield required(f"{path}.limits", "Limit must be set for non overcommitable resources")
        return
    asked, limit = parse(text), parse(limits[name])
    if asked != limit and not may_be_overcommitted(name):
        yield invalid(f"{path}.requests", str(asked), f"must be equal to {name} limit of {limit}")
    elif asked > limit:
        yield invalid(f"{path}.requests", str(asked), f"must be less than or equal to {name} limit of {limit}")


def huge_pages(name: str, text: Any, path: str) -> Iterator[Fault]:
    if name.startswith(HUGE):
        page, quantity = page_size(name), parse(text)
        if not page.nano or quantity.nano <= 0 or quantity.nano % page.nano:
            yield invalid(path, str(quantity), f"{quantity} is not positive integer multiple of {name}")


def page_size(name: str) -> Quantity:
    try:
        return parse(name.removeprefix(HUGE))
    except ValueError:
        return Quantity(0)


def claims(value: Any, path: str, known: set[str]) -> Iterator[Fault]:
    """Claims of a container, which have to be claims of its pod."""
    seen: set[str] = set()
    for number, each in enumerate(value):
        at, name = f"{path}[{number}]", each.get("name", "")
        if not name:
            yield required(at)
            continue
        key = f"{name}/{each['request']}" if each.get("request") else name
        if key in seen:
            yield duplicate(at, key)
        seen.add(key)
        if name not in known:
            which = ": " + ", ".join(sorted(known)) if known else " which is empty"
            yield not_found(at, name, f"must be one of the names in pod.spec.resourceClaims{which}")
