"""A real Prometheus finds the pods of a world, scrapes them, and evaluates the rules and the dashboard."""

from pathlib import Path

import pytest

import monitoring

from ..conftest import program
from .prometheus import running_prometheus
from .worlds import running_world

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def test_world_is_scraped(kube_assets: Path, tmp_path: Path) -> None:
    path = program(kube_assets, "prometheus", "monitoring-assets")
    with (
        running_world(tmp_path / "world", "--clusters", "1", "--nodes", "2") as world,
        # processes of a world serve metrics on loopback addresses, without authentication
        running_prometheus(path, tmp_path / "prometheus", world.kubeconfig) as server,
    ):
        leased = server.wait_for('tapestry_leased{resource="cpu"} > 0')
        assert leased[0]["metric"]["binding"] == "cluster-1"
        server.wait_for("count(count by (component) (tapestry_build_info{component=~'tapestry-manager|syncer'})) == 2")
        server.wait_for("count(sum by (election) (tapestry_is_leader) == 1) == 2")
        assert len(server.evaluated_rules()) == len(monitoring.ALERTS)
        assert server.query('ALERTS{alertstate="firing"}') == []
        server.evaluate_dashboard()
