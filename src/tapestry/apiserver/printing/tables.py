"""Tables: the rows and the heads of what a client wants to see as a table."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from tapestry.apiserver.jsonpath import JsonPathError, first
from tapestry.apiserver.printing import network, pods, policies, records, storage, workloads
from tapestry.apiserver.printing.prints import AGE, NAME, Columns, Print, age
from tapestry.apiserver.rows import Column, Row
from tapestry.kube.budget import charge
from tapestry.kube.objects import Object, name_of, value_at

COLUMNS: Columns = {
    **pods.COLUMNS,
    **workloads.COLUMNS,
    **network.COLUMNS,
    **storage.COLUMNS,
    **policies.COLUMNS,
    **records.COLUMNS,
}
PODS, FLOW_SCHEMAS = "pods", "flowschemas.flowcontrol.apiserver.k8s.io"


def columns(row: Row) -> Sequence[Print]:
    """The columns of a resource."""
    if row.is_custom:
        return NAME, *map(custom_column, row.columns)
    return COLUMNS.get(row.storage, (NAME, AGE))


def custom_column(column: Column) -> Print:
    """A column that a definition asks for; a date is shown as an age."""

    def show(obj: Object, now: datetime) -> Any:
        try:
            found = first(obj, column.path)
        except JsonPathError:
            return None
        if found is None:
            return None
        if column.type == "date":
            return age(str(found), now)
        return found if isinstance(found, bool | int | float) and column.type != "string" else text(found)

    return Print(column.name, show, column.type, column.priority, column.format, column.description)


def text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Rows:
    """Makes the rows of a Table one by one."""

    def __init__(self, row: Row, include: str) -> None:
        self._columns = columns(row)
        self._include = include
        self._is_pods = row.storage == PODS
        self._now = datetime.now(UTC)

    def head(self, metadata: Object) -> Object:
        """A Table without rows."""
        return table_of(self._columns, (), metadata, self._include)

    def row_text(self, raw: bytes) -> bytes:
        obj: Object = msgspec.json.decode(raw)
        charge(len(self._columns))
        found = row_of(self._columns, obj, self._now, self._include)
        return msgspec.json.encode({**found, **pods.ending(obj)} if self._is_pods else found)


def table(row: Row, objects: Sequence[Object], metadata: Object, include: str) -> Object:
    """A Table of `objects`; each row has the object with it as far as `include` says."""
    if row.storage == FLOW_SCHEMAS:
        objects = sorted(objects, key=precedence)
    found = table_of(columns(row), objects, metadata, include)
    if row.storage == PODS:
        found["rows"] = [{**each, **pods.ending(obj)} for each, obj in zip(found["rows"], objects, strict=True)]
    return found


def table_of(shown: Sequence[Print], objects: Iterable[Object], metadata: Object, include: str) -> Object:
    now = datetime.now(UTC)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [head(each) for each in shown],
        "rows": [row_of(shown, obj, now, include) for obj in objects],
    }


def row_of(shown: Sequence[Print], obj: Object, now: datetime, include: str) -> Object:
    return {"cells": [each.show(obj, now) for each in shown], "object": included(obj, include)}


def precedence(schema: Object) -> tuple[int, str]:
    """Flow schemas are listed as they are tried."""
    return value_at(schema, "spec", "matchingPrecedence", default=0), name_of(schema)


def head(column: Print) -> Object:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description or column.name,
        "priority": column.priority,
    }


def included(obj: Object, include: str) -> Object | None:
    if include == "None":
        return None
    return obj if include == "Object" else partial(obj)


def partial(obj: Object) -> Object:
    """The metadata of an object, as an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
