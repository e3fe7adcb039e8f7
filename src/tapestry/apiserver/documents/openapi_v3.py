"""OpenAPI v3 documents of groups and versions with custom resources."""

from collections.abc import Sequence
from gzip import decompress

import msgspec

from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.documents.openapi_archive import (
    custom_template,
    custom_type_name,
    recorded_document,
    recorded_etags,
)
from tapestry.kube.objects import Object


def document_of(name: str, custom: Sequence[ResourceInfo]) -> Object:
    """The document with the built-in resources of `name` and the custom ones."""
    paths: Object = {}
    schemas: Object = {}
    base: Object = {"openapi": "3.0.0", "info": {"title": "Kubernetes CRD Swagger", "version": "v0.1.0"}}
    if name in recorded_etags():
        base = msgspec.json.decode(decompress(recorded_document(name)))
        paths, schemas = base["paths"], base["components"]["schemas"]
    for info in custom:
        template = custom_template("v3", info)
        common, type_name = template["components"]["schemas"], custom_type_name(info)
        paths |= template["paths"]
        schemas |= {**common, type_name: custom_schema(info, common[type_name])}
    return {**base, "paths": paths, "components": {"schemas": schemas}}


def custom_schema(info: ResourceInfo, common: Object) -> Object:
    """The schema of a custom resource; `common` has the fields that every custom resource has."""
    schema = info.schema or {"type": "object"}
    properties = {name: each for name, each in common["properties"].items() if name != "spec"}
    group_version_kind = {key: each for key, each in common.items() if key.startswith("x-kubernetes-group")}
    return {**schema, "properties": {**(schema.get("properties") or {}), **properties}, **group_version_kind}
