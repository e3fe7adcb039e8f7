"""The documentation is complete: every setting, metric, event, log message and module is in it, and no link is dead."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec import structs
from prometheus_client import REGISTRY

import reference
import tapestry.apiserver.access.auditing
import tapestry.manager.app
import tapestry.planes.plane_metrics
import tapestry.syncer.app  # noqa: F401  with these modules, all the metrics there are
from smells import command_blocks
from tapestry.apiext.config import ApiExtConfig
from tapestry.apis import keys
from tapestry.apis.clusterbindings import ClusterBindingSpec, Isolation, SyncBack, TenantDns, TenantSync
from tapestry.apis.hostclusters import HostClusterSpec
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.serving.metrics import ServerCollector
from tapestry.apiserver.storage.local_store import LocalStore
from tapestry.apiserver.storage.log import MemoryLog
from tapestry.controller.config import ManagerConfig
from tapestry.manager.config import BindingsConfig
from tapestry.process.config import Section, settings
from tapestry.syncer.config import SyncerConfig

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("config", [ManagerConfig, BindingsConfig, SyncerConfig, ApiServerConfig, ApiExtConfig])
def test_every_setting_is_in_the_reference(config: type[Section]) -> None:
    text = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    assert [path for path in settings(config) if f"`{path}`" not in text] == []


def test_every_metric_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    server = ServerCollector(LocalStore(MemoryLog(), ThreadPoolExecutor(1)), dict, dict)
    families = (*REGISTRY.collect(), *server.collect())
    ours = {family.name for family in families if family.name.startswith(("tapestry_", "apiserver_"))}
    assert len(ours) > 50
    assert {name for name in ours if f"`{name}`" not in text and f"`{name}_total`" not in text} == set()


def test_every_event_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "events.md").read_text()
    documented = reference.events()
    assert len(documented) > 20
    assert {reason for reason in documented if f"`{reason}`" not in text} == set()


def test_log_messages_are_in_the_reference() -> None:
    """Exactly those that the code logs at warning and above, with their levels, a meaning and an action."""
    text = (ROOT / "docs" / "reference" / "logs.md").read_text()
    rows = re.findall(r"^\| `(.+?)` \| ([a-z, ]+) \| .+? \| .+? \|$", text, flags=re.MULTILINE)
    assert len(rows) == len(dict(rows))
    assert {message: set(levels.split(", ")) for message, levels in rows} == reference.log_messages()


PAGES = reference.pages()


@pytest.mark.parametrize("page", PAGES)
def test_generated_page_is_fresh(page: str) -> None:
    assert reference.is_fresh(page, PAGES[page]), f"{page} is stale: `make reference`"


def test_every_module_has_a_purpose() -> None:
    packages = reference.packages()
    assert {path.name for path in packages} == {path.parent.name for path in reference.SOURCE.glob("*/__init__.py")}
    rows = [row for package in packages for row in reference.module_rows(package, package)]
    assert len(rows) > 400
    assert [module for module, purpose in rows if not purpose.strip("*")] == []


def test_every_key_and_every_field_is_explained() -> None:
    ours = {key for key in vars(keys).values() if isinstance(key, str) and key.startswith(keys.PREFIX)} - {keys.PREFIX}
    assert ours == {key for _, key, _ in reference.key_rows()}
    empty = [line for line in reference.kinds_page().splitlines() if line.endswith("|  |")]
    assert empty == []


def test_the_readme_is_short() -> None:
    """Without what its commands show."""
    text = re.sub(r"^```text$.*?^```$", "", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(text.splitlines()) <= 180


FOLLOWED = "tests/e2e/test_documents.py"
"""Run the README and the tutorials, but not their translations."""
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.mark.parametrize("document", [ROOT / "README.md", *TUTORIALS], ids=lambda path: path.stem)
def test_every_command_of_readme_and_tutorials_runs(document: Path) -> None:
    runners = {block.runner for block in command_blocks(document.read_text())}
    assert FOLLOWED in runners
    assert [runner for runner in runners if runner is None or not (ROOT / runner).is_file()] == []


@pytest.mark.parametrize("path", ["README", "docs/tutorials/first-steps"])
def test_a_translation_has_the_commands_of_its_original(path: str) -> None:
    original, translation = ((ROOT / f"{path}{end}").read_text() for end in (".md", ".zh-CN.md"))
    expected, documented = (
        [(block.script, block.output) for block in command_blocks(each)] for each in (original, translation)
    )
    assert expected == documented


@pytest.mark.parametrize("path", ["README", "docs/tutorials/first-steps"])
def test_translation_has_headings_and_links_of_original(path: str) -> None:
    original, translation = ((ROOT / f"{path}{end}").read_text() for end in (".md", ".zh-CN.md"))
    assert headings(original) == headings(translation)
    assert links(original) == links(translation)


def headings(text: str) -> list[str]:
    """The levels of the headings, in order."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^(#+) ", prose, flags=re.MULTILINE)


def links(text: str) -> set[str]:
    """The targets of the links, which may be translations."""
    return {target.replace(".zh-CN.md", ".md") for target in re.findall(r"\]\(([^)#]+)", text)}


def test_the_tutorial_shows_the_controller_as_it_is() -> None:
    text = (ROOT / "docs" / "tutorials" / "first-controller.md").read_text()
    pieces = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    code = (ROOT / "examples" / "at" / "controller.py").read_text()
    assert len(pieces) == 3
    assert "\n\n".join(pieces) == code


DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", document.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_each_question_on_places_has_an_existing_file() -> None:
    text = (ROOT / "docs" / "concepts" / "where-to-change.md").read_text()
    questions = re.findall(r"^(\d+)\. \.\.\. ", text, flags=re.MULTILINE)
    answers = dict(re.findall(r"\| (\d+) \| `([^`]+)`", text))
    assert questions == [str(number) for number in range(1, len(questions) + 1)]
    assert len(questions) >= 20
    assert sorted(answers) == sorted(questions)
    assert [path for path in answers.values() if not (reference.SOURCE / path).is_file()] == []


def test_every_field_of_tenants_is_in_the_guide() -> None:
    text = (ROOT / "docs" / "guides" / "tenants.md").read_text()
    nested = {"sync": TenantSync, "isolation": Isolation, "dns": TenantDns, "syncBack": SyncBack}
    names = {each.encode_name for type in (ClusterBindingSpec, HostClusterSpec) for each in structs.fields(type)}
    names -= set(nested)
    names |= {f"{name}.{each.encode_name}" for name, type in nested.items() for each in structs.fields(type)}
    rows = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    assert {name for name in names if f"`{name}`" not in rows} == set()
