"""The Python snippets of the pages for controller authors are complete: they are imported, and their tests run.

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
from tapestry.controller import Registry
from tapestry.controller.config import ManagerConfig

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
SNIPPET = re.compile(r"^```python\n(?:# (?P<name>\w+)\.py\n)?(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def imported_snippets(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Write the snippets of a page to files and import them."""
    snippets = {
        match["name"] or f"snippet_{number}": match["code"]
        for number, match in enumerate(SNIPPET.finditer((GUIDES / page).read_text()))
    }
    for name, code in snippets.items():
        (folder / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    try:
        return {name: importlib.import_module(name) for name in snippets}
    finally:
        for name in snippets:
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("page", "snippets", "tests"),
    [("phases.md", 2, 1), ("stores.md", 1, 0), ("queues.md", 2, 1), ("testing-controllers.md", 1, 1)],
)
def test_snippets_are_complete(
    page: str, snippets: int, tests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = imported_snippets(page, tmp_path, monkeypatch)
    found = [value for module in modules.values() for name, value in vars(module).items() if name.startswith("test_")]
    assert (len(modules), len(found)) == (snippets, tests)
    for test in found:
        test()


async def test_drawings_are_those_of_the_snippet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = imported_snippets("phases.md", tmp_path, monkeypatch)
    registry = Registry()
    modules["snapshots"].register(registry)
    ((name, table),) = await registered_phase_tables(registry, "snapshots", ManagerConfig())
    page = (GUIDES / "phases.md").read_text()
    assert f"```text\n{name}\n{table.tree()}\n```" in page
    assert f"```mermaid\n{table.mermaid()}\n```" in page
    assert mermaid_document(name, table).startswith("---\ntitle: snapshots\n---\nstateDiagram-v2\n")
