"""The reference says what there is: every setting, every metric, every module on the map."""

from pathlib import Path

import pytest
from prometheus_client import REGISTRY

import tapestry.manager.app
import tapestry.syncer.app  # noqa: F401  with the manager's, all the metrics there are
from tapestry.apiext.config import ApiExtConfig
from tapestry.apiserver.config import ApiServerConfig
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
    ours = {family.name for family in REGISTRY.collect() if family.name.startswith("tapestry_")}
    assert len(ours) > 10
    assert {name for name in ours if f"`{name}`" not in text and f"`{name}_total`" not in text} == set()


def test_every_module_is_on_the_map() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = (
        "kube",
        "client",
        "controller",
        "controller/testing",
        "process",
        "apis",
        "manager",
        "syncer",
        "local",
        "apiext",
    )
    modules = [path.stem for package in packages for path in (ROOT / "src/tapestry" / package).glob("[!_]*.py")]
    assert [module for module in modules if f"`{module}`" not in text] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
