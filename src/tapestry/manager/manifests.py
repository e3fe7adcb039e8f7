"""Rendering of YAML templates into Kubernetes objects.

A template is YAML with placeholders in its string values: `${clusterID}`.  It is parsed first and rendered afterwards,
so a value can never change the structure.  A placeholder inside a longer text becomes text.  A string that is exactly
one placeholder becomes the value itself, for example a number or a mapping.  A list is spliced into the surrounding
list.  If the value is None, the field is removed.
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
    DISRUPTION_BUDGETS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    SERVICES,
    Resource,
)

PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
KINDS = (SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS, DISRUPTION_BUDGETS, SERVICES, DEPLOYMENTS)
"""Kinds of objects that a syncer may consist of."""

Values = Mapping[str, Any]
Scope = tuple[Resource, str | None]
"""A kind and a namespace that its objects may be in, or None for cluster-scoped kinds."""
Templates = Mapping[str, str]
"""Template texts by file name."""


class TemplateError(ValueError):
    """A template that cannot be used.  The message names the file, the location and the problem."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """An object rendered from a template."""

    resource: Resource
    object: Object

    @property
    def key(self) -> tuple[Resource, str]:
        return self.resource, key_of(self.object)


def syncer_manifests(templates: Templates, values: Values, scopes: Collection[Scope]) -> list[Manifest]:
    """Return all objects of one syncer, with exactly one Deployment.  Raise TemplateError otherwise.

    Objects outside `scopes` are an error, because changes to them would go unnoticed.  Kinds without any scope are
    omitted.
    """
    manifests = [
        checked_manifest(file, obj, scopes)
        for file in sorted(templates)
        for obj in rendered_objects(file, templates[file], values)
    ]
    if (count := sum(manifest.resource is DEPLOYMENTS for manifest in manifests)) != 1:
        raise TemplateError(f"{', '.join(sorted(templates)) or 'no file'}: {count} Deployments; one is required")
    served = {resource for resource, _ in scopes}
    return [manifest for manifest in manifests if manifest.resource in served]


def checked_manifest(file: str, obj: Object, scopes: Collection[Scope]) -> Manifest:
    kind, name = f"{obj.get('apiVersion')} {obj.get('kind')}", value_at(obj, "metadata", "name")
    resource = next((each for each in KINDS if f"{each.api_version} {each.kind}" == kind), None)
    if resource is None:
        allowed = ", ".join(each.kind for each in KINDS)
        raise TemplateError(f"{file}: {kind} is not allowed in a syncer template; allowed kinds: {allowed}")
    if not isinstance(name, str):
        raise TemplateError(f"{file}: metadata.name: required for the {resource.kind}")
    allowed_in = [namespace for each, namespace in scopes if each is resource]
    namespace = value_at(obj, "metadata", "namespace")
    if allowed_in and namespace not in allowed_in:
        known = ", ".join(each or "no namespace" for each in allowed_in)
        raise TemplateError(f"{file}: metadata.namespace: {resource.kind} {name} must be in {known}, not {namespace}")
    return Manifest(resource, obj)


def rendered_objects(file: str, text: str, values: Values) -> Iterator[Object]:
    """Yield the rendered documents of a template."""
    for document in documents(file, text):
        yield rendered_value(document, values, file, "")


@lru_cache(maxsize=64)
def documents(file: str, text: str) -> list[Object]:
    """Return the parsed documents of a template.  The result is shared; rendering does not change it."""
    try:
        parsed = [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document is not None]
    except yaml.YAMLError as error:
        raise TemplateError(f"{file}: not YAML: {' '.join(str(error).split())}") from error
    for document in parsed:
        if not isinstance(document, dict):
            raise TemplateError(f"{file}: a document must be an object, got {document!r:.60}")
    return parsed


def rendered_value(value: Any, values: Values, file: str, path: str) -> Any:
    if isinstance(value, str):
        return rendered_text(value, values, f"{file}: {path}")
    if isinstance(value, list):
        return rendered_list(value, values, file, path)
    if not isinstance(value, dict):
        return value
    rendered = {}
    for key, child in value.items():
        place = f"{path}.{key}".lstrip(".")
        if not isinstance(key, str) or PLACEHOLDER.search(key):
            raise TemplateError(f"{file}: {place}: keys must be strings without placeholders")
        new = rendered_value(child, values, file, place)
        if new is not None or child is None:
            rendered[key] = new
    return rendered


def rendered_list(items: list[Any], values: Values, file: str, path: str) -> list[Any]:
    rendered: list[Any] = []
    for index, item in enumerate(items):
        new = rendered_value(item, values, file, f"{path}[{index}]")
        if isinstance(new, list) and isinstance(item, str):
            rendered.extend(new)
        elif new is not None:
            rendered.append(new)
    return rendered


def rendered_text(text: str, values: Values, place: str) -> Any:
    def value(name: str) -> Any:
        if name not in values:
            raise TemplateError(f"{place}: ${{{name}}} is unknown; known placeholders: {', '.join(sorted(values))}")
        return values[name]

    if whole := PLACEHOLDER.fullmatch(text):
        return value(whole[1])
    return PLACEHOLDER.sub(lambda match: str(value(match[1])), text)


def with_server_additions(desired: Any, current: Any) -> Any:
    """Return `desired` with the additions of the server or others inside lists.

    A merge patch replaces whole lists, so a list that contains at least what we want must count as equal.
    """
    if isinstance(desired, dict) and isinstance(current, dict):
        return {key: with_server_additions(value, current.get(key)) for key, value in desired.items()}
    return with_list_additions(desired, current) if isinstance(desired, list) else desired


def with_list_additions(desired: Any, current: Any) -> Any:
    if isinstance(desired, list) and isinstance(current, list) and len(desired) == len(current):
        return [with_list_additions(*pair) for pair in zip(desired, current, strict=True)]
    if isinstance(desired, dict) and isinstance(current, dict):
        merged = {**current, **{key: with_list_additions(value, current.get(key)) for key, value in desired.items()}}
        if "resources" in desired:  # a limit that is no longer wanted must go
            merged["resources"] = desired["resources"]
        return {key: value for key, value in merged.items() if value is not None}
    return desired
