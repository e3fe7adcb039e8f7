"""In somebody else's name: only by those who may, part by part."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from tapestry.apiserver.requests import Call, User
from tapestry.apiserver.server import ApiResponse
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.kube.objects import Object

from .conftest import ADMIN, Hand

REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
BOB = User("bob", ("system:authenticated",))


async def whoami(call: Hand, user: User, *headers: tuple[str, str]) -> tuple[int, Any]:
    asked = Call("POST", REVIEWS, {}, {"content-type": "application/json"}, b"{}", user, headers)
    answer = await RequestHandler(call.server, 10).handle(asked)
    assert isinstance(answer, ApiResponse)
    return answer.status, msgspec.json.decode(answer.body)


def info(found: Object) -> Object:
    return dict(found["status"]["userInfo"])


async def may_impersonate(call: Hand, *rules: Object) -> None:
    base = "/apis/rbac.authorization.k8s.io/v1"
    await call.made(f"{base}/clusterroles", {"metadata": {"name": "masks"}, "rules": list(rules)})
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": "masks"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "masks"},
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
async def test_masters_become_whom_they_name(call: Hand, headers: list[tuple[str, str]], groups: list[str]) -> None:
    status, found = await whoami(call, ADMIN, *headers)
    if "system:unauthenticated" in groups:  # who may not even ask who they are
        assert status == 403
        return
    assert (status, info(found)) == (201, {"username": headers[0][1], "groups": groups})


async def test_uid_and_extras_are_taken_over(call: Hand) -> None:
    extras = [("impersonate-extra-example.com%2fteam", "red"), ("impersonate-extra-example.com%2fteam", "blue")]
    _, found = await whoami(call, ADMIN, ("impersonate-user", "joe"), ("impersonate-uid", "42"), *extras)
    assert info(found) == {
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
async def test_each_part_is_refused_to_those_who_may_not(
    call: Hand, header: tuple[str, str] | None, message: str
) -> None:
    if header is not None:
        await may_impersonate(call, {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"]})
    status, found = await whoami(call, BOB, ("impersonate-user", "joe"), *([header] if header else []))
    assert (status, found["message"]) == (403, message)


async def test_an_account_is_impersonated_by_right_of_its_namespace(call: Hand) -> None:
    await may_impersonate(
        call, {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["joe"]}
    )
    status, found = await whoami(call, BOB, ("impersonate-user", "system:serviceaccount:ns:robot"))
    assert (status, found["message"]) == (
        403,
        'serviceaccounts "robot" is forbidden: User "bob" cannot impersonate resource "serviceaccounts" '
        'in API group "" in the namespace "ns"',
    )
    assert (await whoami(call, BOB, ("impersonate-user", "joe")))[0] == 201


async def test_groups_without_a_user_are_nobodys(call: Hand) -> None:
    status, found = await whoami(call, ADMIN, ("impersonate-group", "devs"))
    assert (status, found["reason"]) == (500, "InternalError")
    assert "without impersonating a user" in found["message"]


async def test_a_mask_does_not_hide_what_its_wearer_may(call: Hand) -> None:
    """Rights are those of the user that is named, and of nobody else."""
    asked = Call("GET", "/api/v1/secrets", {}, {}, b"", ADMIN, (("impersonate-user", "joe"),))
    answer = await RequestHandler(call.server, 10).handle(asked)
    assert isinstance(answer, ApiResponse)
    assert answer.status == 403
    plain = await RequestHandler(call.server, 10).handle(structs.replace(asked, impersonates=()))
    assert isinstance(plain, ApiResponse)
    assert plain.status == 200
