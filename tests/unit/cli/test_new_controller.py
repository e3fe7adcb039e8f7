"""Names and files of `tapestry new controller`.  tests/integration/test_new_controller.py runs the result."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tapestry.cli.main import main


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["new", "controller", *arguments, "--directory", str(folder)])
    return result.exit_code, result.output


def test_files_have_the_given_names(tmp_path: Path) -> None:
    code, output = run(tmp_path, "age-proxy", "--group", "net.example.com", "--plural", "ageproxies")
    assert code == 0, output
    folder = tmp_path / "age-proxy"
    source = (folder / "age_proxy" / "controller.py").read_text()
    assert 'AGE_PROXY_RESOURCE = Resource("net.example.com", "v1alpha1", "AgeProxy", "ageproxies")' in source
    assert not [path for path in folder.rglob("*") if path.is_file() and "${" in path.read_text()]
    objects = [
        obj for path in sorted((folder / "deploy").iterdir()) for obj in yaml.safe_load_all(path.read_text()) if obj
    ]
    assert {obj["kind"] for obj in objects} == {
        *("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Deployment"),
    }
    assert {obj["metadata"]["namespace"] for obj in objects if "namespace" in obj["metadata"]} == {"age-proxy-system"}


def test_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thing").mkdir()
    code, output = run(tmp_path, "thing")
    assert (code, output) == (1, f"Error: {tmp_path / 'thing'} exists; choose another name, or delete it\n")
    assert list((tmp_path / "thing").iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["../etc"],
        ["Upper"],
        ["x"],
        ["-rf"],
        ["a--b"],
        ["x" * 41],
        ["import"],
        ["on"],
        ["null"],
        ["tests"],
        ["json"],
        ["tapestry"],
        ["fine", "--group", "nodots"],
        ["fine", "--group", "1.5"],
        ["fine", "--group", "x." * 100 + "com"],
        ["fine", "--plural", "Fines"],
        ["fine", "--plural", "yes"],
    ],
)
def test_unusable_names_are_refused(arguments: list[str], tmp_path: Path) -> None:
    code, output = run(tmp_path, *arguments)
    assert code in (1, 2), output
    assert list(tmp_path.iterdir()) == []
