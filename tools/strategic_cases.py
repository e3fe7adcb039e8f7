"""Extract the strategic merge patch cases of Kubernetes from the tests of its Go module.

    python tools/strategic_cases.py    writes tests/golden/strategic/cases.yaml

This needs Go for its module cache. The file is committed, so the tests do not need Go. Each case is a document, a
patch, and the result or an error message. The parts of upstream cases that are about creating patches are omitted, and
so are cases without a patch to apply.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

MODULE = "k8s.io/apimachinery"
VERSION = "v0.34.3"
FOLDER = "pkg/util/strategicpatch"
TARGET = Path(__file__).parent.parent / "tests" / "golden" / "strategic" / "cases.yaml"
HEADER = f"""\
# Copyright The Kubernetes Authors.  Licensed under the Apache License, Version 2.0.
# Made by tools/strategic_cases.py from {MODULE} {VERSION}, {FOLDER}/patch_test.go and testdata/:
# taken out of the Go source, cut down to what applying a patch needs, otherwise unchanged.
"""

GO_STRING = r'(?:`([^`]*)`|"((?:[^"\\]|\\.)*)")'
FIELD = re.compile(rf"(\w+):\s+(?:\[\]byte\()?{GO_STRING}")
MAP_ENTRY = re.compile(r'^\t\t"([^"]+)": \{\n(.*?)^\t\t\},$', re.MULTILINE | re.DOTALL)

Case = dict[str, Any]


def module_folder() -> Path:
    """Return the folder of the module in Go's cache, downloading it if necessary."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
        result = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return Path(json.loads(result.stdout)["Dir"])


def declaration(source: str, start: str) -> str:
    """Return the text from `start` to the next declaration."""
    begin = source.index(start)
    end = re.compile(r"^(?:func|var|type) ", re.MULTILINE).search(source, begin + len(start))
    return source[begin : end.start() if end else None]


def fields(text: str) -> Iterator[tuple[str, str]]:
    """Yield the string fields of Go struct literals, in order."""
    for name, raw, quoted in FIELD.findall(text):
        yield name[0].lower() + name[1:], raw or json.loads(f'"{quoted}"')


def yaml_cases(source: str, name: str) -> Iterator[Case]:
    """Yield cases from one YAML document upstream."""
    (text,) = re.findall(r"`([^`]*)`", declaration(source, f"var {name} = "))
    for case in yaml.safe_load(text)["testCases"]:
        yield from applications(case.pop("description"), case)


def struct_cases(source: str, name: str) -> Iterator[Case]:
    """Yield cases from a list of Go structs with YAML fields upstream."""
    found: list[tuple[str, dict[str, Any]]] = []
    for field, text in fields(declaration(source, f"var {name} = ")):
        if field == "description":
            found.append((text, {}))
        else:
            found[-1][1][field] = text if field == "expectedError" else yaml.safe_load(text)
    for description, case in found:
        yield from applications(description, case)


def applications(description: str, case: dict[str, Any]) -> Iterator[Case]:
    """Yield the two-way patch of the original and, if present, the three-way patch of the live object."""
    outcome = {"error": case["expectedError"]} if "expectedError" in case else {}
    result = outcome or {"result": case.get("twoWayResult", case.get("modified"))}
    yield {"name": f"{description}, two-way", "document": case.get("original", {}), "patch": case["twoWay"], **result}
    if "result" in case:
        result = {"result": case["result"]}
        yield {"name": f"{description}, three-way", "document": case["current"], "patch": case["threeWay"], **result}


def number_cases(source: str) -> Iterator[Case]:
    for name, text in MAP_ENTRY.findall(declaration(source, "func TestNumberConversion(")):
        case = {field: json.loads(value) for field, value in fields(text)}
        patch, result = case["expectedPatch"], case["expectedResult"]
        yield {"name": name, "type": "precisionItem", "document": case["old"], "patch": patch, "result": result}


def unknown_field_cases(source: str) -> Iterator[Case]:
    """Yield all cases except those in which no patch can be created."""
    for name, text in MAP_ENTRY.findall(declaration(source, "func TestUnknownField(")):
        case = dict(fields(text))
        if "expectedTwoWay" not in case:
            continue
        for way, document in (("TwoWay", "original"), ("ThreeWay", "current")):
            parts = (case[document], case[f"expected{way}"], case[f"expected{way}Result"])
            values = dict(zip(("document", "patch", "result"), map(json.loads, parts), strict=True))
            yield {"name": f"{name}, {'two' if way == 'TwoWay' else 'three'}-way", **values}


def schemas(folder: Path) -> dict[str, Any]:
    """Return the types of the cases, as OpenAPI v2 and v3."""
    v2: dict[str, Any] = {}
    v3: dict[str, Any] = {}
    for item in ("merge-item", "precision-item"):
        v2 |= json.loads((folder / f"testdata/swagger-{item}.json").read_text())["definitions"]
        v3 |= json.loads((folder / f"testdata/swagger-{item}-v3.json").read_text())["components"]["schemas"]
    return {"v2": v2, "v3": v3}


def main() -> None:
    folder = module_folder() / FOLDER
    source = (folder / "patch_test.go").read_text()
    cases = [
        *yaml_cases(source, "customStrategicMergePatchTestCaseData"),
        *struct_cases(source, "customStrategicMergePatchRawTestCases"),
        *yaml_cases(source, "createStrategicMergePatchTestCaseData"),
        *struct_cases(source, "strategicMergePatchRawTestCases"),
        *struct_cases(source, "replaceRawExtensionPatchTestCases"),
        *number_cases(source),
        *unknown_field_cases(source),
    ]
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    golden = yaml.safe_dump({"schemas": schemas(folder), "cases": cases}, sort_keys=False, width=120)
    TARGET.write_text(HEADER + golden)
    print(f"{len(cases)} cases in {TARGET.name}")


if __name__ == "__main__":
    main()
