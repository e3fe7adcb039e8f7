"""JSON requests as messages of the contract, and back."""

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.errors import ServiceError
from tapestry.vclusters.rest_routes import ROUTES, RPCS, Match, match_route
from tapestry.vclusters.transcoding import encoded, request_message, response_fields

VCLUSTER = "/v1/namespaces/shop/vclusters/blue"


def message(http_method: str, path: str, query: str = "", body: Any = b"") -> Message:
    match = match_route(http_method, path)
    assert isinstance(match, Match)
    pairs = [tuple(each.split("=", 1)) for each in query.split("&") if each]
    return request_message(match, pairs, body if isinstance(body, bytes) else json.dumps(body).encode())


def rejection(http_method: str, path: str, query: str = "", body: Any = b"") -> str:
    with pytest.raises(ServiceError) as caught:
        message(http_method, path, query, body)
    assert caught.value.reason == "FIELD_INVALID"
    return caught.value.message


def test_body_may_have_both_names_of_a_field() -> None:
    expected = api.CreateVClusterRequest(
        name="blue", namespace="shop", spec=api.VClusterSpec(kubernetes_version="1.34", replicas=2)
    )
    for name in ("kubernetesVersion", "kubernetes_version"):
        body = {"name": "blue", "spec": {name: "1.34", "replicas": 2}}
        assert message("POST", "/v1/namespaces/shop/vclusters", body=body) == expected


def test_query_parameters_are_fields() -> None:
    found = message("GET", "/v1/vclusters", "page_size=5&phases=PHASE_RUNNING&phases=PHASE_ERROR&labelSelector=a=b")
    phases = [api.PHASE_RUNNING, api.PHASE_ERROR]
    assert found == api.ListVClustersRequest(page_size=5, phases=phases, label_selector="a=b")
    assert message("DELETE", VCLUSTER, "force=true").force
    assert not message("DELETE", VCLUSTER, "force=false").force


def test_path_is_part_of_a_body_field() -> None:
    found = message("PATCH", "/v1/projects/shop", "updateMask=displayName,members", {"displayName": "Shop"})
    assert found.project == api.Project(name="shop", display_name="Shop")
    assert list(found.update_mask.paths) == ["display_name", "members"]


@pytest.mark.parametrize(
    ("query", "body", "text"),
    [
        ("", {"nmae": "x"}, 'no field named "nmae"'),
        ("", {"spec": {"replicas": "many"}}, "replicas"),
        ("", {"spec": {"replicas": 1 << 40}}, "replicas"),
        ("", {"namespace": "other"}, "another value"),
        ("", [], "JSON object"),
        ("", b"{", "is not JSON"),
        ("", b"\xff", "is not JSON"),
        ("", b"[" * 100_000, "JSON"),
        ("color=red", {}, "not a parameter"),
        ("spec=x", {}, "must be in the body"),
        ("validateOnly=maybe", {}, "must be true or false"),
    ],
)
def test_bad_request_names_the_field(query: str, body: Any, text: str) -> None:
    assert text in rejection("POST", "/v1/namespaces/shop/vclusters", query, body)


def test_request_without_body_rejects_one() -> None:
    assert "has no body" in rejection("GET", VCLUSTER, body={"x": 1})


def test_response_has_names_of_json() -> None:
    response = api.GetVClusterResponse(vcluster=api.VCluster(generation=5, status=api.VClusterStatus(phase=2)))
    assert body_of(response) == {"vcluster": {"generation": "5", "status": {"phase": "PHASE_RUNNING"}}}


def body_of(response: Message) -> Any:
    return json.loads(encoded(response_fields(response)))


def test_encoded_virtual_clusters_are_those_of_the_message() -> None:
    vclusters = [
        api.VCluster(id=id, name=name, labels={"a": "b"}, etag=etag, resource_version="7")
        for id, name, etag in (("1", "blue", "e"), ("2", "green", "e"), ("1", "changed", "f"), ("", "new", ""))
    ]
    response = api.ListVClustersResponse(vclusters=vclusters, next_page_token="next", total_count=4)
    for _ in range(2):
        assert body_of(response) == json_format.MessageToDict(response)
    watched = api.WatchVClusterResponse(type="WATCH_EVENT_TYPE_DELETED", vcluster=vclusters[0])
    assert body_of(watched) == json_format.MessageToDict(watched)
    assert body_of(api.GetVClusterResponse()) == {}


def test_kubeconfig_is_not_cached() -> None:
    vcluster = api.VCluster(id="1", etag="k", resource_version="8", status=api.VClusterStatus(kubeconfig="secret"))
    assert body_of(api.GetVClusterResponse(vcluster=vcluster))["vcluster"]["status"] == {"kubeconfig": "secret"}
    vcluster.status.ClearField("kubeconfig")
    assert "kubeconfig" not in str(body_of(api.GetVClusterResponse(vcluster=vcluster)))


names = st.sampled_from(
    sorted({field.json_name for each in api.DESCRIPTOR.message_types_by_name.values() for field in each.fields})
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
parameters = st.text(max_size=30)


@settings(max_examples=2_000, deadline=None)
@given(st.sampled_from(ROUTES), st.lists(st.tuples(names, parameters), max_size=3), values, parameters)
def test_any_request_is_a_message_or_an_error(route, query, body, text) -> None:
    match = Match(route, dict.fromkeys(route.parameters, text))
    with suppress(ServiceError):
        found = request_message(match, query, msgspec.json.encode(body) if body is not None else b"")
        assert RPCS[route.method].input_type == found.DESCRIPTOR
