"""The REST table: each RPC has a route, and each route leads to one RPC."""

import pytest
from google.protobuf.descriptor import FieldDescriptor

from tapestry.vclusters.access.roles import MIN_ROLES, OWN_KEY_METHODS, PROXY_METHOD
from tapestry.vclusters.rest_routes import ROUTES, RPCS, Match, match_route


def test_each_rpc_has_a_route() -> None:
    assert {each.method for each in ROUTES} == set(RPCS)


def test_each_rpc_needs_a_role() -> None:
    assert {*MIN_ROLES, *OWN_KEY_METHODS} == {*RPCS, PROXY_METHOD}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.http_method} {route.template}")
def test_route_matches_its_own_paths_only(route) -> None:
    values = {name: f"value-{number}" for number, name in enumerate(route.parameters)}
    path = route.template
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", value)
    match = match_route(route.http_method, path)
    assert match == Match(route, values)
    found = match_route("PUT", path)
    assert isinstance(found, list)
    assert route.http_method in found
    assert match_route(route.http_method, f"{path}/more/and/more") == []


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.http_method} {route.template}")
def test_parameters_are_fields_of_the_request(route) -> None:
    for path in route.parameters:
        message = RPCS[route.method].input_type
        *parents, last = path.split(".")
        for name in parents:
            message = message.fields_by_name[name].message_type
        assert message.fields_by_name[last].type == FieldDescriptor.TYPE_STRING


def test_encoded_characters_belong_to_a_parameter() -> None:
    match = match_route("GET", "/v1/namespaces/a%2Fb/vclusters/c%3Ascale")
    assert isinstance(match, Match)
    assert match.parameters == {"namespace": "a/b", "name": "c:scale"}


def test_unknown_path_has_no_methods() -> None:
    assert match_route("GET", "/v2/vclusters") == []
