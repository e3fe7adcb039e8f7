"""Writes the pages of docs/reference that are made of code: commands, kinds, keys.

    python tools/reference.py           write them
    python tools/reference.py --check   say which are not as the code has them

Beside these are pages that people write: what each setting, metric and event means.  A test sees that none is missing.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click

import tapestry.apis.keys
from tapestry.apis.clusterbindings import CLUSTER_BINDING
from tapestry.apis.policies import POLICY
from tapestry.cli.help_text import exit_codes
from tapestry.cli.main import COMMANDS, GROUPS, main
from tapestry.kube.crds import Kind, crd

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "reference"
SOURCE = ROOT / "src" / "tapestry"
MADE = "<!-- Made by tools/reference.py; `make reference` makes it again. -->"
LONGEST_PATTERN = 60
CONVENTIONS = {
    "conditions": "What is so and what is not, each with its reason.",
    "observedGeneration": "The `metadata.generation` that the status is about.",
}
"""Fields that mean the same of every kind."""

Row = tuple[str, ...]


def pages() -> dict[str, str]:
    """The pages by their names."""
    return {"cli.md": cli_page(), "kinds.md": kinds_page(), "labels.md": labels_page()}


def table(header: Row, rows: Iterable[Row]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# -- commands


def cli_page() -> str:
    parts = [
        "# The command line",
        MADE,
        "`tapestry COMMAND --help` says the same. With kubectl, `kubectl tapestry COMMAND` is another way to call it; "
        "`tapestry completion` makes a shell complete it.",
        "Commands that ask a cluster take the virtual cluster from `--kubeconfig`; else from `KUBECONFIG`, a world "
        "that is up in this folder, `~/.kube/config`, or the account of the pod that they run in.",
        exit_codes(),
    ]
    root = click.Context(main, info_name="tapestry", **main.context_settings)
    for title, entries in GROUPS.items():
        parts.append(f"## {title}")
        for name in entries:
            command = main.get_command(root, name)
            assert command is not None
            parts += command_parts(command, name, root)
    assert all(f"### `tapestry {name}`" in parts for name in COMMANDS)
    return "\n\n".join(parts) + "\n"


def command_parts(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    yield f"### `{context.command_path}`"
    yield cleandoc(command.help or "")
    yield "    " + " ".join([context.command_path, *command.collect_usage_pieces(context)])
    records = [each.get_help_record(context) for each in command.params]
    rows = [(f"`{names}`", " ".join(text.split())) for names, text in filter(None, records) if text]
    if rows:
        yield table(("option", "meaning"), rows)
    if command.epilog:
        yield from epilog_parts(command.epilog)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from command_parts(found, each, context)


def epilog_parts(epilog: str) -> Iterator[str]:
    examples, _, codes = epilog.removeprefix("\b\n").partition("\n\n")
    lines = examples.splitlines()[1:]
    yield "```text\n" + "\n".join(line.strip() for line in lines) + "\n```"
    if codes != exit_codes():
        yield codes


# -- kinds


def kinds_page() -> str:
    parts = [
        "# Kinds",
        MADE,
        "`tapestry manifests` prints the CustomResourceDefinitions that say the same to a cluster. A field that has "
        "neither a default nor the word *required* may be left out.",
    ]
    for kind in (CLUSTER_BINDING, POLICY):
        parts += kind_parts(kind)
    return "\n\n".join(parts) + "\n"


def kind_parts(kind: Kind[Any]) -> Iterator[str]:
    definition = crd(kind)["spec"]
    (version,) = definition["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    names = ", ".join(
        f"`{each}`" for each in (definition["names"]["plural"], *definition["names"].get("shortNames", ()))
    )
    yield f"## {kind.resource.kind}"
    scope = definition["scope"].lower()
    yield f"{kind.description} `{kind.resource.api_version}`, {scope}-scoped; {names} for kubectl."
    for part in ("spec", "status"):
        inside = schema["properties"][part]
        yield f"### {kind.resource.kind} {part}" + (f"\n\n{inside['description']}" if "description" in inside else "")
        yield table(("field", "type", "default", "meaning"), fields(inside))
        yield from (f"Rule: {each['fieldPath'].lstrip('.')} {each['message']}." for each in rules(inside))


def fields(schema: dict[str, Any], path: str = "") -> Iterator[Row]:
    """A row for each field, those of parts below their part; conditions are as everywhere in Kubernetes."""
    for name, inside in schema.get("properties", {}).items():
        where = f"{path}{name}"
        default = "*required*" if name in schema.get("required", ()) else shown(inside.get("default"))
        yield f"`{where}`", type_of(inside), default, CONVENTIONS.get(name) or meaning(inside)
        if name != "conditions":
            item = inside.get("items", inside)
            yield from fields(item, f"{where}[]." if item is not inside else f"{where}.")


def type_of(schema: dict[str, Any]) -> str:
    if "items" in schema:
        return f"list of {type_of(schema['items'])}"
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if "additionalProperties" in schema:
        return f"{type_of(schema['additionalProperties'])} by name"
    return str(schema.get("format") or schema.get("type", "anything"))


def shown(default: object) -> str:
    if default in (None, [], {}) or (isinstance(default, dict) and not any(default.values())):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def meaning(schema: dict[str, Any]) -> str:
    found = [" ".join(str(schema.get("description", "")).split())]
    limits = {**schema.get("items", {}), **schema}
    if "enum" in limits:
        found.append("One of " + ", ".join(f"`{each}`" for each in limits["enum"]) + ".")
    bounds = [limits.get(f"{key}imum") for key in ("min", "max")]
    match bounds:
        case int(least), int(most):
            found.append(f"{least} to {most}.")
        case int(least), None:
            found.append(f"At least {least}.")
    if "maxItems" in schema:
        found.append(f"At most {schema['maxItems']}.")
    if len(limits.get("pattern", "")) in range(1, LONGEST_PATTERN):
        found.append(f"`{limits['pattern']}`.")
    found += [f"{each['message'].capitalize()}." for each in rules(schema) if "fieldPath" not in each]
    return " ".join(filter(None, found))


def rules(schema: dict[str, Any]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = schema.get("x-kubernetes-validations", [])
    return found


# -- keys


def labels_page() -> str:
    parts = [
        "# Labels, annotations, taints, finalizers",
        MADE,
        f"All of ours begin with `{tapestry.apis.keys.PREFIX}`. Of a value over 63 characters a label has a prefix and "
        "a hash.",
    ]
    found: dict[str, list[Row]] = {}
    for section, key, text in key_rows():
        found.setdefault(section, []).append((f"`{key}`", text))
    for section, rows in found.items():
        title, *more = re.split(r"[:.]\s+", section.rstrip("."), maxsplit=1)
        parts += [f"## {title}", *(f"{each[0].upper()}{each[1:]}." for each in more)]
        parts.append(table(("key", "meaning"), rows))
    return "\n\n".join(parts) + "\n"


def key_rows() -> Iterator[tuple[str, str, str]]:
    """Each key of ours with the comment that heads its section, and its docstring."""
    text = Path(tapestry.apis.keys.__file__).read_text()
    headings = {number: line[2:] for number, line in enumerate(text.splitlines(), 1) if line.startswith("# ")}
    body = ast.parse(text).body
    for statement, after in zip(body, [*body[1:], None], strict=True):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(told))):
                value = getattr(tapestry.apis.keys, name)
                if value.startswith(tapestry.apis.keys.PREFIX):
                    section = headings[max(line for line in headings if line < statement.lineno)]
                    yield section, value, " ".join(told.split())


# -- what pages that people write must have


def events() -> set[str]:
    """The reasons of events that are written out where they are told."""
    return {
        call.args[1].value
        for path in SOURCE.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("normal", "warning")
        and re.search(r"\bevents$", ast.unparse(call.func.value))
        and len(call.args) > 1
        and isinstance(call.args[1], ast.Constant)
    }


def run(arguments: list[str]) -> int:
    stale = [name for name, text in pages().items() if not is_fresh(name, text)]
    if "--check" in arguments:
        print("\n".join(f"docs/reference/{name} is not as the code has it: `make reference`" for name in stale))
        return 1 if stale else 0
    for name in stale:
        (PAGES / name).write_text(pages()[name])
        print(f"docs/reference/{name}")
    return 0


def is_fresh(name: str, text: str) -> bool:
    path = PAGES / name
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
