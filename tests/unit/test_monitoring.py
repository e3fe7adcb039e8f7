"""Rules and dashboard: each metric is monitored, and only metrics that exist."""

import json
import re
from pathlib import Path

import yaml

import monitoring

ROOT = Path(__file__).parents[2]
SUFFIX = re.compile(r"_(bucket|count|sum|total)$")


def test_every_metric_is_in_a_panel_or_an_alert() -> None:
    """Those of the reference, which other tests compare with the code: planes register theirs only while they run."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    names = {name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert len(names) > 50
    assert {SUFFIX.sub("", name) for name in names} - {
        SUFFIX.sub("", name) for name in monitoring.monitored_metrics()
    } == set()


def test_panels_and_alerts_use_metrics_of_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in monitoring.monitored_metrics()}
    assert {name for name in names if f"`{name}`" not in text} == set()


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


def test_guide_links_to_the_files() -> None:
    guide = (ROOT / "docs" / "guides" / "monitoring.md").read_text()
    assert set(re.findall(r"files/([\w.]+)\)", guide)) == {"scrape.yaml", "rules.yaml", "dashboard.json"}
