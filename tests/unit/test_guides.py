"""Checks of links, commands, options and objects in the guides and concepts.

`tests/e2e/test_guides.py` runs the commands.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from smells import command_blocks
from tapestry.apis.clusterbindings import CLUSTER_BINDING
from tapestry.cli.main import main
from tapestry.kube.crds import decode_spec
from tapestry.syncer.leasing import PolicySide
from tapestry.syncer.policies import parse_policy

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "README.zh-CN.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    *sorted(DOCS.rglob("*.md")),
]
GUIDES = [path for path in DOCUMENTS if path.parent.name in ("guides", "concepts", "docs")]

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`[^`\n]*`")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEREDOC = re.compile(r"<<'EOF'\n(.*?)^EOF$", re.MULTILINE | re.DOTALL)
TYPED = re.compile(r"(?:^|[`(|;&]|\bdo\b|\$ )\s*(tapestry [^`|;&#\n>)]*)", re.MULTILINE)
QUOTED = re.compile(r'"[^"\n]*"')


def anchors(text: str) -> set[str]:
    """Valid link fragments: headings as GitHub names them, and explicit anchors."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    plain = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return plain | set(re.findall(r'<a id="([^"]+)">', text))


def links_in(text: str) -> list[str]:
    return LINK.findall(CODE.sub("", FENCED.sub("", text)))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_has_a_target(document: Path) -> None:
    broken = []
    for link in links_in(document.read_text()):
        place, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = document.parent / place if place else document
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            broken.append(link)
    assert broken == []


def test_every_document_is_in_the_index() -> None:
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in links_in((DOCS / "README.md").read_text())}
    there = {
        path for folder in ("guides", "concepts", "reference", "tutorials") for path in (DOCS / folder).glob("*.md")
    }
    translations = {path for path in there if path.name.endswith(".zh-CN.md")}
    assert there - translations - linked == set()


# -- reasons and test names


def reasons() -> list[str]:
    rows = (DOCS / "reference" / "events.md").read_text().splitlines()
    return [each for row in rows if row.startswith("| `") for each in re.findall(r"`([A-Z]\w+)`", row.split("|")[1])]


def test_every_reason_is_in_the_troubleshooting_guide() -> None:
    text = (DOCS / "guides" / "troubleshooting.md").read_text()
    assert len(reasons()) > 50
    assert [each for each in reasons() if f"`{each}`" not in text] == []


def test_every_test_named_in_the_guarantees_exists() -> None:
    claimed = set(re.findall(r"`(test_\w+)`", (DOCS / "concepts" / "failures.md").read_text()))
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(claimed) > 30
    assert claimed - set(re.findall(r"^(?:async )?def (test_\w+)", sources, re.MULTILINE)) == set()


# -- commands


def typed_in(text: str) -> Iterator[list[str]]:
    """The `tapestry` commands in a document, split into words."""
    for match in TYPED.finditer(QUOTED.sub("TEXT", text.replace("\\\n", " "))):
        words = match[1].partition(" -- ")[0].split()
        if len(words) > 1 and not words[1].startswith(("-", ".")):
            yield words[1:]


def unknown_in(words: list[str]) -> str:
    """Describe an unknown subcommand or unknown options.  Empty if all exist; arguments are not checked."""
    command: click.Command | None = main
    rest = list(words)
    while isinstance(command, click.Group) and rest and rest[0][0].islower():
        command = command.get_command(click.Context(command), rest.pop(0))
    if command is None:
        return " ".join(words)
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
    given = {word.partition("=")[0] for word in rest if re.match("--?[a-zA-Z]", word)}
    return "" if given <= known else f"{' '.join(words)}: {', '.join(sorted(given - known))}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_and_option_exists(document: Path) -> None:
    assert list(filter(None, map(unknown_in, typed_in(document.read_text())))) == []


def test_misspelt_commands_and_options_are_detected() -> None:
    text = "Run `tapestry join east --lease 50%`, then `tapestry explain pod|node NAME`; `tapestry up` is a world."
    assert list(typed_in(text)) == [["join", "east", "--lease", "50%"], ["explain", "pod"], ["up"]]
    assert unknown_in(["join", "east", "--leese", "50%"]) == "join east --leese 50%: --leese"
    assert unknown_in(["jion", "east"]) == "jion east"
    assert unknown_in(["k", "get", "pods", "-A"]) == ""


# -- objects


def objects_in(document: Path) -> Iterator[Any]:
    text = document.read_text()
    scripts = "\n".join(block.script for block in command_blocks(text))
    for found in (*YAML.findall(text), *HEREDOC.findall(scripts)):
        yield from filter(None, yaml.safe_load_all(found))


def fault_of(obj: Any) -> str:
    """Return the validation error of an object of our kinds."""
    metadata = {**obj.get("metadata", {}), "creationTimestamp": "2026-01-01T00:00:00Z"}
    try:
        match obj.get("kind"):
            case "ClusterBinding":
                decode_spec(CLUSTER_BINDING, obj)
            case "ResourceLeasingPolicy":
                parse_policy({**obj, "metadata": metadata}, PolicySide.OWNER, "UTC")
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("document", GUIDES, ids=lambda path: path.stem)
def test_every_object_of_our_kinds_is_valid(document: Path) -> None:
    assert list(filter(None, map(fault_of, objects_in(document)))) == []


def test_invalid_object_is_detected() -> None:
    spec = {"cluster": "east", "timeZone": "Berlin"}
    policy = {"kind": "ResourceLeasingPolicy", "metadata": {"name": "p"}, "spec": spec}
    assert fault_of(policy).startswith("spec.timeZone: 'Berlin'")
    assert fault_of({"kind": "ClusterBinding", "metadata": {}, "spec": {"clusterID": "East"}}) != ""


def test_guides_contain_objects_of_our_kinds() -> None:
    kinds = {
        obj["kind"] for document in GUIDES for obj in objects_in(document) if isinstance(obj, dict) and "kind" in obj
    }
    assert {"ClusterBinding", "ResourceLeasingPolicy", "Job", "Pod"} <= kinds
