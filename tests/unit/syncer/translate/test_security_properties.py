"""Pod Security properties for pods of any shape."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.objects import Object
from tapestry.kube.pod_security import Violation, violations
from tapestry.syncer.translate.security import security_violations

CHECKS = [violations, security_violations]
LISTS = ("initContainers", "containers", "ephemeralContainers")
FIELDS = (
    *("spec", "metadata", "annotations", "os", "name", "type", "add", "drop", "host", "hostPort", "sources", "mystery"),
    *("securityContext", "containers", "volumes", "capabilities", "seccompProfile", "projected", "emptyDir", "sysctls"),
)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
junk = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | st.text(), inner, max_size=3),
    max_leaves=12,
)


def new_object(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Object]:
    """Return a strategy for some of the fields, each valid or not."""
    return st.fixed_dictionaries({}, optional={name: value | junk for name, value in fields.items()})


def either(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


profiles = new_object(type=either("RuntimeDefault", "Localhost", "Unconfined", ""))
shared = {
    "runAsNonRoot": st.booleans(),
    "runAsUser": either(0, 1000),
    "seccompProfile": profiles,
    "appArmorProfile": profiles,
    "seLinuxOptions": new_object(type=either("", "container_t", "spc_t"), user=either("", "u"), role=either("", "r")),
    "windowsOptions": new_object(hostProcess=st.booleans()),
    "mystery": st.booleans(),
}
pod_contexts = new_object(sysctls=st.lists(new_object(name=either("kernel.msgmax", "net.ipv4.tcp_rmem"))), **shared)
names = st.lists(either("ALL", "KILL", "NET_BIND_SERVICE", "SYS_ADMIN"), max_size=2)
contexts = new_object(
    privileged=st.booleans(),
    allowPrivilegeEscalation=st.booleans(),
    capabilities=new_object(add=names, drop=names),
    procMount=either("Default", "Unmasked"),
    **shared,
)
actions = new_object(host=either("", "127.0.0.1"))
handlers = new_object(httpGet=actions, tcpSocket=actions)
containers = new_object(
    name=st.text(max_size=2),
    securityContext=contexts,
    ports=st.lists(new_object(hostPort=either(0, 80)), max_size=2),
    livenessProbe=handlers,
    lifecycle=new_object(preStop=handlers),
)
volumes = new_object(
    name=st.text(max_size=2),
    emptyDir=st.just({}),
    hostPath=st.just({"path": "/"}),
    csi=st.just({}),
    projected=new_object(sources=st.lists(new_object(secret=st.just({}), clusterTrustBundle=st.just({})), max_size=2)),
)
container_lists = st.lists(containers, max_size=3)
annotations = st.dictionaries(
    either("a", "container.apparmor.security.beta.kubernetes.io/c"), either("unconfined", "runtime/default") | junk
)
specs = new_object(
    hostNetwork=st.booleans(),
    os=new_object(name=either("windows", "linux")),
    securityContext=pod_contexts,
    volumes=st.lists(volumes, max_size=2),
    **dict.fromkeys(LISTS, container_lists),
)
pods = new_object(metadata=new_object(annotations=annotations), spec=specs)


@st.composite
def pods_with_containers(draw: st.DrawFn) -> Object:
    """Draw pods whose containers are in lists, whatever they contain."""
    spec = draw(specs)
    return {**draw(pods), "spec": {**spec, **{field: draw(st.lists(containers | junk, max_size=3)) for field in LISTS}}}


def with_list(pod: Object, field: str, entries: list[Any]) -> Object:
    return {**pod, "spec": {**pod["spec"], field: entries}}


def paths(found: list[Violation]) -> set[str]:
    return {violation.path for violation in found}


def without_index(found: list[Violation]) -> list[tuple[str, str, str]]:
    """Return the violations regardless of the container's index."""
    return sorted((each.rule, each.found, re.sub(r"ontainers\[\d+\]", "ontainers[*]", each.path)) for each in found)


@given(pod=pods | st.dictionaries(st.sampled_from(FIELDS), junk), level=either("baseline", "restricted", "privileged"))
def test_any_pod_is_checked_and_unchanged(pod: Object, level: str) -> None:
    before = json.dumps(pod)
    reported = [str(found) for check in CHECKS for found in check(pod, level)]
    assert all(f"is not allowed at level {level};" in message for message in reported)
    assert json.dumps(pod) == before


