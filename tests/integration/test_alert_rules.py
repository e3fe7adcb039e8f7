"""Alerting rules, checked by promtool: each alert fires on series of its fault, and none on those of a healthy run."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import monitoring

ROOT = Path(__file__).parents[2]
RULES = ROOT / monitoring.RULES
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

LAG = 'tapestry_event_loop_lag_seconds_bucket{pod="m-1", le="%s"}'
SYNC = 'tapestry_sync_seconds_bucket{controller="pods", le="%s"}'
HEALTHY = {
    'tapestry_build_info{component="tapestry-manager", version="1"}': "1x1600",
    'tapestry_is_leader{election="manager", pod="m-1"}': "1x1600",
    'tapestry_is_leader{election="manager", pod="m-2"}': "0x1600",
    'tapestry_elections_total{election="manager", outcome="won"}': "1x1600",
    'tapestry_physical_cluster_unreachable{binding="east"}': "0x1600",
    'tapestry_physical_cluster_last_seen_timestamp_seconds{binding="east"}': "0+60x1600",
    'tapestry_bindings{phase="Failed"}': "0x1600",
    "tapestry_leftovers": "0x1600",
    'tapestry_findings{binding="east", invariant="Twins"}': "0x1600",
    'tapestry_mended_total{binding="east", invariant="Twins"}': "0x1600",
    'tapestry_reconcile_errors_total{controller="pods", reason="Conflict"}': "0+1x1600",
    'tapestry_reconcile_seconds_count{controller="pods", outcome="ok"}': "0+100x1600",
    'tapestry_queue_age_seconds{controller="pods", pod="s-1"}': "1x1600",
    SYNC % "1": "0+100x1600",
    SYNC % "60": "0+100x1600",
    SYNC % "+Inf": "0+100x1600",
    LAG % "0.1": "0+100x1600",
    LAG % "5": "0+100x1600",
    LAG % "+Inf": "0+100x1600",
    'tapestry_watch_restarts_total{resource="pods", reason="closed", pod="s-1"}': "0+1x1600",
    'tapestry_client_requests_total{verb="get", resource="pods", code="200", pod="s-1"}': "0+100x1600",
    'tapestry_client_requests_total{verb="get", resource="pods", code="404", pod="s-1"}': "0+50x1600",
    'tapestry_client_requests_total{verb="get", resource="pods", code="500", pod="s-1"}': "0+1x1600",
    'tapestry_pods_total{binding="east", outcome="mapped", reason=""}': "0+10x1600",
    'tapestry_pods_total{binding="east", outcome="failed", reason="Reclaimed"}': "0+9x1600",
    'tapestry_leased{binding="east", resource="cpu"}': "10x1600",
    'tapestry_used{binding="east", resource="cpu"}': "9x1600",
    'tapestry_events_dropped_total{why="buffer full"}': "0x1600",
    'tapestry_audit_dropped_total{pod="m-1"}': "0x1600",
}
"""Values of one sample per minute, as promtool writes them: START+STEPxCOUNT."""

FAULTS: dict[str, dict[str, str | None]] = {
    "TapestryManagerAbsent": {'tapestry_build_info{component="tapestry-manager", version="1"}': None},
    "TapestryNoLeader": {'tapestry_is_leader{election="manager", pod="m-1"}': "1x60 0x1540"},
    "TapestrySeveralLeaders": {'tapestry_is_leader{election="manager", pod="m-2"}': "0x60 1x1540"},
    "TapestryElectionsUnstable": {'tapestry_elections_total{election="manager", outcome="lost"}': "0+1x1600"},
    "TapestryClusterUnreachable": {'tapestry_physical_cluster_unreachable{binding="east"}': "0x60 1x1540"},
    "TapestryClusterSilent": {
        'tapestry_physical_cluster_last_seen_timestamp_seconds{binding="east"}': "0+60x60 3600x1540"
    },
    "TapestryBindingsFailed": {'tapestry_bindings{phase="Failed"}': "0x60 1x1540"},
    "TapestryLeftovers": {"tapestry_leftovers": "1x1600"},
    "TapestryInconsistent": {'tapestry_findings{binding="east", invariant="Twins"}': "0x60 2x1540"},
    "TapestryRepairsFrequent": {'tapestry_mended_total{binding="east", invariant="Twins"}': "0+1x1600"},
    "TapestryReconcileErrors": {'tapestry_reconcile_errors_total{controller="pods", reason="Conflict"}': "0+50x1600"},
    "TapestryQueueStuck": {'tapestry_queue_age_seconds{controller="pods", pod="s-1"}': "0+60x1600"},
    "TapestrySyncSlow": {SYNC % "1": "0+10x1600"},
    "TapestryEventLoopBlocked": {LAG % "0.1": "0+10x1600"},
    "TapestryWatchesRestart": {
        'tapestry_watch_restarts_total{resource="pods", reason="closed", pod="s-1"}': "0+30x1600"
    },
    "TapestryRequestsFail": {
        'tapestry_client_requests_total{verb="get", resource="pods", code="429", pod="s-1"}': "0+100x1600"
    },
    "TapestryPodsRejected": {
        'tapestry_pods_total{binding="east", outcome="refused", reason="PodSecurity"}': "0+10x1600"
    },
    "TapestryLeaseExceeded": {'tapestry_used{binding="east", resource="cpu"}': "11x1600"},
    "TapestryEventsLost": {'tapestry_events_dropped_total{why="buffer full"}': "0+10x1600"},
    "TapestryAuditRecordsLost": {'tapestry_audit_dropped_total{pod="m-1"}': "0+1x1600"},
    "TapestryVersionsDiffer": {'tapestry_build_info{component="syncer", version="2"}': "1x1600"},
}


@pytest.fixture(scope="module")
def promtool(kube_assets: Path) -> Path:
    path = kube_assets / "promtool"
    if not path.exists():
        pytest.skip(f"no promtool in {kube_assets}: run make monitoring-assets")
    return path


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
    assert set(FAULTS) == {alert.name for alert in monitoring.ALERTS}
    tests = [rule_test("healthy", {}, set())]
    tests += [rule_test(alert, series, {alert}) for alert, series in FAULTS.items()]
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": tests}))
    assert "SUCCESS" in run(promtool, "test", "rules", path)
