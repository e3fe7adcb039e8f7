"""A real Prometheus finds the pods of a world, scrapes them, and evaluates the rules and the dashboard."""

import json
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

import monitoring

from ..conftest import program
from .worlds import running_world

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
FILES = ROOT / "charts" / "tapestry" / "files"
SECONDS = 120
POLL = 0.5
T = TypeVar("T")


@dataclass(frozen=True)
class Prometheus:
    address: str

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of a response. Raise OSError without one, or if it is an error."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        return self.get("query", query=expression)["result"]


@contextmanager
def prometheus(path: Path, folder: Path, kubeconfig: Path) -> Iterator[Prometheus]:
    """Run Prometheus with the example configuration. It finds pods with a kubeconfig, as it is not one of them."""
    config = yaml.safe_load((FILES / "scrape.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    [job] = config["scrape_configs"]
    del job["authorization"]  # processes of a world serve metrics on loopback addresses, without authentication
    job["kubernetes_sd_configs"][0]["kubeconfig_file"] = str(kubeconfig)
    folder.mkdir()
    (folder / "rules.yaml").write_text((FILES / "rules.yaml").read_text())
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    options = [f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("wb") as log:
        command = [path, *options, f"--web.listen-address={address}"]
        with subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                yield Prometheus(address)
            finally:
                process.kill()


def wait_for(read: Callable[[], T], is_done: Callable[[T], object]) -> T:
    """Return the first value that is done; Prometheus has no watches."""
    due = time.monotonic() + SECONDS
    last: object = None
    while time.monotonic() < due:
        try:
            value = read()
        except OSError as error:
            last = error
        else:
            if is_done(value):
                return value
            last = value
        threading.Event().wait(POLL)
    pytest.fail(f"not in {SECONDS} s; the last value is {last}")


def test_world_is_scraped(kube_assets: Path, tmp_path: Path) -> None:
    path = program(kube_assets, "prometheus", "monitoring-assets")
    with (
        running_world(tmp_path / "world", "--clusters", "1", "--nodes", "2") as world,
        prometheus(path, tmp_path / "prometheus", world.kubeconfig) as server,
    ):
        leased = wait_for(lambda: server.query('tapestry_leased{resource="cpu"} > 0'), bool)
        assert leased[0]["metric"]["binding"] == "cluster-1"
        both = "count(count by (component) (tapestry_build_info{component=~'tapestry-manager|syncer'})) == 2"
        wait_for(lambda: server.query(both), bool)
        wait_for(lambda: server.query("count(sum by (election) (tapestry_is_leader) == 1) == 2"), bool)
        groups = wait_for(
            lambda: server.get("rules")["groups"],
            lambda groups: all(rule["health"] == "ok" for rule in rules_in(groups)),
        )
        assert len(rules_in(groups)) == len(monitoring.ALERTS)
        firing = server.query('ALERTS{alertstate="firing"}')
        assert firing == []
        dashboard = json.loads((FILES / "dashboard.json").read_text())
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                server.query(target["expr"].replace("$__rate_interval", "1m").replace("$binding", ".*"))


def rules_in(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rule for group in groups for rule in group["rules"]]
