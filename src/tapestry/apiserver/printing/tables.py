"""Table responses: columns and rows of the objects in a list or watch."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from tapestry.apiserver.core.resource_registry import PrinterColumn, ResourceInfo
from tapestry.apiserver.printing import core, networking, pods, policies, storage, workloads
from tapestry.apiserver.printing.jsonpath import JsonPathError, find_first
from tapestry.apiserver.printing.table_columns import AGE, NAME, ColumnsByResource, TableColumn, age_since
from tapestry.kube.budget import charge
from tapestry.kube.objects import Object, name_of, value_at

COLUMNS: ColumnsByResource = {
    **pods.COLUMNS,
    **workloads.COLUMNS,
    **networking.COLUMNS,
    **storage.COLUMNS,
    **policies.COLUMNS,
    **core.COLUMNS,
}
PODS, FLOW_SCHEMAS = "pods", "flowschemas.flowcontrol.apiserver.k8s.io"


def columns_for(resource_info: ResourceInfo) -> Sequence[TableColumn]:
    if resource_info.is_custom:
        return NAME, *map(custom_resource_column, resource_info.printer_columns)
    return COLUMNS.get(resource_info.storage, (NAME, AGE))


def custom_resource_column(column: PrinterColumn) -> TableColumn:
    """Return the column for a printer column of a CRD. A date is shown as an age."""

    def cell(obj: Object, now: datetime) -> Any:
        try:
            value = find_first(obj, column.path)
        except JsonPathError:
            return None
        if value is None:
            return None
        if column.type == "date":
            return age_since(str(value), now)
        return value if isinstance(value, bool | int | float) and column.type != "string" else cell_text(value)

    return TableColumn(column.name, cell, column.type, column.priority, column.format, column.description)


def cell_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class TableRowEncoder:
    """Encode the rows of a Table one at a time."""

    def __init__(self, resource_info: ResourceInfo, include: str) -> None:
        self._columns = columns_for(resource_info)
        self._include = include
        self._is_pods = resource_info.storage == PODS
        self._now = datetime.now(UTC)

    def empty_table(self, metadata: Object) -> Object:
        return table_from_columns(self._columns, (), metadata, self._include)

    def encode_row(self, raw: bytes) -> bytes:
        obj: Object = msgspec.json.decode(raw)
        charge(len(self._columns))
        row = table_row(self._columns, obj, self._now, self._include)
        return msgspec.json.encode({**row, **pods.completed_condition(obj)} if self._is_pods else row)


def table(resource_info: ResourceInfo, objects: Sequence[Object], metadata: Object, include: str) -> Object:
    """Return a Table of `objects`. `include` is the includeObject parameter: None, Metadata or Object."""
    if resource_info.storage == FLOW_SCHEMAS:
        objects = sorted(objects, key=matching_precedence)
    result = table_from_columns(columns_for(resource_info), objects, metadata, include)
    if resource_info.storage == PODS:
        result["rows"] = [
            {**each, **pods.completed_condition(obj)} for each, obj in zip(result["rows"], objects, strict=True)
        ]
    return result


def table_from_columns(
    table_columns: Sequence[TableColumn], objects: Iterable[Object], metadata: Object, include: str
) -> Object:
    now = datetime.now(UTC)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [column_definition(each) for each in table_columns],
        "rows": [table_row(table_columns, obj, now, include) for obj in objects],
    }


def table_row(table_columns: Sequence[TableColumn], obj: Object, now: datetime, include: str) -> Object:
    return {"cells": [each.cell(obj, now) for each in table_columns], "object": row_object(obj, include)}


def matching_precedence(schema: Object) -> tuple[int, str]:
    """Sort key that lists flow schemas in the order in which they are matched."""
    return value_at(schema, "spec", "matchingPrecedence", default=0), name_of(schema)


def column_definition(column: TableColumn) -> Object:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description or column.name,
        "priority": column.priority,
    }


def row_object(obj: Object, include: str) -> Object | None:
    if include == "None":
        return None
    return obj if include == "Object" else partial_object_metadata(obj)


def partial_object_metadata(obj: Object) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
