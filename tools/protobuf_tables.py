"""Generate the API server's protobuf table from the Go structs that Kubernetes publishes.

    python tools/protobuf_tables.py    writes src/tapestry/apiserver/data/protobuf.json.gz
                                       and tests/golden/protobuf/kinds.json.gz

This needs Go for its module cache. The files are committed, so nothing else needs Go. The tags of Go structs contain
the field numbers and JSON names, and pointer types show whether a zero value is significant. `generated.proto` contains
only the numbers. Only types used by the kinds of `kubernetes.json.gz` are included: run `tools/api_tables.py` first.
The second file has the samples with which Kubernetes tests its encodings.

A row of a message is `[number, JSON name, type, drops]`. A type is one of SCALARS or of FORMS, or a message, perhaps
behind `[]` (repeated), `{}` (a map from strings), `[*]` (a message around a list, as for lists in maps) or `|` (one of
UNIONS). A row without a JSON name is inlined. `drops` is whether JSON omits the zero value of a scalar.
"""

import base64
import gzip
import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api_tables import DATA

VERSION = "v0.34.3"
MODULES = ("k8s.io/api", "k8s.io/apimachinery", "k8s.io/apiextensions-apiserver", "k8s.io/kube-aggregator")
ROOT = Path(__file__).parent.parent
TABLE = ROOT / "src" / "tapestry" / "apiserver" / "data" / "protobuf.json.gz"
SAMPLES = ROOT / "tests" / "golden" / "protobuf" / "kinds.json.gz"
LICENCE = "Copyright The Kubernetes Authors.  Licensed under the Apache License, Version 2.0.  "
TABLE_NOTICE = f"{LICENCE}Made by tools/protobuf_tables.py from the structs of {', '.join(MODULES)} {VERSION}."
SAMPLES_NOTICE = (
    f"{LICENCE}Packed by tools/protobuf_tables.py, otherwise unchanged, from k8s.io/api {VERSION}, testdata/HEAD, and "
    f"k8s.io/apiextensions-apiserver {VERSION}, pkg/apis/testdata/HEAD."
)
META = "k8s.io/apimachinery/pkg/apis/meta/v1"
EXTENSIONS = "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
ELSEWHERE = {
    "apiextensions.k8s.io": "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions",
    "apiregistration.k8s.io": "k8s.io/kube-aggregator/pkg/apis/apiregistration",
}
OF_EVERY_GROUP = ("DeleteOptions", "Status")
FORMS = {
    f"{META}.Time": "time",
    f"{META}.MicroTime": "microtime",
    f"{META}.FieldsV1": "json",
    "k8s.io/apimachinery/pkg/runtime.RawExtension": "json",
    "k8s.io/apimachinery/pkg/api/resource.Quantity": "quantity",
    "k8s.io/apimachinery/pkg/util/intstr.IntOrString": "intorstring",
    f"{EXTENSIONS}.JSON": "json",
}
"""Structs whose JSON is not an object with their fields."""
UNIONS = {f"{EXTENSIONS}.JSONSchemaPropsOr{other}" for other in ("Array", "Bool", "StringArray")}
"""Structs whose JSON is that of their last set field."""
SCALARS = {
    "string": "string",
    "bool": "bool",
    "int32": "int32",
    "int64": "int64",
    "float64": "double",
    "[]byte": "bytes",
}

STRUCT = re.compile(r"^type (\w+) struct ?\{(?:\}|\n(.*?)^\})", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"^type (\w+) (?:= )?([\w.\[\]]+)$", re.MULTILINE)
FIELD = re.compile(r"^\t(?:\w+\s+)?([\w.*\[\]]+)\s+`([^`]*)`", re.MULTILINE)
IMPORT = re.compile(r'^(?:import|\t)\s*(?:(\w+) )?"([\w./-]+)"', re.MULTILINE)
NULLABLE = re.compile(r"^// \+protobuf\.nullable=true\n(?://.*\n|\n)*type (\w+) \[\]", re.MULTILINE)
MAP = re.compile(r"map\[([^\]]+)\](.+)")

Json = dict[str, Any]
Row = tuple[int, str, str, bool]


@dataclass(frozen=True)
class Package:
    """Types that a Go package declares, with qualified names."""

    structs: dict[str, list[tuple[str, str]]]
    """Type and tag of each field that has a tag."""
    named: dict[str, str]
    """Other types with their underlying types."""
    wrapped: frozenset[str]
    """Named lists that are encoded inside a message."""


