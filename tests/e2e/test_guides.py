"""Run the commands of the guides in the folder of a running world, and compare their output."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from smells import CommandBlock, command_blocks

from .documents import ROOT, Reader, open_reader

RUNNER = "tests/e2e/test_guides.py"
WORLD = CommandBlock(0, None, ". .venv/bin/activate\ntapestry up\n", "...\nCtrl-C stops everything...\n...\n")


def blocks_of(guide: Path) -> list[CommandBlock]:
    return [block for block in command_blocks(guide.read_text()) if block.runner == RUNNER]


GUIDES = [path for path in sorted((ROOT / "docs" / "guides").glob("*.md")) if blocks_of(path)]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, kube_assets: Path) -> Iterator[Reader]:
    """Reader with kubectl and a running world."""
    with open_reader(tmp_path_factory.mktemp("guides")) as opened:
        opened.follow(WORLD)
        opened.type(f'. .venv/bin/activate\nexport PATH="{kube_assets}:$PATH"\n')
        yield opened


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_guide_commands_print_expected_output(guide: Path, reader: Reader) -> None:
    blocks = blocks_of(guide)
    assert blocks
    for block in blocks:
        reader.follow(block)


def test_important_guides_have_commands_that_run() -> None:
    followed = {path.stem for path in GUIDES}
    assert followed >= {"joining", "policies", "jobs", "gpus", "storage", "services", "api-access", "upgrading"}
