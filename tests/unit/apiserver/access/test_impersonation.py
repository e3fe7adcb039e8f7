"""Impersonation: each part of the identity is authorized separately."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from tapestry.apiserver.core.requests import Call, User
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.kube.objects import Object

from ..conftest import ADMIN, ServerClient

REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
BOB = User("bob", ("system:authenticated",))


async def whoami(call: ServerClient, user: User, *headers: tuple[str, str]) -> tuple[int, Any]:
    call_as_user = Call("POST", REVIEWS, {}, {"content-type": "application/json"}, b"{}", user, headers)
    response = await RequestHandler(call.server, 10).handle(call_as_user)
    assert isinstance(response, ApiResponse)
    return response.status, msgspec.json.decode(response.body)


def user_info(review: Object) -> Object:
    return dict(review["status"]["userInfo"])


async def allow_impersonation(call: ServerClient, *rules: Object) -> None:
    base = "/apis/rbac.authorization.k8s.io/v1"
    await call.made(f"{base}/clusterroles", {"metadata": {"name": "impersonators"}, "rules": list(rules)})
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": "impersonators"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "impersonators"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "bob"}],
    }
    await call.made(f"{base}/clusterrolebindings", binding)


@pytest.mark.parametrize(
    ("headers", "groups"),
    [
        ([("impersonate-user", "joe")], ["system:authenticated"]),
        (
            [("impersonate-user", "joe"), ("impersonate-group", "a"), ("impersonate-group", "b,c")],
            ["a", "b,c", "system:authenticated"],
        ),
        ([("impersonate-user", "joe"), ("impersonate-group", "system:unauthenticated")], ["system:unauthenticated"]),
        ([("impersonate-user", "system:anonymous")], ["system:unauthenticated"]),
        (
            [("impersonate-user", "system:serviceaccount:ns:robot")],
            ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"],
        ),
        (
            [("impersonate-user", "system:serviceaccount:ns:robot"), ("impersonate-group", "g")],
            ["g", "system:authenticated"],
        ),
    ],
)
async def test_masters_can_impersonate_anyone(
    call: ServerClient, headers: list[tuple[str, str]], groups: list[str]
) -> None:
    status, result = await whoami(call, ADMIN, *headers)
    if "system:unauthenticated" in groups:  # they may not create the review
        assert status == 403
        return
    assert (status, user_info(result)) == (201, {"username": headers[0][1], "groups": groups})


async def test_uid_and_extras_are_impersonated(call: ServerClient) -> None:
    extras = [("impersonate-extra-example.com%2fteam", "red"), ("impersonate-extra-example.com%2fteam", "blue")]
    _, result = await whoami(call, ADMIN, ("impersonate-user", "joe"), ("impersonate-uid", "42"), *extras)
    assert user_info(result) == {
        "username": "joe",
        "uid": "42",
        "groups": ["system:authenticated"],
        "extra": {"example.com/team": ["red", "blue"]},
    }


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            None,
            'users "joe" is forbidden: User "bob" cannot impersonate resource "users" in API group "" '
            "at the cluster scope",
        ),
        (
            ("impersonate-group", "devs"),
            'groups "devs" is forbidden: User "bob" cannot impersonate resource "groups" in API group "" '
            "at the cluster scope",
        ),
        (
            ("impersonate-uid", "42"),
            'uids.authentication.k8s.io "42" is forbidden: User "bob" cannot impersonate resource "uids" in API group '
            '"authentication.k8s.io" at the cluster scope',
        ),
        (
            ("impersonate-extra-team", "red"),
            'userextras.authentication.k8s.io "red" is forbidden: User "bob" cannot impersonate resource '
            '"userextras/team" in API group "authentication.k8s.io" at the cluster scope',
        ),
    ],
)
async def test_each_part_requires_its_own_right(
    call: ServerClient, header: tuple[str, str] | None, message: str
) -> None:
    if header is not None:
        await allow_impersonation(call, {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"]})
    status, result = await whoami(call, BOB, ("impersonate-user", "joe"), *([header] if header else []))
    assert (status, result["message"]) == (403, message)


async def test_service_account_requires_right_in_its_namespace(call: ServerClient) -> None:
    await allow_impersonation(
        call, {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["joe"]}
    )
    status, result = await whoami(call, BOB, ("impersonate-user", "system:serviceaccount:ns:robot"))
    assert (status, result["message"]) == (
        403,
        'serviceaccounts "robot" is forbidden: User "bob" cannot impersonate resource "serviceaccounts" '
        'in API group "" in the namespace "ns"',
    )
    assert (await whoami(call, BOB, ("impersonate-user", "joe")))[0] == 201


async def test_groups_without_user_are_rejected(call: ServerClient) -> None:
    status, result = await whoami(call, ADMIN, ("impersonate-group", "devs"))
    assert (status, result["reason"]) == (500, "InternalError")
    assert "without impersonating a user" in result["message"]


async def test_impersonated_request_has_rights_of_that_user(call: ServerClient) -> None:
    request = Call("GET", "/api/v1/secrets", {}, {}, b"", ADMIN, (("impersonate-user", "joe"),))
    response = await RequestHandler(call.server, 10).handle(request)
    assert isinstance(response, ApiResponse)
    assert response.status == 403
    plain = await RequestHandler(call.server, 10).handle(structs.replace(request, impersonation_headers=()))
    assert isinstance(plain, ApiResponse)
    assert plain.status == 200
