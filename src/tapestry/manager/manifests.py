"""Templates become objects.

A template is YAML with placeholders in its string values: `${clusterID}`.  It is parsed first and filled in afterwards,
so a value can never become anything but a value, whatever is written in it.  Inside a longer text a placeholder becomes
text.  A string that is nothing but one placeholder becomes the value itself: a number, a mapping; a list is spliced
into the list around it; and where the value is None, so that there is nothing to say, the field goes.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from tapestry.kube.objects import Object, key_of, value_at
from tapestry.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    DEPLOYMENTS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    Resource,
)

PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
KINDS = (SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS, DEPLOYMENTS)
"""What a syncer may consist of."""

Values = Mapping[str, Any]
Scope = tuple[Resource, str | None]
"""A kind, and a namespace where objects of it may be; None for those of the cluster."""
Templates = Mapping[str, str]
"""File name to text."""


class TemplateError(ValueError):
    """A template that cannot be used; the message names the file, the place in it and what is wrong there."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """An object as a template wants it."""

    resource: Resource
    object: Object

    @property
    def key(self) -> tuple[Resource, str]:
        return self.resource, key_of(self.object)


def syncer_manifests(templates: Templates, values: Values, scopes: Collection[Scope]) -> list[Manifest]:
    """Everything that one syncer consists of, exactly one Deployment among it; raises TemplateError.

    Nothing may be outside `scopes`, for only there do we notice when somebody changes it; a kind that has no scope at
    all is left out.
    """
    found = [
        checked_manifest(file, obj, scopes)
        for file in sorted(templates)
        for obj in rendered_objects(file, templates[file], values)
    ]
    if (count := sum(each.resource is DEPLOYMENTS for each in found)) != 1:
        raise TemplateError(f"{', '.join(sorted(templates)) or 'no file'}: {count} Deployments; one is needed")
    made = {resource for resource, _ in scopes}
    return [each for each in found if each.resource in made]


def checked_manifest(file: str, obj: Object, scopes: Collection[Scope]) -> Manifest:
    kind, name = f"{obj.get('apiVersion')} {obj.get('kind')}", value_at(obj, "metadata", "name")
    resource = next((each for each in KINDS if f"{each.api_version} {each.kind}" == kind), None)
    if resource is None:
        allowed = ", ".join(each.kind for each in KINDS)
        raise TemplateError(f"{file}: {kind} is not what a syncer may consist of; that is: {allowed}")
    if not isinstance(name, str):
        raise TemplateError(f"{file}: metadata.name: the {resource.kind} needs one")
    allowed_in = [namespace for each, namespace in scopes if each is resource]
    namespace = value_at(obj, "metadata", "namespace")
    if allowed_in and namespace not in allowed_in:
        known = ", ".join(each or "no namespace" for each in allowed_in)
        raise TemplateError(f"{file}: metadata.namespace: {resource.kind} {name} may be in {known}, not in {namespace}")
    return Manifest(resource, obj)


def rendered_objects(file: str, text: str, values: Values) -> Iterator[Object]:
    """The documents of a template, filled in."""
    for document in documents(file, text):
        yield rendered_value(document, values, file, "")


@lru_cache(maxsize=64)
def documents(file: str, text: str) -> list[Object]:
    """A template as it was written; shared, for filling in leaves it alone."""
    try:
        found = [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each is not None]
    except yaml.YAMLError as error:
        raise TemplateError(f"{file}: not YAML: {' '.join(str(error).split())}") from error
    for each in found:
        if not isinstance(each, dict):
            raise TemplateError(f"{file}: a document is not an object but {each!r:.60}")
    return found


def rendered_value(value: Any, values: Values, file: str, path: str) -> Any:
    if isinstance(value, str):
        return rendered_text(value, values, f"{file}: {path}")
    if isinstance(value, list):
        return rendered_list(value, values, file, path)
    if not isinstance(value, dict):
        return value
    found = {}
    for key, child in value.items():
        place = f"{path}.{key}".lstrip(".")
        if not isinstance(key, str) or PLACEHOLDER.search(key):
            raise TemplateError(f"{file}: {place}: a key is text without placeholders")
        new = rendered_value(child, values, file, place)
        if new is not None or child is None:
            found[key] = new
    return found


def rendered_list(items: list[Any], values: Values, file: str, path: str) -> list[Any]:
    found: list[Any] = []
    for index, item in enumerate(items):
        new = rendered_value(item, values, file, f"{path}[{index}]")
        if isinstance(new, list) and isinstance(item, str):
            found.extend(new)
        elif new is not None:
            found.append(new)
    return found


def rendered_text(text: str, values: Values, place: str) -> Any:
    def value(name: str) -> Any:
        if name not in values:
            raise TemplateError(f"{place}: ${{{name}}} is unknown; known are: {', '.join(sorted(values))}")
        return values[name]

    if whole := PLACEHOLDER.fullmatch(text):
        return value(whole[1])
    return PLACEHOLDER.sub(lambda found: str(value(found[1])), text)


def with_server_additions(wanted: Any, current: Any) -> Any:
    """`wanted`, with what the server or others have added inside lists: there too we own only what we name.

    A merge patch replaces a list as a whole, so one that says at least what we want has to count as equal.
    """
    if isinstance(wanted, dict) and isinstance(current, dict):
        return {key: with_server_additions(value, current.get(key)) for key, value in wanted.items()}
    return with_list_additions(wanted, current) if isinstance(wanted, list) else wanted


def with_list_additions(wanted: Any, current: Any) -> Any:
    if isinstance(wanted, list) and isinstance(current, list) and len(wanted) == len(current):
        return [with_list_additions(*pair) for pair in zip(wanted, current, strict=True)]
    if isinstance(wanted, dict) and isinstance(current, dict):
        found = {**current, **{key: with_list_additions(value, current.get(key)) for key, value in wanted.items()}}
        return {key: value for key, value in found.items() if value is not None}
    return wanted
