import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.resources import DEPLOYMENTS, NAMESPACES, NODES, PODS, Resource, path_segment


def test_core_group_has_no_name() -> None:
    assert (PODS.api_version, PODS.name) == ("v1", "pods")
    assert (DEPLOYMENTS.api_version, DEPLOYMENTS.name) == ("apps/v1", "deployments.apps")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (PODS.path(), "/api/v1/pods"),
        (PODS.path("default"), "/api/v1/namespaces/default/pods"),
        (PODS.path("default", "web"), "/api/v1/namespaces/default/pods/web"),
        (PODS.path("default", "web", "status"), "/api/v1/namespaces/default/pods/web/status"),
        (DEPLOYMENTS.path(), "/apis/apps/v1/deployments"),
        (DEPLOYMENTS.path("default", "web", "scale"), "/apis/apps/v1/namespaces/default/deployments/web/scale"),
        (NODES.path(), "/api/v1/nodes"),
        (NODES.path(name="n1"), "/api/v1/nodes/n1"),
        (NAMESPACES.path(name="default", subresource="finalize"), "/api/v1/namespaces/default/finalize"),
    ],
)
def test_path_of_collection_or_object(path: str, expected: str) -> None:
    assert path == expected


def test_cluster_scoped_resource_rejects_namespace() -> None:
    with pytest.raises(ValueError, match="nodes is cluster-scoped; namespace 'default' is not allowed in its path"):
        NODES.path("default", "n1")


def test_namespaced_object_needs_namespace() -> None:
    with pytest.raises(ValueError, match=r"deployments\.apps is namespaced; 'web' needs a namespace"):
        DEPLOYMENTS.path(name="web")


def test_subresource_needs_object_name() -> None:
    with pytest.raises(ValueError, match="pods: 'status' needs a name"):
        PODS.path("default", subresource="status")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../secrets/x", "a%2fb"])
def test_name_that_changes_path_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="may not be a name"):
        PODS.path("default", name)
    with pytest.raises(ValueError, match="may not be a name"):
        PODS.path(name, "web")


@pytest.mark.parametrize(
    ("text", "quoted"),
    [("system:node", "system:node"), ("a b?c#d", "a%20b%3Fc%23d"), ("ü", "%C3%BC"), ("a.b-c", "a.b-c")],
)
def test_segment_is_quoted_except_colons(text: str, quoted: str) -> None:
    assert path_segment(text) == quoted


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_segment_contains_no_separator(text: str) -> None:
    try:
        quoted = path_segment(text)
    except ValueError:
        assert text in ("", ".", "..") or "/" in text or "%" in text
    else:
        assert not set(quoted) & set("/?# \n")
        assert quoted.isascii()


def test_equal_resources_are_one_key() -> None:
    assert {Resource("", "v1", "Pod", "pods"): 1}[PODS] == 1
