"""Names of created objects: readable if possible, and unique."""

from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis.names import (
    fallback_virtual_node_name,
    physical_name,
    virtual_cluster_label,
    virtual_node_name,
)
from tapestry.kube.names import dns_label_error, dns_subdomain_error, label_value_error

LABEL = st.from_regex("[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?", fullmatch=True)
CLUSTER_IDS = st.from_regex("[a-z0-9]([-a-z0-9]{0,22}[a-z0-9])?", fullmatch=True)
SUBDOMAINS = st.lists(LABEL, min_size=1, max_size=4).map(".".join)
LONG = "ip-10-20-30-40." + "a-very-long-region-name." * 8 + "internal"


def test_virtual_node_name_contains_cluster_and_node() -> None:
    assert virtual_node_name("east", "worker-1") == "vnode-east-worker-1"
    assert virtual_node_name("east", "ip-10-0-0-1.internal") == "vnode-east-ip-10-0-0-1.internal"


def test_names_over_63_characters_are_hashed() -> None:
    fits = "n" * (63 - len("vnode-east-"))
    assert virtual_node_name("east", fits) == f"vnode-east-{fits}"
    cut = virtual_node_name("east", fits + "n")
    assert len(cut) <= 63
    assert cut.startswith("vnode-east-nnn")
    assert cut != virtual_node_name("east", fits + "m")


def test_long_names_with_equal_prefix_differ() -> None:
    names = {virtual_node_name(cluster, LONG + tail) for cluster in ("east", "west") for tail in ("", "a", "b")}
    assert len(names) == 6


@given(CLUSTER_IDS, SUBDOMAINS)
def test_virtual_node_name_is_a_valid_label_value(cluster_id: str, node: str) -> None:
    for name in (virtual_node_name(cluster_id, node), fallback_virtual_node_name(cluster_id, node, "uid")):
        assert dns_subdomain_error(name) is None
        assert label_value_error(name) is None


def test_fallback_name_differs_per_binding() -> None:
    assert virtual_node_name("a-b", "c") == virtual_node_name("a", "b-c")
    seconds = {fallback_virtual_node_name("a-b", "c", "uid-1"), fallback_virtual_node_name("a", "b-c", "uid-2")}
    assert len(seconds) == 2
    assert virtual_node_name("a", "b-c") not in seconds
    assert all(name.startswith("vnode-a-b-c-") for name in seconds)


def test_fallback_name_is_deterministic() -> None:
    assert fallback_virtual_node_name("a", "n", "uid") == fallback_virtual_node_name("a", "n", "uid")
    assert fallback_virtual_node_name("a", "n", "uid") != fallback_virtual_node_name("a", "n", "another")


PARTS = st.tuples(LABEL, LABEL, LABEL, SUBDOMAINS)


@given(PARTS, PARTS)
def test_physical_names_are_unique_labels(one: tuple[str, str, str, str], other: tuple[str, str, str, str]) -> None:
    assert dns_label_error(physical_name(*one)) is None
    assert (physical_name(*one) == physical_name(*other)) == (one == other)


def test_physical_name_depends_on_cluster_binding_and_namespace() -> None:
    names = {
        physical_name("v1", "uid", "default", "web"),
        physical_name("v2", "uid", "default", "web"),
        physical_name("v1", "another", "default", "web"),
        physical_name("v1", "uid", "prod", "web"),
    }
    assert len(names) == 4
    assert all(name.startswith("web-") for name in names)


def test_virtual_cluster_label_does_not_reveal_the_uid() -> None:
    label = virtual_cluster_label("0d2a4ee0-6d5c-4d5e-b2ab-6d6bbf5d7b3c")
    assert label_value_error(label) is None
    assert len(label) == 32
    assert "0d2a4ee0" not in label
    assert label != virtual_cluster_label("0d2a4ee0-6d5c-4d5e-b2ab-6d6bbf5d7b3d")
