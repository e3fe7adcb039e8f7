"""Options of writes: what a client may say in the query, or in the body of a deletion, about how it is done."""

from collections.abc import Mapping
from typing import Any

from tapestry.apiserver import refusals
from tapestry.apiserver.requests import Query
from tapestry.kube.errors import Invalid
from tapestry.kube.resources import Resource

FIELD_VALIDATION = ("", "Ignore", "Strict", "Warn")
LONGEST_MANAGER = 128
PROPAGATION = ("Foreground", "Background", "Orphan", "nil")


def check(verb: str, query: Query) -> None:
    """Raise Invalid for a value that an option cannot have."""
    if query.get("dryRun", "All") != "All":
        raise unsupported(verb, "dryRun", f'["{query["dryRun"]}"]', ("All",))
    if query.get("fieldValidation", "") not in FIELD_VALIDATION:
        raise unsupported(verb, "fieldValidation", f'"{query["fieldValidation"]}"', FIELD_VALIDATION)
    if len(query.get("fieldManager", "").encode()) > LONGEST_MANAGER:
        why = f"Too long: may not be more than {LONGEST_MANAGER} bytes"
        raise refusals.invalid(kind_of(verb), "", "fieldManager", why)


DELETION = {"gracePeriodSeconds": int, "orphanDependents": bool, "preconditions": dict, "propagationPolicy": str}
"""Of which types what a deletion says is."""


def check_deletion(options: Mapping[str, Any]) -> None:
    for field, wanted in DELETION.items():
        if options.get(field) is not None and type(options[field]) is not wanted:
            raise refusals.bad_request(f"DeleteOptions: {field}: {options[field]!r} is not of type {wanted.__name__}")
    policy = options.get("propagationPolicy")
    if policy is not None and policy not in PROPAGATION[:3]:
        raise unsupported("delete", "propagationPolicy", f'"{policy}"', PROPAGATION)
    if policy is not None and options.get("orphanDependents") is not None:
        why = f'Invalid value: "{policy}": orphanDependents and deletionPropagation cannot be both set'
        raise refusals.invalid(kind_of("delete"), "", "propagationPolicy", why)


def unsupported(verb: str, field: str, value: str, supported: tuple[str, ...]) -> Invalid:
    listed = ", ".join(f'"{each}"' for each in supported)
    return refusals.invalid(kind_of(verb), "", field, f"Unsupported value: {value}: supported values: {listed}")


def kind_of(verb: str) -> Resource:
    return Resource("meta.k8s.io", "v1", f"{verb.capitalize()}Options", f"{verb}options")