@given(pod=pods)
def test_restricted_is_at_least_as_strict_as_baseline(pod: Object) -> None:
    for check in CHECKS:
        assert paths(check(pod, "baseline")) <= paths(check(pod, "restricted"))


@given(pod=pods, level=either("baseline", "restricted"))
def test_every_standard_violation_is_rejected(pod: Object, level: str) -> None:
    assert paths(violations(pod, level)) <= paths(security_violations(pod, level))


@given(
    pod=pods_with_containers(), field=either(*LISTS), another=containers | junk, level=either("baseline", "restricted")
)
def test_additional_container_removes_no_violation(pod: Object, field: str, another: Any, level: str) -> None:
    more = with_list(pod, field, [*pod["spec"][field], another])
    for check in CHECKS:
        assert set(check(pod, level)) <= set(check(more, level))


@given(pod=pods_with_containers(), field=either(*LISTS), level=either("baseline", "restricted"), data=st.data())
def test_container_order_does_not_matter(pod: Object, field: str, level: str, data: st.DataObject) -> None:
    shuffled = with_list(pod, field, data.draw(st.permutations(pod["spec"][field])))
    for check in CHECKS:
        assert without_index(check(pod, level)) == without_index(check(shuffled, level))


OBJECTS = (
    *("metadata", "metadata.annotations", "spec", "spec.os", "spec.securityContext", "spec.containers[0]"),
    *("spec.containers[0].securityContext", "spec.containers[0].securityContext.capabilities", "spec.volumes[0]"),
    *("spec.securityContext.seccompProfile", "spec.containers[0].securityContext.seLinuxOptions"),
    *("spec.containers[0].ports[0]", "spec.containers[0].lifecycle", "spec.containers[0].lifecycle.preStop.httpGet"),
    *("spec.containers[0].readinessProbe", "spec.securityContext.sysctls[0]", "spec.securityContext.windowsOptions"),
    *("spec.volumes[0].configMap", "spec.volumes[0].projected", "spec.volumes[0].projected.sources[0]"),
)
ARRAYS = (
    *("spec.containers", "spec.initContainers", "spec.ephemeralContainers", "spec.volumes", "spec.containers[0].ports"),
    *("spec.containers[0].securityContext.capabilities.add", "spec.securityContext.sysctls", "spec.resourceClaims"),
    "spec.volumes[0].projected.sources",
)
SWITCHES = (
    *("spec.hostNetwork", "spec.hostPID", "spec.hostIPC", "spec.containers[0].securityContext.privileged"),
    "spec.securityContext.windowsOptions.hostProcess",
)


def with_only(path: str, value: Any) -> Object:
    """Return a pod with only that value at that path."""
    for step in reversed(re.findall(r"\w+|\[0\]", path)):
        value = [value] if step == "[0]" else {step: value}
    pod: Object = value
    return pod


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((path, value) for path in OBJECTS for value in ([], "", 0, False, True, [{}])),
        *((path, value) for path in ARRAYS for value in ({}, "", 0, False, "ALL", {"0": {}})),
        *((path, value) for path in SWITCHES for value in (0, "", "false", [], {})),
        *(("spec.containers[0].ports[0].hostPort", value) for value in (False, "0", "", 0.0, [])),
        *(("spec.containers[0].livenessProbe.tcpSocket.host", value) for value in (False, 0, [], {})),
        *(("spec.containers[0].securityContext.capabilities.add[0]", value) for value in (False, 0, [], {}, None)),
        *(("spec.containers[0].securityContext.seccompProfile.type", value) for value in (False, 0, [], {}, None)),
    ],
)
def test_wrong_type_is_rejected_at_its_path(path: str, value: Any) -> None:
    pod = with_only(path, value)
    assert path in paths(security_violations(pod, "baseline"))
    assert security_violations(pod, "privileged") == []


@pytest.mark.parametrize("field", ["runAsUser", "runAsNonRoot", "allowPrivilegeEscalation"])
@pytest.mark.parametrize("value", [0.0, "", "1000", [], {}])
def test_restricted_accepts_no_wrong_type(field: str, value: Any) -> None:
    path = f"spec.containers[0].securityContext.{field}"
    assert path in paths(violations(with_only(path, value), "restricted"))


@pytest.mark.parametrize("path", [*OBJECTS, *ARRAYS, *SWITCHES])
def test_right_type_is_not_malformed(path: str) -> None:
    value: Any = {} if path in OBJECTS else [] if path in ARRAYS else False
    assert "malformed" not in {found.rule for found in security_violations(with_only(path, value), "restricted")}
