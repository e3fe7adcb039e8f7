"""The authorization matrix: every method, role, scope and project."""

import pytest

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
    Scope,
    decide,
)

PROJECTS = ("own", "other", "")
SCOPES = {
    "all": Scope(),
    "own": Scope(frozenset({"own"})),
    "other": Scope(frozenset({"other"})),
    "viewer": Scope(role=VIEWER),
    "editor of own": Scope(frozenset({"own"}), EDITOR),
}


def caller_with(role: Role, scope: Scope) -> Caller:
    return Caller("alice", "key", role == PLATFORM_ADMIN, {} if role == Role.NONE else {"own": role}, scope)


def expected_role(role: Role, scope: str, project: str) -> Role:
    """Return the role that the text of the specification gives, written without the code under test."""
    if scope in ("own", "editor of own") and project != "own":
        return Role.NONE
    if scope == "other" and project != "other":
        return Role.NONE
    if role != PLATFORM_ADMIN and project != "own":
        return Role.NONE
    limits = {"viewer": VIEWER, "editor of own": EDITOR}
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
    caller = caller_with(role, Scope())
    assert {decide(caller, method, "own") for method in allowed} == {Decision.ALLOWED}
    assert {decide(caller, method, "own") for method in denied} == {Decision.DENIED}


def test_unknown_method_is_an_error() -> None:
    with pytest.raises(KeyError):
        decide(caller_with(PLATFORM_ADMIN, Scope()), "DropEverything")


def test_own_keys_need_no_role() -> None:
    assert {decide(caller_with(Role.NONE, Scope()), method) for method in OWN_KEY_METHODS} == {Decision.ALLOWED}


def test_kubeconfigs_need_an_operator() -> None:
    assert set(KUBECONFIG_ROLES) == {role for role in Role if role >= MIN_ROLES["GetVClusterKubeconfig"]}
