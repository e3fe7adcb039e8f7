"""Alerting rules, checked by promtool: each alert fires on series of its fault, and none on those of a healthy run."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import monitoring

from ..alert_series import FAULTS, HEALTHY
from ..conftest import program

ROOT = Path(__file__).parents[2]
RULES = ROOT / monitoring.RULES


@pytest.fixture(scope="module")
def promtool(kube_assets: Path) -> Path:
    return program(kube_assets, "promtool", "monitoring-assets")


def run(promtool: Path, *arguments: object) -> str:
    done = subprocess.run([promtool, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def rule_test(name: str, faults: dict[str, str | None], expected: set[str]) -> dict[str, Any]:
    """Return a test of promtool: after three hours, or a day for leftovers, exactly the expected alerts fire."""
    series = {**HEALTHY, **faults}
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items() if values is not None],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "25h" if "TapestryLeftovers" in expected else "3h",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(expected)],
            }
        ],
    }


def test_rules_and_scrape_example_are_valid(promtool: Path, tmp_path: Path) -> None:
    output = run(promtool, "check", "rules", RULES)
    assert f"{len(monitoring.ALERTS)} rules found" in output
    (tmp_path / "rules.yaml").write_text(RULES.read_text())
    (tmp_path / "scrape.yaml").write_text((RULES.parent / "scrape.yaml").read_text())
    run(promtool, "check", "config", "--syntax-only", tmp_path / "scrape.yaml")


def test_queries_of_the_dashboard_are_valid(promtool: Path) -> None:
    dashboard = json.loads((ROOT / monitoring.DASHBOARD).read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 30
    rules = [{"record": f"query:{index}", "expr": concrete(query)} for index, query in enumerate(queries)]
    done = subprocess.run(
        [promtool, "check", "rules"],
        input=json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def concrete(query: str) -> str:
    return query.replace("$__rate_interval", "5m").replace("$binding", ".*")


def test_each_alert_fires_on_its_fault(promtool: Path, tmp_path: Path) -> None:
    assert {alert for alert, _ in FAULTS} == {alert.name for alert in monitoring.ALERTS}
    tests = [rule_test("healthy", {}, set())]
    tests += [rule_test(alert, series, {alert}) for alert, series in FAULTS]
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": tests}))
    assert "SUCCESS" in run(promtool, "test", "rules", path)
