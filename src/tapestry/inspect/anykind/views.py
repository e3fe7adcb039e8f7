"""Text output of objects: server-side tables, JSON, YAML, descriptions and watch events."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from tapestry.client.client import Client
from tapestry.client.options import selector_query
from tapestry.client.streams import read_lines, require_success
from tapestry.client.transport import JSON, Request
from tapestry.inspect.anykind.resource_mapper import Target, send_request
from tapestry.inspect.tables import table
from tapestry.kube.errors import error_from_status
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of, namespace_of, value_at, without_field
from tapestry.kube.resources import Resource

TABLE_ACCEPT = f"{JSON};as=Table;v=v1;g=meta.k8s.io"


@dataclass(frozen=True)
class ListOptions:
    """Namespace and selectors of a list; without a namespace, all of them."""

    namespace: str | None = None
    labels: str = ""
    fields: str = ""

    def namespace_for(self, resource: Resource) -> str | None:
        return self.namespace if resource.namespaced else None


async def fetch_responses(client: Client, target: Target, options: ListOptions, accept: str = JSON) -> list[Object]:
    """Return one response per name, or one list of all objects."""
    namespace = options.namespace_for(target.resource)
    if target.names:
        requests = [Request("GET", target.resource.path(namespace, name), accept=accept) for name in target.names]
    else:
        query = selector_query(options.labels, options.fields)
        requests = [Request("GET", target.resource.path(namespace), query, accept=accept)]
    return [msgspec.json.decode((await send_request(client, each)).body) for each in requests]


async def fetch_objects(client: Client, target: Target, options: ListOptions) -> list[Object]:
    identity = {"apiVersion": target.resource.api_version, "kind": target.resource.kind}
    found = await fetch_responses(client, target, options)
    return found if target.names else [identity | each for each in found[0]["items"]]


async def watch_events(
    client: Client, target: Target, options: ListOptions, version: str, accept: str = JSON
) -> AsyncGenerator[tuple[str, Object], None]:
    """Yield the events after a resource version until the server ends the stream."""
    fields = ",".join(filter(None, (options.fields, *(f"metadata.name={name}" for name in target.names[:1]))))
    query = {
        **selector_query(options.labels, fields),
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
    }
    request = Request("GET", target.resource.path(options.namespace_for(target.resource)), query, accept=accept)
    async with client.transport.stream(request) as opened:
        stream = await require_success(opened, str(request))
        async with aclosing(read_lines(stream)) as arrivals:
            async for lines in arrivals:
                for event in map(msgspec.json.decode, lines):
                    if event["type"] == "ERROR":
                        raise error_from_status(event["object"], action=str(request))
                    if event["type"] != "BOOKMARK":
                        yield event["type"], event["object"]


def list_version(response: Object) -> str:
    version: str = response["metadata"].get("resourceVersion", "")
    return version


def table_rows(
    tables: Sequence[Object], *, wide: bool, with_namespace: bool, prefix: str = ""
) -> tuple[list[str], list[list[str]]]:
    """Return the header and rows of several tables of one kind; `with_namespace` adds a first column.

    The name column gets the `prefix`.
    """
    columns: list[Object] = next((each["columnDefinitions"] for each in tables if each.get("columnDefinitions")), [])
    visible = [index for index, column in enumerate(columns) if wide or not column.get("priority")]
    header = [*(["NAMESPACE"] if with_namespace else []), *(columns[index]["name"].upper() for index in visible)]
    rows = []
    for row in (row for each in tables for row in each.get("rows") or ()):
        namespace = row["object"]["metadata"].get("namespace", "") if with_namespace else ""
        cells = [cell_text(row["cells"][index]) for index in visible]
        rows.append([*([namespace] if with_namespace else []), prefix + cells[0], *cells[1:]])
    return header, rows


def cell_text(cell: Any) -> str:
    return "" if cell is None else " ".join(str(cell).split())


def table_text(tables: Sequence[Object], *, wide: bool, with_namespace: bool, prefix: str = "") -> str:
    header, rows = table_rows(tables, wide=wide, with_namespace=with_namespace, prefix=prefix)
    return table(header, rows) if rows else ""


def objects_text(found: Sequence[Object], output: str, *, single: bool) -> str:
    """Return objects as JSON, YAML or names, without managedFields; `single` omits the List."""
    if output == "name":
        return "\n".join(f"{kind_name(each)}/{name_of(each)}" for each in found)
    objects = [without_field(each, "metadata", "managedFields") for each in found]
    value: Any = objects[0] if single and objects else {"apiVersion": "v1", "kind": "List", "items": objects}
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return yaml_text(value)


def kind_name(obj: Object) -> str:
    group, _, _ = obj["apiVersion"].rpartition("/")
    kind: str = obj["kind"].lower()
    return f"{kind}.{group}" if group else kind


def yaml_text(value: Any) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    return text.rstrip("\n")


def description(obj: Object, events: Sequence[Object]) -> str:
    """Return a readable description: identity, fields, conditions and events."""
    fields = without_field(obj, "status", "conditions")
    names = sorted(fields.keys() - {"apiVersion", "kind", "metadata"})
    sections = [
        identity_text(obj),
        *(f"{name[:1].upper()}{name[1:]}:\n{indented(yaml_text(fields[name]))}" for name in names if fields[name]),
    ]
    if conditions := value_at(obj, "status", "conditions"):
        rows = [[each.get(field) for field in ("type", "status", "reason", "message")] for each in conditions]
        sections.append(f"Conditions:\n{indented(table(['TYPE', 'STATUS', 'REASON', 'MESSAGE'], rows))}")
    ordered = sorted(events, key=event_time)
    rows = [
        [event_time(each), each.get("type"), each.get("reason"), event_source(each), event_message(each)]
        for each in ordered
    ]
    head = ["LAST", "TYPE", "REASON", "FROM", "MESSAGE"]
    sections.append(f"Events:\n{indented(table(head, rows))}" if rows else "Events: none")
    return "\n".join(sections)


def identity_text(obj: Object) -> str:
    """Return the lines with the name, kind, owners and metadata of an object."""
    metadata = obj["metadata"]
    owners = [f"{each['kind']}/{each['name']}" for each in metadata.get("ownerReferences") or ()]
    lines: list[tuple[str, list[str]]] = [
        ("Name", [name_of(obj)]),
        ("Namespace", [namespace_of(obj) or ""]),
        ("Kind", [f"{obj['kind']} ({obj['apiVersion']})"]),
        ("Created", [metadata.get("creationTimestamp") or ""]),
        ("Deleted", [metadata.get("deletionTimestamp") or ""]),
        ("Owner", owners),
        ("Finalizers", list(metadata.get("finalizers") or ())),
        ("Labels", [f"{key}={value}" for key, value in sorted(labels_of(obj).items())]),
        ("Annotations", [f"{key}: {value}" for key, value in sorted(annotations_of(obj).items())]),
    ]
    return "\n".join(
        f"{f'{name}:' if number == 0 else '':<13}{cell_text(value)}"
        for name, values in lines
        for number, value in enumerate(value for value in values if value)
    )


def indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.rstrip().splitlines())


def event_time(event: Object) -> str:
    moment = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(moment or event["metadata"].get("creationTimestamp") or "")


def event_source(event: Object) -> str:
    return str(event.get("reportingComponent") or (event.get("source") or {}).get("component") or "")


def event_message(event: Object) -> str:
    count = (event.get("series") or {}).get("count") or event.get("count") or 1
    return cell_text(event.get("message")) + (f" (x{count})" if count > 1 else "")


def event_selector(obj: Object) -> str:
    selector = {"involvedObject.kind": obj["kind"], "involvedObject.name": name_of(obj)}
    if uid := obj["metadata"].get("uid"):
        selector["involvedObject.uid"] = uid
    if namespace := namespace_of(obj):
        selector["involvedObject.namespace"] = namespace
    return ",".join(f"{key}={value}" for key, value in selector.items())
