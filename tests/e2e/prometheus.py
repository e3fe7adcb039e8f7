"""A real Prometheus with the example configuration of the chart."""

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

FILES = Path(__file__).parents[2] / "charts" / "tapestry" / "files"
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
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def wait_for(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression, as soon as it has any."""
        return wait_for(lambda: self.query(expression), bool)

    def evaluated_rules(self) -> list[dict[str, Any]]:
        """Return the alerting rules after each was evaluated without an error."""
        return wait_for(self.rules, lambda rules: rules and all(rule["health"] == "ok" for rule in rules))

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def evaluate_dashboard(self) -> None:
        """Evaluate the queries of all panels. Raise OSError if one is invalid."""
        dashboard = json.loads((FILES / "dashboard.json").read_text())
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                self.query(target["expr"].replace("$__rate_interval", "1m").replace("$binding", ".*"))


@contextmanager
def running_prometheus(
    program: Path, folder: Path, kubeconfig: Path, token: Path | None = None
) -> Iterator[Prometheus]:
    """Run Prometheus, which is not a pod: it finds pods with a kubeconfig, and sends the token in a file, if any."""
    config = yaml.safe_load((FILES / "scrape.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    [job] = config["scrape_configs"]
    if token is None:
        del job["authorization"]
    else:
        job["authorization"]["credentials_file"] = str(token)
    job["kubernetes_sd_configs"][0]["kubeconfig_file"] = str(kubeconfig)
    folder.mkdir()
    (folder / "rules.yaml").write_text((FILES / "rules.yaml").read_text())
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    options = [f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("wb") as log:
        command = [program, *options, f"--web.listen-address={address}"]
        with subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                yield Prometheus(address)
            finally:
                process.kill()


def wait_for(read: Callable[[], T], is_done: Callable[[T], object], seconds: float = SECONDS) -> T:
    """Return the first value that is done; Prometheus has no watches."""
    due = time.monotonic() + seconds
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
    pytest.fail(f"not in {seconds} s; the last value is {last}")
