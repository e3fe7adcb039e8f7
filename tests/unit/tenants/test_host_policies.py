"""Admission policies in host clusters; `tests/integration/test_host_credentials.py` attacks them."""

import pytest

from tapestry.apiserver.admission.validating_policies import compile_policy
from tapestry.kube.objects import Object
from tapestry.kube.resources import ADMISSION_POLICIES
from tapestry.tenants.host_policies import HOST_RESOURCES, TENANT_RESOURCES, host_policies
from tapestry.tenants.host_rights import HOST_WRITES, TENANT_RIGHTS, WRITE

POLICIES = [each for each in host_policies() if each["kind"] == ADMISSION_POLICIES.kind]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy["metadata"]["name"])
def test_expressions_compile_and_fail_closed(policy: Object) -> None:
    compiled = compile_policy(policy)
    assert len(compiled.validations) == len(policy["spec"]["validations"])
    assert not compiled.ignores_failures
    assert all(each["reason"] == "Forbidden" for each in policy["spec"]["validations"])


def test_policies_restrict_every_write_of_processes() -> None:
    written = {each.rule_resource for each in HOST_WRITES if {*each.verbs} & {*WRITE}}
    assert written == {name for names in HOST_RESOURCES.values() for name in names}


def test_policies_restrict_every_write_of_tenants() -> None:
    written = {each.resource for each in TENANT_RIGHTS if {*each.verbs} & {*WRITE} and not each.subresource}
    assert written == {*TENANT_RESOURCES}
