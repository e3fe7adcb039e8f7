"""Names of local clusters."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.names import dns_label_error
from tapestry.local.cluster import ClusterPlan


@given(st.text(min_size=1, max_size=80).filter(lambda name: "/" not in name and "\0" not in name))
def test_any_folder_gives_valid_cluster_name(name: str) -> None:
    assert dns_label_error(f"{ClusterPlan(Path('/data') / name).name}-500") is None


@pytest.mark.parametrize(
    ("folder", "name"), [("a_b", "a-b"), ("East.1", "east-1"), ("_", "cluster"), ("cluster-1", "cluster-1")]
)
def test_cluster_name_is_close_to_folder_name(folder: str, name: str) -> None:
    assert ClusterPlan(Path("/data") / folder).name == name
