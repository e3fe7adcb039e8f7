"""Makes the table by which our API server reads protobuf, from what Kubernetes publishes of its own.

    python tools/protobuf_tables.py    writes src/tapestry/apiserver/data/protobuf.json.gz
                                       and tests/golden/protobuf/kinds.json.gz

Needs Go for its module cache; the files are committed, so nothing else does.  Go's structs say in their tags which
number a field has on the wire and what it is called in JSON, and by being a pointer or not whether its zero means
anything: `generated.proto` says the first alone.  Only what the kinds of `kubernetes.json.gz` are made of is taken; run
`tools/api_tables.py` first.  The second file has the samples that Kubernetes tests its own encodings with.

A row of a message is `[number, JSON name, type, drops]`.  A type is one of SCALARS or of FORMS, or a message, perhaps
behind `[]` (repeated), `{}` (a map from strings), `[*]` (a message around a list, as lists in maps have to be) or `|`
(one of UNIONS).  A row without a JSON name is inlined; `drops` says that JSON leaves the zero of a scalar out.
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

from api_tables import TARGET as RESOURCES

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
"""Structs whose JSON is that of the last of their fields that is set."""
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
    """The types that a Go package declares, every name in them qualified."""

    structs: dict[str, list[tuple[str, str]]]
    """The type and the tag of each field that has one."""
    named: dict[str, str]
    """Other types, and what they are underneath."""
    wrapped: frozenset[str]
    """Named lists that travel inside a message of their own."""


class Source:
    """Go's modules, read package by package as types are asked for."""

    def __init__(self) -> None:
        self.folders = {module: module_folder(module) for module in MODULES}
        self._packages: dict[str, Package] = {}

    def package(self, path: str) -> Package:
        if path not in self._packages:
            module = next(each for each in MODULES if path.startswith(each + "/"))
            self._packages[path] = package_in(self.folders[module] / path.removeprefix(module + "/"), path)
        return self._packages[path]

    def table(self, roots: list[str]) -> dict[str, list[Row]]:
        """The messages that `roots` are made of, themselves included."""
        found: dict[str, list[Row]] = {}
        waiting = list(roots)
        while waiting:
            name = waiting.pop()
            if name not in found and "/" in name:
                found[name] = self.message(name)
                waiting += [row[2].lstrip("[]{}*|") for row in found[name]]
        return dict(sorted(found.items()))

    def message(self, name: str) -> list[Row]:
        path, _, plain = name.rpartition(".")
        rows = []
        for type_, tag in self.package(path).structs[plain]:
            wire = re.search(r'protobuf:"[^",]+,(\d+)', tag)
            if wire is not None:
                json_name, *options = said(tag, "json").split(",")
                kind = self.type_of(type_.lstrip("*"))
                drops = "omitempty" in options and not type_.startswith("*") and kind in SCALARS.values()
                rows.append((int(wire[1]), wire[1] if name in UNIONS else json_name, kind, drops))
        return sorted(rows)

    def type_of(self, type_: str) -> str:
        """A Go type in the words of the table."""
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
    """Where Go keeps the module, fetched if it is not there yet."""
    with tempfile.TemporaryDirectory() as anywhere:
        command = ["go", "mod", "download", "-json", f"{module}@{VERSION}"]
        answer = subprocess.run(command, cwd=anywhere, check=True, capture_output=True, text=True)
    return Path(json.loads(answer.stdout)["Dir"])


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
    """A type as written in `text`, with the packages' paths in the place of their short names."""
    imports = {short or each.rpartition("/")[2]: each for short, each in IMPORT.findall(text)}

    def full(name: re.Match[str]) -> str:
        package, _, plain = name[0].rpartition(".")
        if not package:
            return plain if plain in (*SCALARS, "map", "byte") else f"{path}.{plain}"
        return f"{imports.get(package, package)}.{plain}"

    return re.sub(r"[\w.]+", full, type_)


def said(tag: str, key: str) -> str:
    found = re.search(rf'{key}:"([^"]*)"', tag)
    return found[1] if found else ""


def kinds() -> dict[str, str]:
    """The struct of each kind that a body can be of: of `apps/v1/Deployment`, or of `DeleteOptions` in any group."""
    found = {each: f"{META}.{each}" for each in OF_EVERY_GROUP}
    for row in json.loads(gzip.decompress(RESOURCES.read_bytes()))["resources"]:
        for each in (row, *row["subresources"]):
            group, version = each.get("group", row["group"]), each.get("version", row["version"])
            folder = ELSEWHERE.get(group) or f"k8s.io/api/{group.partition('.')[0] or 'core'}"
            api_version = f"{group}/{version}" if group else version
            found[f"{api_version}/{each['kind']}"] = f"{folder}/{version}.{each['kind']}"
    return dict(sorted(found.items()))


def samples(source: Source, wanted: dict[str, str]) -> dict[str, Json]:
    """Of each kind that Kubernetes has a sample of, the bytes and the JSON that they mean."""
    found = {}
    for folder in (
        source.folders["k8s.io/api"] / "testdata" / "HEAD",
        source.folders["k8s.io/apiextensions-apiserver"] / "pkg" / "apis" / "testdata" / "HEAD",
    ):
        for path in sorted(folder.glob("*.pb")):
            meaning = json.loads(path.with_suffix(".json").read_text())
            kind = f"{meaning.get('apiVersion')}/{meaning.get('kind')}"
            if kind in wanted or meaning.get("kind") in wanted:
                found[kind] = {"protobuf": base64.b64encode(path.read_bytes()).decode(), "json": meaning}
    return found


def write(path: Path, content: Json) -> None:
    text = json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text, mtime=0))
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def main() -> None:
    source, wanted = Source(), kinds()
    messages = source.table(list(wanted.values()))
    write(TABLE, {"notice": TABLE_NOTICE, "version": VERSION, "kinds": wanted, "messages": messages})
    write(SAMPLES, {"notice": SAMPLES_NOTICE, "samples": samples(source, wanted)})
    print(f"{len(wanted)} kinds, {len(messages)} messages")


if __name__ == "__main__":
    main()
