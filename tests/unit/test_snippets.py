"""The Python snippets of README and docs are complete: they are imported, and their tests run.

The first line of a snippet may name its file, so that others on the page can import it.
"""

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tapestry.cli.phases import mermaid_document
from tapestry.cli.phases import phase_tables as registered_phase_tables
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller import Registry
from tapestry.controller.config import ManagerConfig
from tapestry.controller.testing import Scenario, perturb
from tapestry.kube.objects import object_named
from tapestry.kube.resources import NAMESPACES, NETWORK_POLICIES

ROOT = Path(__file__).parents[2]
SNIPPET = re.compile(r"^```python\n(?:# (?P<name>\w+)\.py\n)?(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
PHASES = "docs/guides/phases.md"
TESTS = {PHASES: 1, "docs/guides/queues.md": 1, "docs/guides/testing-controllers.md": 1}
"""Number of tests in the snippets of each page that has some."""

PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"))
    if SNIPPET.search(page.read_text()) and page.name != "first-controller.md"  # shows one file in three pieces
)


def imported_snippets(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Write the snippets of a page to files and import them."""
    snippets = {
        match["name"] or f"snippet_{number}": match["code"]
        for number, match in enumerate(SNIPPET.finditer((ROOT / page).read_text()))
    }
    for name, code in snippets.items():
        (folder / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    try:
        return {name: importlib.import_module(name) for name in snippets}
    finally:
        for name in snippets:
            sys.modules.pop(name, None)


@pytest.mark.parametrize("page", PAGES)
def test_snippets_are_complete(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = imported_snippets(page, tmp_path, monkeypatch)
    found = [value for module in modules.values() for name, value in vars(module).items() if name.startswith("test_")]
    assert len(found) == TESTS.get(page, 0)
    for test in found:
        test()


def test_every_page_with_tests_is_found() -> None:
    assert TESTS.keys() <= set(PAGES)
    assert {"README.md", "README.zh-CN.md", "docs/guides/apiext.md", "docs/tutorials/kubecontroller.md"} <= set(PAGES)


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_controller_of_readme_restores_its_policies(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def world(client: Client) -> None:
        await client.create(NAMESPACES, object_named("tenant"))
        await wait_for(client, NETWORK_POLICIES, "deny", "tenant", until=bool)
        await client.delete(NETWORK_POLICIES, object_named("deny", "tenant"))
        policy = await wait_for(client, NETWORK_POLICIES, "deny", "tenant", until=bool)
        await client.patch(NETWORK_POLICIES, policy, {"spec": {"ingress": [{}]}})
        await wait_for(client, NETWORK_POLICIES, "deny", "tenant", until=lambda it: not it["spec"].get("ingress"))

    (module,) = imported_snippets(page, tmp_path, monkeypatch).values()
    perturb(Scenario("deny", [NAMESPACES, NETWORK_POLICIES], module.setup, world)).check()


async def test_drawings_are_those_of_the_snippet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = imported_snippets(PHASES, tmp_path, monkeypatch)
    registry = Registry()
    modules["snapshots"].register(registry)
    ((name, table),) = await registered_phase_tables(registry, "snapshots", ManagerConfig())
    page = (ROOT / PHASES).read_text()
    assert f"```text\n{name}\n{table.tree()}\n```" in page
    assert f"```mermaid\n{table.mermaid()}\n```" in page
    assert mermaid_document(name, table).startswith("---\ntitle: snapshots\n---\nstateDiagram-v2\n")
