from tapestry.apis.clusterbindings import AllowedVolumes
from tapestry.apis.permissions import (
    MANAGER_PERMISSIONS,
    SYNCER_IN_PHYSICAL,
    SYNCER_IN_VIRTUAL,
    SYNCER_KUBECONFIG,
    SYNCER_LEADER_ELECTION,
    SYNCER_STREAMS,
    SYNCER_VOLUMES,
    Permission,
    Placeholder,
    policy_rules,
    resource_attributes,
    single_permissions,
    syncer_physical_permissions,
    with_names,
)
from tapestry.kube.resources import DEPLOYMENTS, NAMESPACES, PODS, SERVICE_ACCOUNTS

TABLES = (
    MANAGER_PERMISSIONS,
    SYNCER_IN_VIRTUAL,
    (*SYNCER_IN_PHYSICAL, *SYNCER_VOLUMES, *SYNCER_STREAMS),
    SYNCER_LEADER_ELECTION,
    SYNCER_KUBECONFIG,
)
READS = {"get", "list", "watch"}


def test_permission_has_a_readable_form() -> None:
    assert str(Permission(PODS, ("create",), "team-a")) == "create pods in team-a"
    assert str(Permission(NAMESPACES, ("get", "list"), names=("kube-system",))) == "get,list namespaces kube-system"
    assert str(Permission(SERVICE_ACCOUNTS, ("create",), "a", ("b",), "token")) == "create serviceaccounts/token b in a"


def test_rule_contains_the_whole_permission() -> None:
    assert policy_rules(
        [Permission(DEPLOYMENTS, ("get", "patch"), "home", ("one",), "status"), Permission(PODS, ("list",))]
    ) == [
        {
            "apiGroups": ["apps"],
            "resources": ["deployments/status"],
            "verbs": ["get", "patch"],
            "resourceNames": ["one"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    ]


def test_permissions_are_split_by_verb_and_name() -> None:
    found = single_permissions(
        [Permission(NAMESPACES, ("get", "watch"), names=("a", "b")), Permission(PODS, ("list",), "team-a")]
    )
    assert [str(right) for right in found] == [
        "get namespaces a",
        "get namespaces b",
        "watch namespaces a",
        "watch namespaces b",
        "list pods in team-a",
    ]
    assert resource_attributes(found[0]) == {"verb": "get", "version": "v1", "resource": "namespaces", "name": "a"}
    assert resource_attributes(found[-1]) == {
        "verb": "list",
        "version": "v1",
        "resource": "pods",
        "namespace": "team-a",
    }


def test_permission_with_unnamed_placeholder_is_omitted() -> None:
    table = (
        Permission(PODS, ("list",)),
        Permission(PODS, ("create",), Placeholder.MOUNT_NAMESPACE),
        Permission(NAMESPACES, ("get",), "", (Placeholder.MOUNT_NAMESPACE,)),
    )
    assert with_names(table, {}) == [Permission(PODS, ("list",))]
    assert [str(right) for right in with_names(table, {Placeholder.MOUNT_NAMESPACE: "leased"})] == [
        "list pods",
        "create pods in leased",
        "get namespaces leased",
    ]


def test_no_wildcards_and_no_duplicate_permissions() -> None:
    for table in TABLES:
        assert not [right for right in table if "*" in (*right.verbs, right.resource.plural, right.subresource)]
        found = [(right.rule_resource, verb, right.namespace, right.names) for right in table for verb in right.verbs]
        assert len(found) == len(set(found))


def test_syncer_only_reads_outside_the_mount_namespace() -> None:
    writes = [
        str(right)
        for right in (*SYNCER_IN_PHYSICAL, *SYNCER_STREAMS)
        if not set(right.verbs) <= READS and right.namespace != Placeholder.MOUNT_NAMESPACE
    ]
    own = f"{Placeholder.SYNCER_ACCOUNT} in {Placeholder.SYNCER_ACCOUNT_NAMESPACE}"
    assert writes == ["patch resourceleasingpolicies/status", f"create serviceaccounts/token {own}"]


def test_volume_permissions_need_an_allowed_driver() -> None:
    assert (
        syncer_physical_permissions(AllowedVolumes())
        == syncer_physical_permissions(AllowedVolumes(storage_classes=("fast",)))
        == SYNCER_IN_PHYSICAL
    )
    assert syncer_physical_permissions(AllowedVolumes(drivers=("disk.example",))) == (
        *SYNCER_IN_PHYSICAL,
        *SYNCER_VOLUMES,
    )


def test_manager_holds_all_permissions_that_it_grants() -> None:
    """Kubernetes rejects a role with permissions that its author does not have."""
    held = {
        (right.rule_resource, verb, right.namespace)
        for right in MANAGER_PERMISSIONS
        if not right.names
        for verb in right.verbs
    }
    handed_on = {
        (right.rule_resource, verb, right.namespace)
        for right in (*SYNCER_LEADER_ELECTION, *SYNCER_KUBECONFIG)
        for verb in right.verbs
    }
    assert handed_on <= held
