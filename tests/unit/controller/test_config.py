import re
from pathlib import Path
from typing import Any

import pytest

from tapestry.controller import app, manager
from tapestry.controller.config import ManagerConfig
from tapestry.process.config import ConfigError, load_config, settings

READERS = "".join(Path(module.__file__).read_text() for module in (manager, app))


def loaded(**flags: Any) -> ManagerConfig:
    return load_config(
        ManagerConfig, file=None, environ={}, flags={key.replace("__", "."): flags[key] for key in flags}
    )


def test_every_setting_has_a_default() -> None:
    config = loaded()
    assert config.controllers == ["*"]
    assert not config.leader_election.enabled
    assert (config.metrics.address, config.probes.address) == ("127.0.0.1:8080", ":8081")


@pytest.mark.parametrize("setting", settings(ManagerConfig).values(), ids=lambda setting: setting.path)
def test_every_setting_is_read(setting: Any) -> None:
    field = re.sub("([A-Z])", r"_\1", setting.path.rpartition(".")[2]).lower()
    assert re.search(rf"\bconfig\.(\w+\.)?{field}\b", READERS)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"workers": 0}, "command line: workers: expected a whole number >= 1, got 0"),
        ({"shutdownSeconds": 600}, "command line: shutdownSeconds: expected a number <= 60.0, got 600"),
        ({"log__level": "loud"}, "command line: log.level: expected one of debug, error, info, warning, got 'loud'"),
        ({"metrics__address": "8080"}, "metrics: '8080': expected HOST:PORT"),
        ({"probes__address": "localhost"}, "probes: 'localhost': expected HOST:PORT"),
        ({"metrics__certificate": "cert.pem"}, "metrics: certificate and key belong together"),
        ({"metrics__clientCa": "ca.pem"}, "metrics: certificate and key belong together"),
        ({"filter__labels": "app in (web"}, "filter: labels: "),
    ],
)
def test_invalid_setting_is_rejected_with_path(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(**flags)
    assert str(refused.value).startswith(message)
