"""Replay scripted requests on two servers and compare the responses.

A script is a list of requests: `POST pods: {...}`, `GET pods/a`, `MERGE pods/a: {...}`.  A path without a slash in
front names a resource in the namespace of the scripts.  `with` lists variants of a body, each a change of a few fields
(`spec/containers/0/image: ""`; null removes a field), which are sent as dry runs.  `CHANGE pods/a` sends a PUT with
variants of the stored object.  `$RV` in a query is the last resourceVersion that the server returned.
"""

import asyncio
import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tapestry.apiserver.core.resource_registry import published_api

NAMESPACE = "validation"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadata{};v=v1;g=meta.k8s.io,application/json"
METHODS = {
    "MERGE": ("PATCH", "application/merge-patch+json"),
    "STRATEGIC": ("PATCH", "application/strategic-merge-patch+json"),
    "JSON": ("PATCH", "application/json-patch+json"),
    "APPLY": ("PATCH", "application/apply-patch+yaml"),
}
VOLATILE = {
    *("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "time", "continue", "nodePort"),
    *("lastTransitionTime", "lastUpdateTime", "lastHeartbeatTime", "healthCheckNodePort", "controller-uid"),
    "batch.kubernetes.io/controller-uid",
}
MASKS = (
    (re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uid>"),
    (re.compile("((?:generated|UP)-)[bcdfghjklmnpqrstvwxz2456789]{5}"), r"\1<suffix>"),
    (re.compile(r"(resource version: )\d+"), r"\1<version>"),
    (re.compile(r"(ResourceVersion in (?:the precondition|record) )\(\d+\)"), r"\1(<version>)"),
    (re.compile(r"\n@@.*", re.DOTALL), "\n<difference>"),
    (re.compile(r"10\.96\.\d+\.\d+(?!\d*/)"), "<service ip>"),
    (re.compile(r"Invalid value: \{.*\}: field is immutable"), "Invalid value: <object>: field is immutable"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "<time>"),
    (re.compile(r"^\d{1,3}s$"), "<age>"),
)


@dataclass(frozen=True)
class Step:
    """One request."""

    where: str
    verb: str
    path: str
    body: Any = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.where} {self.verb} {self.path} {json.dumps(self.changes) if self.changes else ''}".rstrip()


@dataclass(frozen=True)
class Answer:
    status: int
    content_type: str
    warnings: Sequence[str]
    body: Any


def paths() -> dict[str, str]:
    """Path of each built-in resource in its preferred version."""
    found: dict[str, str] = {}
    for row in published_api().resources:
        resource = row.resource
        root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
        place = f"/namespaces/{NAMESPACE}" if resource.namespaced else ""
        if "alpha" not in resource.version and "beta" not in resource.version:
            found.setdefault(resource.plural, f"{root}{place}/{resource.plural}")
    return found


def steps(folder: Path) -> Iterator[Step]:
    known = paths()
    for script in sorted(folder.glob("*.yaml")):
        for number, item in enumerate(yaml.safe_load(script.read_text())):
            yield from steps_of(f"{script.stem}[{number}]", item, known)


def steps_of(where: str, item: Any, known: Mapping[str, str]) -> Iterator[Step]:
    text, body = (item, None) if isinstance(item, str) else next(iter(item.items()))
    verb, _, path = text.partition(" ")
    if not path.startswith("/"):
        resource = re.split("[/?]", path, maxsplit=1)[0]
        path = known[resource] + path[len(resource) :]
    variants = body if verb == "CHANGE" else item.get("with") if isinstance(item, dict) else None
    if variants is None:
        yield Step(where, verb, path, body)
    for changes in variants or ():
        dry = f"{path}{'&' if '?' in path else '?'}dryRun=All"
        yield Step(where, verb, dry, None if verb == "CHANGE" else changed(body, changes), changes)


def changed(value: Any, changes: Mapping[str, Any]) -> Any:
    """Return a copy of `value` with the changes applied."""
    found = copy.deepcopy(value)
    for path, new in changes.items():
        *steps_down, last = path.split("/") if not path.startswith("=") else [path[1:]]
        at = found
        for each in steps_down:
            at = at[int(each)] if isinstance(at, list) else at.setdefault(each.replace("~1", "/"), {})
        last = last.replace("~1", "/")
        if isinstance(at, list):
            at[int(last) :] = [*([new] if new is not None else []), *at[int(last) + 1 :]]
        elif new is None:
            at.pop(last, None)
        else:
            at[last] = new
    return found


@dataclass
class Caller:
    """Send requests to one server."""

    session: aiohttp.ClientSession
    url: str
    headers: Mapping[str, str]
    version: str = "0"

    async def send(self, step: Step) -> Answer:
        if step.verb == "CHANGE":
            current = await self.request("GET", step.path.partition("?")[0], {}, None)
            return await self.request(
                "PUT", step.path, {"content-type": "application/json"}, changed(current.body, step.changes)
            )
        if step.verb in ("TABLE", "PARTIAL"):
            many = (
                ""
                if re.search(r"/[a-z]+/[-a-z0-9.]+(\?|$)", step.path.rsplit("namespaces/validation", 1)[-1])
                else "List"
            )
            accept = TABLE if step.verb == "TABLE" else PARTIAL.format(many)
            return await self.request("GET", step.path, {"accept": accept}, None)
        if step.verb == "WATCH":
            return await self.request("GET", f"{step.path}&watch=1&timeoutSeconds=1", {}, None)
        method, kind = METHODS.get(step.verb, (step.verb, "application/json"))
        return await self.request(method, step.path, {"content-type": kind}, step.body)

    async def request(self, method: str, path: str, headers: Mapping[str, str], body: Any) -> Answer:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode() if body is not None else None
        path = path.replace("$RV", self.version)
        async with self.session.request(
            method, self.url + path, headers={**self.headers, **headers}, data=data
        ) as answer:
            text = await answer.text()
            found = read(text)
            if isinstance(found, dict) and (found.get("metadata") or {}).get("resourceVersion"):
                self.version = found["metadata"]["resourceVersion"]
            kind = answer.headers.get("content-type", "")
            return Answer(answer.status, kind, answer.headers.getall("warning", []), found)


def read(text: str) -> Any:
    """JSON, or a line of JSON for each event of a watch, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        lines = text.splitlines()
        return [json.loads(line) for line in lines] if text.startswith('{"type"') else text


def masked(value: Any) -> Any:
    """Return `value` with placeholders for parts that differ between runs, for example UIDs and times."""
    if isinstance(value, dict):
        present = {key: each for key, each in value.items() if each is not None and (key, each) != ("details", {})}
        return {key: "<masked>" if key in VOLATILE and each else masked(each) for key, each in present.items()}
    if isinstance(value, list):
        return [masked(each) for each in value]
    if isinstance(value, str):
        for pattern, mask in MASKS:
            value = pattern.sub(mask, value)
    return value


OLD = ("apps", "autoscaling", "batch", "policy")
"""Groups of Kubernetes that have no domain in their name."""


def comparable(answer: Answer) -> dict[str, Any]:
    body = masked(answer.body)
    for column in body.get("columnDefinitions", ()) if isinstance(body, dict) else ():
        del column["description"]  # our descriptions have their own wording
    if isinstance(body, dict) and body.get("kind") == "APIGroupList":  # other tests register kinds there
        body["groups"] = [each for each in body["groups"] if each["name"] in OLD or each["name"].endswith(".k8s.io")]
    if isinstance(body, dict) and body.get("kind") == "Status" and "causes" in (body.get("details") or {}):
        causes = body["details"]["causes"]  # Kubernetes reports some errors several times
        body["details"]["causes"] = [each for number, each in enumerate(causes) if each not in causes[:number]]
    return {
        "status": answer.status,
        "contentType": answer.content_type,
        "warnings": sorted(each for header in answer.warnings for each in re.split(", (?=299 )", header)),
        "body": body,
    }


def differences(theirs: Any, ours: Any, path: str = "") -> Iterator[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in {**theirs, **ours}:
            below = f"{path}.{key}" if path else key
            if key not in theirs:
                yield f"{below}: only ours: {json.dumps(ours[key])[:300]}"
            elif key not in ours:
                yield f"{below}: only theirs: {json.dumps(theirs[key])[:300]}"
            else:
                yield from differences(theirs[key], ours[key], below)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for number, (a, b) in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(a, b, f"{path}[{number}]")
    elif theirs != ours:
        yield f"{path}:\n      theirs: {json.dumps(theirs)[:600]}\n      ours:   {json.dumps(ours)[:600]}"


async def compared(step: Step, theirs: Caller, ours: Caller) -> list[str]:
    """List the differences between two responses.  If only one server refuses, report only that."""
    async with asyncio.TaskGroup() as group:
        one, other = group.create_task(theirs.send(step)), group.create_task(ours.send(step))
    expected, found = comparable(one.result()), comparable(other.result())
    if expected["status"] != found["status"]:
        expected, found = brief(expected), brief(found)
    return [f"{step}\n    {each}" for each in differences(expected, found)]


def brief(answer: Mapping[str, Any]) -> dict[str, Any]:
    body = answer["body"]
    return {"answer": f"{answer['status']} {body.get('message', body.get('kind')) if isinstance(body, dict) else body}"}


ODD: tuple[Any, ...] = ({}, [], "", 0, -1, "a b", [{}], {"a": {}})


def spoiled(value: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """Yield changes that make one field empty, nonsensical or of another type."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        below = f"{path}/{key}".lstrip("/") if "/" not in str(key) else ""
        if below:
            yield from ({below: odd} for odd in ODD)
            yield from spoiled(each, below)
