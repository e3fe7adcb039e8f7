"""The charts of the tree on real clusters, for one Job: the short part of test_installed_release.py.

The manager and the syncer are containers of our image on one node, and the Job is a container on another.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tapestry.local.control_planes import kubelet_flags

from .clusters import PhysicalCluster
from .conftest import control_plane_of
from .nodes import Kit, RealNode
from .test_installed_release import (
    ROOT,
    Site,
    install_chart,
    installed_objects,
    join,
    prepare,
    run_job,
    unbind,
    uninstall_chart,
    virtual_cluster,
    wait_for_node,
)

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]


@pytest.fixture
def site(node_network: None, node_kit: Kit, tmp_path: Path) -> Iterator[Site]:
    with (
        virtual_cluster(tmp_path, node_kit) as virtual,
        control_plane_of(tmp_path / "east", node_kit, kubelet_flags(tmp_path / "east")) as plane,
        RealNode("n1", 1, plane, tmp_path / "east-node", node_kit) as node,
    ):
        node.wait_until_ready()
        yield Site(virtual, {"east": PhysicalCluster(plane, node_kit.assets, node)}, tmp_path)


def test_job_runs_in_a_prepared_cluster(site: Site) -> None:
    before = installed_objects(site.virtual), installed_objects(site.physical["east"])
    try:
        install_chart(site, str(ROOT / "charts/tapestry"), "--set=manager.replicas=1,syncer.replicas=1")
        prepare(site, "east", str(ROOT / "charts/tapestry-worker"))
        join(site, "east")
        wait_for_node(site, "east")
        run_job(site)
        unbind(site)
        uninstall_chart(site)
    except BaseException as error:
        error.add_note(site.diagnostics())
        raise
    kinds = {each.split()[0] for each in installed_objects(site.virtual) - before[0]}
    assert kinds <= {"CustomResourceDefinition", "Namespace", "ServiceAccount"}  # the namespace of the release
    left = installed_objects(site.physical["east"]) - before[1]
    assert left == {"CustomResourceDefinition resourceleasingpolicies.cloud.tencent.com "}
