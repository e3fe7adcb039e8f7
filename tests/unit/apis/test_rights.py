from tapestry.apis.clusterbindings import AllowedVolumes
from tapestry.apis.rights import (
    MANAGER,
    SYNCER_ABOVE,
    SYNCER_BELOW,
    SYNCER_HOME,
    SYNCER_KUBECONFIG,
    SYNCER_VOLUMES,
    Place,
    Right,
    attributes,
    placed,
    rules,
    single,
    syncer_below,
)
from tapestry.kube.resources import DEPLOYMENTS, NAMESPACES, PODS, SERVICE_ACCOUNTS

TABLES = (MANAGER, SYNCER_ABOVE, (*SYNCER_BELOW, *SYNCER_VOLUMES), SYNCER_HOME, SYNCER_KUBECONFIG)
READS = {"get", "list", "watch"}


def test_a_right_reads_as_people_say_it() -> None:
    assert str(Right(PODS, ("create",), "team-a")) == "create pods in team-a"
    assert str(Right(NAMESPACES, ("get", "list"), names=("kube-system",))) == "get,list namespaces kube-system"
    assert str(Right(SERVICE_ACCOUNTS, ("create",), "a", ("b",), "token")) == "create serviceaccounts/token b in a"


def test_a_rule_says_what_its_right_says() -> None:
    assert rules([Right(DEPLOYMENTS, ("get", "patch"), "home", ("one",), "status"), Right(PODS, ("list",))]) == [
        {
            "apiGroups": ["apps"],
            "resources": ["deployments/status"],
            "verbs": ["get", "patch"],
            "resourceNames": ["one"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    ]


def test_each_verb_on_each_name_is_asked_about_by_itself() -> None:
    found = single([Right(NAMESPACES, ("get", "watch"), names=("a", "b")), Right(PODS, ("list",), "team-a")])
    assert [str(right) for right in found] == [
        "get namespaces a",
        "get namespaces b",
        "watch namespaces a",
        "watch namespaces b",
        "list pods in team-a",
    ]
    assert attributes(found[0]) == {"verb": "get", "version": "v1", "resource": "namespaces", "name": "a"}
    assert attributes(found[-1]) == {"verb": "list", "version": "v1", "resource": "pods", "namespace": "team-a"}


def test_a_right_about_a_place_without_a_name_is_left_out() -> None:
    table = (
        Right(PODS, ("list",)),
        Right(PODS, ("create",), Place.MOUNT),
        Right(NAMESPACES, ("get",), "", (Place.MOUNT,)),
    )
    assert placed(table, {}) == [Right(PODS, ("list",))]
    assert [str(right) for right in placed(table, {Place.MOUNT: "leased"})] == [
        "list pods",
        "create pods in leased",
        "get namespaces leased",
    ]


def test_nothing_is_granted_by_a_star_and_nothing_twice() -> None:
    for table in TABLES:
        assert not [right for right in table if "*" in (*right.verbs, right.resource.plural, right.subresource)]
        found = [(right.kind, verb, right.namespace, right.names) for right in table for verb in right.verbs]
        assert len(found) == len(set(found))


def test_below_a_syncer_only_reads_outside_the_mount_namespace_but_for_policies_status_and_its_own_token() -> None:
    writes = [str(right) for right in SYNCER_BELOW if not set(right.verbs) <= READS and right.namespace != Place.MOUNT]
    own = f"{Place.ACCOUNT} in {Place.ACCOUNT_NAMESPACE}"
    assert writes == ["patch resourceleasingpolicies/status", f"create serviceaccounts/token {own}"]


def test_a_syncer_has_a_say_over_volumes_only_where_its_binding_names_a_driver() -> None:
    assert syncer_below(AllowedVolumes()) == syncer_below(AllowedVolumes(storage_classes=("fast",))) == SYNCER_BELOW
    assert syncer_below(AllowedVolumes(drivers=("disk.example",))) == (*SYNCER_BELOW, *SYNCER_VOLUMES)


def test_the_manager_holds_whatever_it_hands_on() -> None:
    """Kubernetes lets nobody write a role with rights that they do not have themselves."""
    held = {(right.kind, verb, right.namespace) for right in MANAGER if not right.names for verb in right.verbs}
    handed_on = {
        (right.kind, verb, right.namespace) for right in (*SYNCER_HOME, *SYNCER_KUBECONFIG) for verb in right.verbs
    }
    assert handed_on <= held
