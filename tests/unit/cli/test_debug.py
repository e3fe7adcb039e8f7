"""`tapestry debug collect` without a cluster."""

import json
import stat
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from tapestry.cli.debug import new_private_file
from tapestry.cli.main import main


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_bundle_without_cluster_has_doctor_and_manifest(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["debug", "collect", "-o", "trouble.tar.gz"])
    assert done.exit_code == 0, done.output
    file = tmp_path / "trouble.tar.gz"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with tarfile.open(file) as archive:
        names = {each.name.partition("/")[2]: each for each in archive}
        content = archive.extractfile(names["manifest.json"])
        assert content is not None
        manifest = json.load(content)
    assert {"manifest.json", "doctor.txt", "doctor.json"} == names.keys()
    (missing,) = manifest["missing"]
    assert missing["what"] == "the virtual cluster"
    assert "1 item could not be read" in done.output
    assert "doctor" in done.stderr


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "precious"
    file.write_text("mine")
    done = CliRunner().invoke(main, ["debug", "collect", "-o", str(file)])
    assert done.exit_code == 1
    assert "already exists; choose another name with -o" in done.output
    assert file.read_text() == "mine"


def test_failed_bundle_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), new_private_file(tmp_path / "half"):
        raise KeyboardInterrupt
    assert not (tmp_path / "half").exists()


def test_unwritable_folder_is_one_line_error() -> None:
    done = CliRunner().invoke(main, ["debug", "collect", "-o", "no/such/folder/file"])
    assert done.exit_code == 1
    assert "No such file or directory" in done.output
