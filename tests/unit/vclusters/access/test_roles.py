"""The authorization matrix: every method, role, scope and project."""

import pytest

from tapestry.apis.projects import AccessKeySpec, Member, ProjectSpec, Scope
from tapestry.vclusters.access.roles import (
    ADMIN,
    EDITOR,
    KUBECONFIG_ROLES,
    MIN_ROLES,
    OPERATOR,
    OWN_KEY_METHODS,
    PLATFORM_ADMIN,
    VIEWER,
    Caller,
    Decision,
    Role,
    decide,
    roles_in_projects,
    scopes_of,
)

PROJECTS = ("own", "other", "")
SCOPES = {
    "none": None,
    "own": {"own": ADMIN},
    "other": {"other": ADMIN},
    "viewer": {"own": VIEWER, "other": VIEWER},
    "editor of own": {"own": EDITOR},
}


def caller_with(role: Role, scopes: dict[str, Role] | None) -> Caller:
    return Caller("alice", "key", role == PLATFORM_ADMIN, {} if role == Role.NONE else {"own": role}, scopes)


def expected_role(role: Role, scope: str, project: str) -> Role:
    """Return the role that the text of the specification gives, written without the code under test."""
    if scope in ("own", "editor of own") and project != "own":
        return Role.NONE
    if scope in ("other", "viewer") and project == "":
        return Role.NONE
    if scope == "other" and project == "own":
        return Role.NONE
    if role != PLATFORM_ADMIN and project != "own":
        return Role.NONE
    limits = {"viewer": VIEWER, "editor of own": EDITOR, "own": ADMIN, "other": ADMIN}
    return min(role, limits.get(scope, PLATFORM_ADMIN))


CELLS = [
    (role, scope, project, method)
    for role in Role
    for scope in SCOPES
    for project in PROJECTS
    for method in sorted(MIN_ROLES)
]


def test_matrix_of_all_methods() -> None:
    assert len(CELLS) >= 2_000
    unexpected = []
    for role, scope, project, method in CELLS:
        has, needed = expected_role(role, scope, project), MIN_ROLES[method]
        if has >= needed:
            expected = Decision.ALLOWED
        else:
            expected = Decision.HIDDEN if not has and needed <= ADMIN else Decision.DENIED
        if decide(caller_with(role, SCOPES[scope]), method, project) != expected:
            unexpected.append((role, scope, project, method))
    assert not unexpected


@pytest.mark.parametrize(
    ("role", "allowed", "denied"),
    [
        (VIEWER, ("GetVCluster", "WatchVCluster"), ("SuspendVCluster", "GetVClusterKubeconfig")),
        (OPERATOR, ("SuspendVCluster", "ResumeVCluster", "SnapshotVCluster"), ("CreateVCluster", "RestoreVCluster")),
        (EDITOR, ("CreateVCluster", "ScaleVCluster", "RestoreVCluster"), ("DeleteVCluster", "GetQuota")),
        (ADMIN, ("DeleteVCluster", "GetQuota", "UpdateProject"), ("UpdateQuota", "CreateHostCluster")),
    ],
)
def test_roles_include_methods(role: Role, allowed: tuple[str, ...], denied: tuple[str, ...]) -> None:
    caller = caller_with(role, None)
    assert {decide(caller, method, "own") for method in allowed} == {Decision.ALLOWED}
    assert {decide(caller, method, "own") for method in denied} == {Decision.DENIED}


def test_unknown_method_is_an_error() -> None:
    with pytest.raises(KeyError):
        decide(caller_with(PLATFORM_ADMIN, None), "DropEverything")


def test_own_keys_need_no_role() -> None:
    assert {decide(caller_with(Role.NONE, None), method) for method in OWN_KEY_METHODS} == {Decision.ALLOWED}


def test_kubeconfigs_need_an_operator() -> None:
    assert set(KUBECONFIG_ROLES) == {role for role in Role if role >= MIN_ROLES["GetVClusterKubeconfig"]}


def test_members_have_their_highest_role() -> None:
    members = (
        Member(kind="User", name="alice", role="viewer"),
        Member(kind="Group", name="staff", role="editor"),
        Member(kind="User", name="staff", role="admin"),
    )
    projects = [("one", ProjectSpec(members=members)), ("two", ProjectSpec())]
    assert roles_in_projects(projects, "alice", ["staff"]) == {"one": EDITOR}
    assert roles_in_projects(projects, "alice", []) == {"one": VIEWER}
    assert roles_in_projects(projects, "bob", []) == {}


def test_key_without_scopes_has_no_limit() -> None:
    key = AccessKeySpec(principal="alice", secret_sha256="0" * 64)
    assert scopes_of(key) is None
    limited = AccessKeySpec(principal="alice", secret_sha256="0" * 64, scopes=(Scope(project="one", role="viewer"),))
    assert scopes_of(limited) == {"one": VIEWER}