class Source:
    """Go modules, parsed package by package on demand."""

    def __init__(self) -> None:
        self.folders = {module: module_folder(module) for module in MODULES}
        self._packages: dict[str, Package] = {}

    def package(self, path: str) -> Package:
        if path not in self._packages:
            module = next(each for each in MODULES if path.startswith(each + "/"))
            self._packages[path] = package_in(self.folders[module] / path.removeprefix(module + "/"), path)
        return self._packages[path]

    def table(self, roots: list[str]) -> dict[str, list[Row]]:
        """Return the messages reachable from `roots`, including these."""
        messages: dict[str, list[Row]] = {}
        pending = list(roots)
        while pending:
            name = pending.pop()
            if name not in messages and "/" in name:
                messages[name] = self.message(name)
                pending += [row[2].lstrip("[]{}*|") for row in messages[name]]
        return dict(sorted(messages.items()))

    def message(self, name: str) -> list[Row]:
        path, _, plain = name.rpartition(".")
        rows = []
        for type_, tag in self.package(path).structs[plain]:
            wire = re.search(r'protobuf:"[^",]+,(\d+)', tag)
            if wire is not None:
                json_name, *options = tag_value(tag, "json").split(",")
                kind = self.type_of(type_.lstrip("*"))
                drops = "omitempty" in options and not type_.startswith("*") and kind in SCALARS.values()
                rows.append((int(wire[1]), wire[1] if name in UNIONS else json_name, kind, drops))
        return sorted(rows)

    def type_of(self, type_: str) -> str:
        """Return a Go type in the notation of the table."""
        if type_ in FORMS:
            return FORMS[type_]
        if type_ in SCALARS:
            return SCALARS[type_]
        if type_.startswith("[]"):
            return "[]" + self.type_of(type_[2:].lstrip("*"))
        if keyed := MAP.fullmatch(type_):
            if self.type_of(keyed[1]) != "string":
                raise ValueError(f"{type_}: keys are not strings")
            return "{}" + self.type_of(keyed[2])
        path, _, name = type_.rpartition(".")
        package = self.package(path)
        if name in package.structs:
            return f"|{type_}" if type_ in UNIONS else type_
        under = self.type_of(package.named[name])
        return under.replace("[]", "[*]") if name in package.wrapped else under


def module_folder(module: str) -> Path:
    """Return the folder of the module in Go's cache, downloading it if necessary."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["go", "mod", "download", "-json", f"{module}@{VERSION}"]
        result = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return Path(json.loads(result.stdout)["Dir"])


def package_in(folder: Path, path: str) -> Package:
    found = Package({}, {}, frozenset())
    for file in sorted(folder.glob("*.go")):
        if not file.name.startswith(("generated.", "zz_")) and not file.name.endswith("_test.go"):
            text = file.read_text()
            found = Package(
                found.structs | structs_in(text, path),
                found.named | {name: qualified(under, text, path) for name, under in NAMED.findall(uncommented(text))},
                found.wrapped | frozenset(NULLABLE.findall(text)),
            )
    return found


def structs_in(text: str, path: str) -> dict[str, list[tuple[str, str]]]:
    return {
        name: [(qualified(type_, text, path), tag) for type_, tag in FIELD.findall(body)]
        for name, body in STRUCT.findall(uncommented(text))
    }


def uncommented(text: str) -> str:
    return re.sub(r"[ \t]*//[^\n]*", "", text)


def qualified(type_: str, text: str, path: str) -> str:
    """Return a type written in `text` with package paths instead of short names."""
    imports = {short or each.rpartition("/")[2]: each for short, each in IMPORT.findall(text)}

    def full(name: re.Match[str]) -> str:
        package, _, plain = name[0].rpartition(".")
        if not package:
            return plain if plain in (*SCALARS, "map", "byte") else f"{path}.{plain}"
        return f"{imports.get(package, package)}.{plain}"

    return re.sub(r"[\w.]+", full, type_)


def tag_value(tag: str, key: str) -> str:
    found = re.search(rf'{key}:"([^"]*)"', tag)
    return found[1] if found else ""


def kinds() -> dict[str, str]:
    """Return the struct of each kind of a request body, for example of `apps/v1/Deployment`."""
    found = {each: f"{META}.{each}" for each in OF_EVERY_GROUP}
    for row in json.loads(gzip.decompress((DATA / "kubernetes.json.gz").read_bytes()))["resources"]:
        for each in (row, *row["subresources"]):
            group, version = each.get("group", row["group"]), each.get("version", row["version"])
            folder = ELSEWHERE.get(group) or f"k8s.io/api/{group.partition('.')[0] or 'core'}"
            api_version = f"{group}/{version}" if group else version
            found[f"{api_version}/{each['kind']}"] = f"{folder}/{version}.{each['kind']}"
    return dict(sorted(found.items()))


def samples(source: Source, structs_by_kind: dict[str, str]) -> dict[str, Json]:
    """Return the bytes and the equivalent JSON of each kind with a sample."""
    found = {}
    for folder in (
        source.folders["k8s.io/api"] / "testdata" / "HEAD",
        source.folders["k8s.io/apiextensions-apiserver"] / "pkg" / "apis" / "testdata" / "HEAD",
    ):
        for path in sorted(folder.glob("*.pb")):
            content = json.loads(path.with_suffix(".json").read_text())
            kind = f"{content.get('apiVersion')}/{content.get('kind')}"
            if kind in structs_by_kind or content.get("kind") in structs_by_kind:
                found[kind] = {"protobuf": base64.b64encode(path.read_bytes()).decode(), "json": content}
    return found


def write(path: Path, content: Json) -> None:
    text = json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text, mtime=0))
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def main() -> None:
    source, structs_by_kind = Source(), kinds()
    messages = source.table(list(structs_by_kind.values()))
    write(TABLE, {"notice": TABLE_NOTICE, "version": VERSION, "kinds": structs_by_kind, "messages": messages})
    write(SAMPLES, {"notice": SAMPLES_NOTICE, "samples": samples(source, structs_by_kind)})
    print(f"{len(structs_by_kind)} kinds, {len(messages)} messages")


if __name__ == "__main__":
    main()
