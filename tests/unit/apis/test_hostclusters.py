"""The HostCluster kind."""

from tapestry.apis.hostclusters import HOST_CLUSTER, HOST_CLUSTERS
from tapestry.kube.crds import crd, decode_spec


def test_defaults_of_a_host_cluster() -> None:
    spec = decode_spec(HOST_CLUSTER, {"spec": {"secretRef": {"name": "kubeconfig", "namespace": "tapestry-system"}}})
    assert spec.priority_class_name == "tapestry-leased"
    assert spec.storage_classes == ()
    assert not spec.allow_loopback


def test_crd_of_host_clusters_is_cluster_scoped() -> None:
    definition = crd(HOST_CLUSTER)
    assert definition["metadata"]["name"] == "hostclusters.tapestry.io"
    assert definition["spec"]["scope"] == "Cluster"
    assert not HOST_CLUSTERS.namespaced
