"""Rules and dashboard: each metric is monitored, and only metrics that exist."""

import json
import re
from pathlib import Path

import yaml

import monitoring

ROOT = Path(__file__).parents[2]
METRICS = ROOT / "docs" / "reference" / "metrics.md"
SUFFIX = re.compile(r"_(bucket|count|sum)$")


def documented_metrics() -> set[str]:
    """Metrics of the reference, which another test compares with the code."""
    rows = [line.split(" | ")[0] for line in METRICS.read_text().splitlines() if line.startswith("| `tapestry_")]
    return {name for row in rows for name in re.findall(r"`(tapestry_\w+)`", row)}


def test_every_metric_is_in_a_panel_or_an_alert() -> None:
    monitored = {SUFFIX.sub("", name) for name in monitoring.monitored_metrics()}
    assert len(documented_metrics()) > 25
    assert monitored == documented_metrics()


def test_rules_have_severity_and_an_existing_section() -> None:
    [group] = yaml.safe_load((ROOT / monitoring.RULES).read_text())["groups"]
    page = (ROOT / monitoring.PAGE).read_text()
    assert len(group["rules"]) == len({rule["alert"] for rule in group["rules"]}) > 15
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert f"\n## {rule['alert']}\n" in page
        assert rule["annotations"]["runbook"] == f"{monitoring.PAGE}#{rule['alert'].lower()}"


def test_summaries_use_labels_of_the_expression() -> None:
    for alert in monitoring.ALERTS:
        for label in re.findall(r"\$labels\.(\w+)", alert.summary):
            assert re.search(rf"by \([^)]*\b{label}\b", alert.expression), (alert.name, label)


def test_panels_do_not_overlap() -> None:
    dashboard = json.loads((ROOT / monitoring.DASHBOARD).read_text())
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        covered = {
            (place["x"] + column, place["y"] + line) for column in range(place["w"]) for line in range(place["h"])
        }
        assert not covered & cells, panel["title"]
        assert max(column for column, _ in covered) < monitoring.COLUMNS
        cells |= covered
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_pages_link_to_files_of_the_chart() -> None:
    guide = (ROOT / "docs" / "guides" / "monitoring.md").read_text()
    assert {path.name for path in (ROOT / "charts/tapestry/files").iterdir()} <= set(
        re.findall(r"files/([\w.]+)\)", guide)
    )
