"""Run the commands of the README and the tutorials, and compare their output."""

from pathlib import Path

import pytest

from .documents import ROOT, blocks_of, open_reader, pattern_of
from .worlds import leftover_processes

TRANSLATION = ".zh-CN.md"
"""Suffix of translations. tests/unit/test_documentation.py checks that they have the same commands."""
DOCUMENTS = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md")))
    if not path.name.endswith(TRANSLATION)
]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_document_commands_print_expected_output(document: Path, tmp_path: Path) -> None:
    blocks = blocks_of(document)
    assert blocks
    with open_reader(tmp_path) as reader:
        for block in blocks:
            reader.follow(block)
    assert leftover_processes(tmp_path) == []


@pytest.mark.parametrize(
    ("expected", "output"),
    [
        ("a  b\n", "a b   \n"),
        ("a ...\n", "a anything at all\n"),
        ("owner/third-... 5\n", "owner/third-x7 12\n"),
        ("a\n...\nb\n", "a\nx\ny\nb\n"),
        ("a\n...\nb\n", "a\nb\n"),
    ],
)
def test_matching_output_is_accepted(expected: str, output: str) -> None:
    assert pattern_of(expected).fullmatch(output)


@pytest.mark.parametrize(
    ("expected", "output"),
    [
        ("a b\n", "a c\n"),
        ("pods 5\n", "pods 0\n"),
        ("pods 0\n", "pods 5\n"),
        ("cluster-1\n", "cluster-2\n"),
        ("a\n", "a\nb\n"),
        ("a\n...\nb\n", "b\na\n"),
    ],
)
def test_different_output_is_rejected(expected: str, output: str) -> None:
    assert not pattern_of(expected).fullmatch(output)
