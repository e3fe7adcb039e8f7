"""Records what a Kubernetes API server says to expressions: the oracle of tests/golden/cel.

    python tools/cel_cases.py KUBECONFIG    fills in `said` in tests/golden/cel/{expressions,rules}.jsonl

Each expression becomes the rule of one field of a custom resource, a field that looks as `subject.json` says.  A
definition that is refused has the complaints of the compiler in it, an object those of the evaluation; nothing said
means that the rule holds.  A case of `rules` has a schema of its own, and perhaps an object of before, which is made
before there are rules; what is said is a list there.  Needs the rights of an administrator, and leaves nothing behind.
"""

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.kube.errors import Invalid, NotFound
from tapestry.kube.resources import Resource

FOLDER = Path(__file__).parent.parent / "tests" / "golden" / "cel"
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
SUBJECTS = Resource("cel.example.com", "v1", "Subject", "subjects", namespaced=False)
RULES = "x-kubernetes-validations"
AT_ONCE = 60
"""Expressions in one definition, which has the schema once for each."""


def definition(fields: dict[str, Any]) -> dict[str, Any]:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": fields}},
    }
    names = {"plural": "subjects", "singular": "subject", "kind": "Subject"}
    spec = {"group": "cel.example.com", "scope": "Cluster", "names": names, "versions": [version]}
    metadata = {"name": "subjects.cel.example.com"}
    return {
        "apiVersion": DEFINITIONS.api_version,
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": spec,
    }


def ruled(schema: dict[str, Any], rules: dict[str, str]) -> dict[str, Any]:
    return {name: {**schema, RULES: [{"rule": rule}]} for name, rule in rules.items()}


def without_rules(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: without_rules(each) for key, each in schema.items() if key != RULES}
    return [without_rules(each) for each in schema] if isinstance(schema, list) else schema


def subject(fields: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": SUBJECTS.api_version, "kind": "Subject", "metadata": {"name": "one"}, **fields}


def complaints(error: Invalid) -> dict[str, str]:
    """What is said of each field, without the value that it is said of."""
    found: dict[str, str] = {}
    for cause in error.details["causes"]:
        name = re.search(r"\be\d+\b", cause["field"])
        message = re.sub(r'^Invalid value: ("object"|\{.*?"OptionalOldSelf":\w+\}): ', "", cause["message"])
        if name is not None:
            found[name.group()] = re.sub(r"selfType\d+", "selfType", message)
    return found


async def served(ask: Callable[[], Awaitable[Any]]) -> Any:
    """What is answered as soon as the definition is served."""
    while True:
        try:
            return await ask()
        except NotFound:
            await asyncio.sleep(0.3)


async def removed(client: Client) -> None:
    await client.delete(DEFINITIONS, {"metadata": {"name": "subjects.cel.example.com"}})
    while True:
        try:
            await client.get(DEFINITIONS, "subjects.cel.example.com")
        except NotFound:
            return
        await asyncio.sleep(0.3)


async def said_to_expressions(client: Client, look: dict[str, Any], rules: dict[str, str]) -> dict[str, str]:
    said: dict[str, str] = {}
    try:
        await client.create(DEFINITIONS, definition(ruled(look["schema"], rules)), dry_run=True)
    except Invalid as error:
        said = complaints(error)
    sound = {name: rule for name, rule in rules.items() if name not in said}
    await client.create(DEFINITIONS, definition(ruled(look["schema"], sound)))
    try:
        body = subject(dict.fromkeys(sound, look["value"]))
        await served(lambda: client.create(SUBJECTS, body, dry_run=True))
    except Invalid as error:
        said |= complaints(error)
    await removed(client)
    return said


async def said_to_rules(client: Client, cases: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    schemas = {name: case["schema"] for name, case in cases.items()}
    before = {name: case["old"] for name, case in cases.items() if case["old"] is not None}
    await client.create(DEFINITIONS, definition(without_rules(schemas)))
    made = await served(lambda: client.create(SUBJECTS, subject(before)))
    found = await client.get(DEFINITIONS, "subjects.cel.example.com")
    await client.replace(DEFINITIONS, {**found, "spec": definition(schemas)["spec"]})
    await asyncio.sleep(2)  # no other sign tells when the rules are in force
    after = {name: case["new"] for name, case in cases.items()}
    said: dict[str, list[str]] = {}
    try:
        await client.replace(SUBJECTS, {**made, **after}, dry_run=True)
    except Invalid as error:
        for cause in error.details["causes"]:
            name, rest = re.fullmatch(r"(e\d+)(.*)", cause["field"]).groups()
            said.setdefault(name, []).append(f"{rest}: {cause['message']}")
    await removed(client)
    return said


async def main() -> None:
    look = json.loads((FOLDER / "subject.json").read_text())
    transport = HttpTransport(load_access([Path(sys.argv[1])], environ={}))
    client = Client(transport)
    try:
        cases = cases_in("expressions.jsonl")
        for start in range(0, len(cases), AT_ONCE):
            some = {f"e{number}": case for number, case in enumerate(cases[start : start + AT_ONCE])}
            said = await said_to_expressions(client, look, {name: case["rule"] for name, case in some.items()})
            for name, case in some.items():
                case["said"] = said.get(name, "")
        write("expressions.jsonl", cases)
        cases = cases_in("rules.jsonl")
        some = {f"e{number}": case for number, case in enumerate(cases)}
        lists = await said_to_rules(client, some)
        for name, case in some.items():
            case["said"] = lists.get(name, [])
        write("rules.jsonl", cases)
    finally:
        await transport.close()


def cases_in(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


def write(name: str, cases: list[dict[str, Any]]) -> None:
    (FOLDER / name).write_text("".join(json.dumps(case, ensure_ascii=False) + "\n" for case in cases))
    print(f"{len(cases)} cases, {sum(not case['said'] for case in cases)} of which hold")


if __name__ == "__main__":
    asyncio.run(main())
