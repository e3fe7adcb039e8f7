"""Every requirement in docs/reference/kubecontroller.md names a test that exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| .+? \| .+? \| `(?P<file>tests/\S+?\.py)::(?P<name>\w+)` \|$", re.MULTILINE)


def test_every_requirement_names_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "reference" / "kubecontroller.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.endswith("| | |")]
    found = [(match["file"], match["name"]) for match in ROW.finditer(text)]
    assert len(found) == len(lines) - 1 > 50  # without the header
    assert [each for each in found if not exists(*each)] == []


def exists(file: str, name: str) -> bool:
    path = ROOT / file
    return path.is_file() and f"def {name}(" in path.read_text()
