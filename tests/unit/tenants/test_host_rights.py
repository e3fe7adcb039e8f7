"""Rights in host clusters: what no account may have."""

import pytest

from tapestry.apis.permissions import Permission
from tapestry.kube.resources import (
    CLUSTER_ROLES,
    NODES,
    ROLE_BINDINGS,
    SECRETS,
    SERVICE_ACCOUNTS,
)
from tapestry.tenants.host_rights import HOST_READS, HOST_RIGHTS, OWN_TOKEN_RIGHTS, TENANT_RIGHTS

ALL = (*HOST_RIGHTS, *OWN_TOKEN_RIGHTS, *TENANT_RIGHTS)


def test_processes_read_no_secrets() -> None:
    assert SECRETS not in {each.resource for each in (*HOST_RIGHTS, *OWN_TOKEN_RIGHTS)}


def test_reads_change_nothing() -> None:
    assert {verb for each in HOST_READS for verb in each.verbs} == {"get", "list", "watch"}


def test_tenants_have_no_rights_on_rights() -> None:
    forbidden = {NODES, SERVICE_ACCOUNTS, ROLE_BINDINGS, CLUSTER_ROLES}
    assert {each.resource for each in TENANT_RIGHTS} & forbidden == set()
    assert all(each.resource.namespaced for each in TENANT_RIGHTS)


@pytest.mark.parametrize("right", ALL, ids=str)
def test_rights_name_verbs_and_kinds(right: Permission) -> None:
    assert "*" not in (*right.verbs, right.resource.group, right.rule_resource)
    assert not {"escalate", "impersonate", "deletecollection"} & {*right.verbs}
    if "bind" in right.verbs or right.subresource == "token":
        assert right.names
