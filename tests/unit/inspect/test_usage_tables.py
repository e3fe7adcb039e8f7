"""Tables of the metrics API."""

from tapestry.inspect.anykind.usage_tables import node_table, pod_table


def test_node_table_shows_shares_of_allocatable() -> None:
    metrics = [{"metadata": {"name": "a"}, "usage": {"cpu": "1500000000n", "memory": "512Mi"}}]
    nodes = {"a": {"metadata": {"name": "a"}, "status": {"allocatable": {"cpu": "3", "memory": "2Gi"}}}}
    assert node_table(metrics, nodes).splitlines()[1].split() == ["a", "1500m", "50%", "512Mi", "25%"]
    assert node_table(metrics, {}).splitlines()[1].split() == ["a", "1500m", "<unknown>", "512Mi", "<unknown>"]


def test_pod_table_sums_containers() -> None:
    containers = [{"name": each, "usage": {"cpu": "100m", "memory": "64Mi"}} for each in "ab"]
    metrics = [{"metadata": {"name": "web", "namespace": "team"}, "containers": containers}]
    assert pod_table(metrics, has_namespace=True).splitlines()[1].split() == ["team", "web", "200m", "128Mi"]
    assert pod_table(metrics, has_namespace=False).splitlines()[1].split() == ["web", "200m", "128Mi"]
