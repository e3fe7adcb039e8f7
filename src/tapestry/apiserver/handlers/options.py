"""Options of writes, in the query or in the body of a deletion."""

from collections.abc import Mapping
from typing import Any

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import Query, parse_number
from tapestry.kube.errors import Invalid
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource

FIELD_VALIDATION_MODES = ("", "Ignore", "Strict", "Warn")
MAX_FIELD_MANAGER_BYTES = 128
PROPAGATION_POLICIES = ("Foreground", "Background", "Orphan", "nil")


def validate_options(verb: str, query: Query) -> None:
    """Raise Invalid for an unsupported value of an option."""
    if query.get("dryRun", "All") != "All":
        raise unsupported_option(verb, "dryRun", f'["{query["dryRun"]}"]', ("All",))
    if query.get("fieldValidation", "") not in FIELD_VALIDATION_MODES:
        raise unsupported_option(verb, "fieldValidation", f'"{query["fieldValidation"]}"', FIELD_VALIDATION_MODES)
    if len(query.get("fieldManager", "").encode()) > MAX_FIELD_MANAGER_BYTES:
        why = f"Too long: may not be more than {MAX_FIELD_MANAGER_BYTES} bytes"
        raise api_errors.invalid_field(options_resource(verb), "", "fieldManager", why)


DELETE_OPTION_TYPES = {
    "gracePeriodSeconds": int,
    "orphanDependents": bool,
    "preconditions": dict,
    "propagationPolicy": str,
}
"""Expected types of the delete options."""


def delete_options(body: Any, query: Query) -> Mapping[str, Any]:
    """Return the options of a deletion, from the body and the query."""
    options: Object = dict(body or {})
    if "gracePeriodSeconds" in query:
        options["gracePeriodSeconds"] = parse_number(query["gracePeriodSeconds"], "gracePeriodSeconds")
    if "propagationPolicy" in query:
        options["propagationPolicy"] = query["propagationPolicy"]
    for field, expected in DELETE_OPTION_TYPES.items():
        if options.get(field) is not None and type(options[field]) is not expected:
            raise api_errors.bad_request(
                f"DeleteOptions: {field}: {options[field]!r} is not of type {expected.__name__}"
            )
    policy = options.get("propagationPolicy")
    if policy is not None and policy not in PROPAGATION_POLICIES[:3]:
        raise unsupported_option("delete", "propagationPolicy", f'"{policy}"', PROPAGATION_POLICIES)
    if policy is not None and options.get("orphanDependents") is not None:
        why = f'Invalid value: "{policy}": orphanDependents and deletionPropagation cannot be both set'
        raise api_errors.invalid_field(options_resource("delete"), "", "propagationPolicy", why)
    return options


def unsupported_option(verb: str, field: str, value: str, supported: tuple[str, ...]) -> Invalid:
    listed = ", ".join(f'"{each}"' for each in supported)
    return api_errors.invalid_field(
        options_resource(verb), "", field, f"Unsupported value: {value}: supported values: {listed}"
    )


def options_resource(verb: str) -> Resource:
    return Resource("meta.k8s.io", "v1", f"{verb.capitalize()}Options", f"{verb}options")
