"""Persistent port and token of a local control plane."""

from pathlib import Path

import pytest

from tapestry.local.control_planes import GENERATED_FILE, api_server_config


def test_cluster_keeps_port_and_token(tmp_path: Path) -> None:
    first, token = api_server_config(tmp_path), (tmp_path / "tokens.csv").read_text()
    assert api_server_config(tmp_path) == first
    assert (tmp_path / "tokens.csv").read_text() == token


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"port": "none", "token": "x"}'])
def test_unreadable_generated_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / GENERATED_FILE
    file.write_text(text)
    with pytest.raises(ValueError, match="delete it to generate a new port and token") as raised:
        api_server_config(tmp_path)
    assert str(raised.value).startswith(f"{file} cannot be read (")
