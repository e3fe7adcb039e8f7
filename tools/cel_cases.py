"""Record the responses of a Kubernetes API server to CEL expressions for tests/golden/cel.

    python tools/cel_cases.py KUBECONFIG    fills in `said` in tests/golden/cel/{expressions,rules}.jsonl

Each expression becomes the rule of one field of a custom resource, with the schema of `subject.json`. Compiler errors
are taken from a rejected definition, evaluation errors from a rejected object. No error means that the rule holds. A
case of `rules` has its own schema and perhaps an old object, which is created before the rules. Its errors are a list.
This needs administrator permissions and deletes everything it creates.
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
"""Number of expressions in one definition, which repeats the schema for each."""


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


def errors_by_field(error: Invalid) -> dict[str, str]:
    """Return the error of each field, without the rejected value."""
    found: dict[str, str] = {}
    for cause in error.details["causes"]:
        name = re.search(r"\be\d+\b", cause["field"])
        message = re.sub(r'^Invalid value: ("object"|\{.*?"OptionalOldSelf":\w+\}): ', "", cause["message"])
        if name is not None:
            found[name.group()] = re.sub(r"selfType\d+", "selfType", message)
    return found


async def served(send: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a request until the definition is served, and return the response."""
    while True:
        try:
            return await send()
        except NotFound:
            await asyncio.sleep(0.3)


async def remove_definition(client: Client) -> None:
    await client.delete(DEFINITIONS, {"metadata": {"name": "subjects.cel.example.com"}})
    while True:
        try:
            await client.get(DEFINITIONS, "subjects.cel.example.com")
        except NotFound:
            return
        await asyncio.sleep(0.3)


async def expression_errors(client: Client, subject_fixture: dict[str, Any], rules: dict[str, str]) -> dict[str, str]:
    errors: dict[str, str] = {}
    try:
        await client.create(DEFINITIONS, definition(ruled(subject_fixture["schema"], rules)), dry_run=True)
    except Invalid as error:
        errors = errors_by_field(error)
    valid = {name: rule for name, rule in rules.items() if name not in errors}
    await client.create(DEFINITIONS, definition(ruled(subject_fixture["schema"], valid)))
    try:
        body = subject(dict.fromkeys(valid, subject_fixture["value"]))
        await served(lambda: client.create(SUBJECTS, body, dry_run=True))
    except Invalid as error:
        errors |= errors_by_field(error)
    await remove_definition(client)
    return errors


async def rule_errors(client: Client, cases: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    schemas = {name: case["schema"] for name, case in cases.items()}
    before = {name: case["old"] for name, case in cases.items() if case["old"] is not None}
    await client.create(DEFINITIONS, definition(without_rules(schemas)))
    created = await served(lambda: client.create(SUBJECTS, subject(before)))
    current = await client.get(DEFINITIONS, "subjects.cel.example.com")
    await client.replace(DEFINITIONS, {**current, "spec": definition(schemas)["spec"]})
    await asyncio.sleep(2)  # there is no other way to know when the rules apply
    after = {name: case["new"] for name, case in cases.items()}
    errors: dict[str, list[str]] = {}
    try:
        await client.replace(SUBJECTS, {**created, **after}, dry_run=True)
    except Invalid as error:
        for cause in error.details["causes"]:
            name, rest = re.fullmatch(r"(e\d+)(.*)", cause["field"]).groups()
            errors.setdefault(name, []).append(f"{rest}: {cause['message']}")
    await remove_definition(client)
    return errors


async def main() -> None:
    subject_fixture = json.loads((FOLDER / "subject.json").read_text())
    transport = HttpTransport(load_access([Path(sys.argv[1])], environ={}))
    client = Client(transport)
    try:
        cases = cases_in("expressions.jsonl")
        for start in range(0, len(cases), AT_ONCE):
            batch = {f"e{number}": case for number, case in enumerate(cases[start : start + AT_ONCE])}
            errors = await expression_errors(
                client, subject_fixture, {name: case["rule"] for name, case in batch.items()}
            )
            for name, case in batch.items():
                case["said"] = errors.get(name, "")
        write("expressions.jsonl", cases)
        cases = cases_in("rules.jsonl")
        batch = {f"e{number}": case for number, case in enumerate(cases)}
        error_lists = await rule_errors(client, batch)
        for name, case in batch.items():
            case["said"] = error_lists.get(name, [])
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
