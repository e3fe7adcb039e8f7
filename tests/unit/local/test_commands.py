"""How pods become commands of this machine, and which may not."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.objects import Object
from tapestry.local.commands import (
    KEPT,
    Home,
    Launch,
    Trust,
    addressed,
    amount_text,
    field_text,
    launch,
    refusal,
    relocated,
    substituted,
)
from tapestry.local.sources import Missing, Sources, Token, asked_by, files_of

from .pods import a_pod

TRUST = Trust(Path("/opt/bin/tapestry"))
ANY = Trust(Path("/opt/bin/tapestry"), run_pods=True)
NOTHING = Sources({}, {}, {})
HOME = Home(Path("/pods/c"), {"/etc/app": Path("/pods/volumes/app")}, "127.96.1.2")


def ours(namespace: str = "tapestry-system", **container: Any) -> Object:
    """A pod that runs our own program."""
    pod = a_pod(containers=[{"name": "c", "image": "i", "command": ["tapestry"], **container}])
    return {**pod, "metadata": {**pod["metadata"], "namespace": namespace}}


def launched(pod: Object, sources: Sources = NOTHING, home: Home = HOME, **environ: str) -> Launch:
    return launch(pod, pod["spec"]["containers"][0], home, sources, TRUST, environ)


# -- what may run


def test_our_own_program_runs_in_a_trusted_namespace() -> None:
    assert refusal(ours(args=["syncer"]), TRUST) is None


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (ours(namespace="default"), "pods of the namespace default are not run as processes"),
        (ours(command=["sh", "-c", "tapestry"]), "container c: runs sh; only tapestry itself is run here"),
        (ours(command=["./tapestry"]), "container c: runs ./tapestry; only tapestry itself is run here"),
        (ours(command=None), "container c: has no command, and there are no images here that could have one"),
        (
            ours(livenessProbe={"exec": {"command": ["cat", "/etc/shadow"]}}),
            "container c: runs cat; only tapestry itself is run here",
        ),
        (
            ours(env=[{"name": "PYTHONPATH", "value": "/etc/app"}]),
            "container c: sets PYTHONPATH, by which tapestry could become another program",
        ),
        (
            ours(envFrom=[{"secretRef": {"name": "s"}}]),
            "container c: has variables whose names are not known (envFrom)",
        ),
        (
            ours(lifecycle={"preStop": {"sleep": {"seconds": 1}}}),
            "container c: has lifecycle hooks, which are not run here",
        ),
        (ours(readinessProbe={"grpc": {"port": 1}}), "container c: has a probe by gRPC, which is not made here"),
    ],
)
def test_nothing_else_does(pod: Object, why: str) -> None:
    assert refusal(pod, TRUST) == why


def test_init_containers_are_looked_at_too() -> None:
    pod = ours()
    pod["spec"]["initContainers"] = [{"name": "i", "image": "i", "command": ["curl"]}]
    assert refusal(pod, TRUST) == "container i: runs curl; only tapestry itself is run here"


def test_a_volume_that_would_have_to_be_mounted_cannot_be_had() -> None:
    pod = ours()
    pod["spec"]["volumes"] = [{"name": "v", "hostPath": {"path": "/"}}]
    assert (refusal(pod, ANY) or "").startswith("volume v: only configMap, secret,")


def test_told_so_it_runs_any_command_of_any_namespace_but_not_images() -> None:
    assert refusal(ours(namespace="default", command=["sleep", "1"]), ANY) is None
    assert refusal(ours(command=[]), ANY) is not None


# -- what is run


def test_the_command_is_our_executable_with_the_arguments_of_the_container() -> None:
    found = launched(ours(args=["syncer", "--binding", "b"]))
    assert found.command == ["/opt/bin/tapestry", "syncer", "--binding", "b"]
    assert found.folder == HOME.folder


def test_mounted_paths_become_folders_in_arguments_variables_and_the_working_directory() -> None:
    container = {
        "args": ["--config=/etc/app/config.yaml", "/etc/application", "/etc/app", "x:/etc/app/y", "/opt/etc/app"],
        "env": [{"name": "CONFIG", "value": "/etc/app/config.yaml"}],
        "workingDir": "/etc/app/work",
    }
    found = launched(ours(**container))
    folder = "/pods/volumes/app"
    assert found.command[1:] == [
        f"--config={folder}/config.yaml",
        "/etc/application",
        folder,
        f"x:{folder}/y",
        "/opt/etc/app",
    ]
    assert found.environment["CONFIG"] == f"{folder}/config.yaml"
    assert found.folder == Path(f"{folder}/work")


def test_of_mounts_inside_each_other_the_inner_one_counts() -> None:
    mounts = {"/etc": Path("/a"), "/etc/app": Path("/b")}
    assert relocated("/etc/app/x /etc/y", mounts) == "/b/x /a/y"


def test_a_port_of_the_container_is_listened_on_at_the_pods_own_address() -> None:
    ports = [{"containerPort": 8080}, {"containerPort": 8081}]
    args = ["--metrics=:8080", ":8081", "--other=:9090", "--host=1.2.3.4:8080", "a:8080"]
    found = launched(ours(args=args, ports=ports))
    assert found.command[1:] == ["--metrics=127.96.1.2:8080", "127.96.1.2:8081", *args[2:]]
    assert addressed("--metrics=:8080", frozenset({"8080"}), "") == "--metrics=:8080"


def test_of_our_variables_a_container_gets_only_harmless_ones() -> None:
    found = launched(ours(), PATH="/bin", AWS_SECRET_ACCESS_KEY="s", KUBECONFIG="mine", TZ="UTC")
    assert found.environment == {"PATH": "/bin", "TZ": "UTC", "HOSTNAME": "web"}


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=5)))
def test_no_other_variable_of_ours_ever_gets_through(environ: dict[str, str]) -> None:
    assert set(launched(ours(), **environ).environment) <= {*KEPT, "HOSTNAME"}


def test_a_kubeconfig_is_for_those_that_have_a_token() -> None:
    found = launched(ours(), home=HOME._replace(kubeconfig=Path("/pods/k")))
    assert found.environment["KUBECONFIG"] == "/pods/k"


def test_variables_come_from_values_fields_and_entries_and_may_use_each_other() -> None:
    env = [
        {"name": "A", "value": "a"},
        {"name": "B", "value": "$(A)b $(NOBODY) $$(A)"},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "M", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
        {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "NOT", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k", "optional": True}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    ]
    sources = Sources({"m": {"data": {"k": "from a map"}}}, {"s": {"data": {"k": "aGlkZGVu"}}, "no": None}, {})
    found = launched(ours(env=env, args=["$(M)"], resources={"limits": {"cpu": "1500m"}}), sources)
    expected = {"A": "a", "B": "ab $(NOBODY) $(A)", "POD": "web", "M": "from a map", "S": "hidden", "CPU": "2"}
    assert {name: value for name, value in found.environment.items() if name != "HOSTNAME"} == expected
    assert found.command[1:] == ["from a map"]


def test_all_entries_of_a_map_can_be_variables() -> None:
    pod = ours(envFrom=[{"prefix": "P_", "configMapRef": {"name": "m"}}])
    assert launched(pod, Sources({"m": {"data": {"k": "v"}}}, {}, {})).environment["P_k"] == "v"


@pytest.mark.parametrize(
    ("origin", "why"),
    [
        ({"configMapKeyRef": {"name": "m", "key": "k"}}, 'ConfigMap "m" not found'),
        ({"secretKeyRef": {"name": "s", "key": "other"}}, 'Secret "s" has no entry "other"'),
    ],
)
def test_what_is_missing_is_named(origin: Object, why: str) -> None:
    sources = Sources({"m": None}, {"s": {"data": {"k": ""}}}, {})
    with pytest.raises(Missing, match=why):
        launched(ours(env=[{"name": "A", "valueFrom": origin}]), sources)


def test_a_dollar_can_be_written() -> None:
    assert substituted("$$ $(A) $(B) $", {"A": "1"}) == "$ 1 $(B) $"


def test_fields_of_the_pod_are_texts() -> None:
    pod = a_pod()
    pod["metadata"] |= {"labels": {"a/b": "x", "c": "y"}}
    assert field_text(pod, "metadata.labels['a/b']") == "x"
    assert field_text(pod, "metadata.labels") == 'a/b="x"\nc="y"'
    assert field_text(pod, "metadata.annotations['none']") == ""
    assert field_text(pod, "spec.nodeName") == "n"
    with pytest.raises(Missing):
        field_text(pod, "status.podIP")


@pytest.mark.parametrize(
    ("resource", "divisor", "text"),
    [
        ("limits.memory", "1Mi", "64"),
        ("limits.memory", "0", str(64 << 20)),
        ("requests.cpu", "1m", "250"),
        ("limits.cpu", "", "0"),
    ],
)
def test_amounts_are_in_units_of_the_divisor(resource: str, divisor: str, text: str) -> None:
    container = {"resources": {"limits": {"memory": "64Mi"}, "requests": {"cpu": "250m"}}}
    assert amount_text(a_pod(), container, {"resource": resource, "divisor": divisor}) == text


# -- volumes

ACCESS = {
    "name": "kube-api-access",
    "projected": {
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]
    },
}


def test_what_a_pod_needs_is_known_beforehand() -> None:
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    pod = ours(env=env, envFrom=[{"configMapRef": {"name": "m"}}])
    pod["spec"]["volumes"] = [ACCESS, {"name": "v", "secret": {"secretName": "mounted"}}, {"name": "e", "emptyDir": {}}]
    assert asked_by(pod) == (
        {"m", "kube-root-ca.crt"},
        {"s", "mounted"},
        {Token("", 3607)},
    )


def test_a_volume_is_projected_from_all_its_sources() -> None:
    sources = Sources({"kube-root-ca.crt": {"data": {"ca.crt": "pem", "other": "x"}}}, {}, {Token("", 3607): "jwt"})
    files = files_of(ACCESS, sources, lambda item: f"<{item['fieldRef']['fieldPath']}>")
    assert files == {"token": b"jwt", "ca.crt": b"pem", "namespace": b"<metadata.namespace>"}


def test_a_volume_has_the_entries_that_it_names_or_all() -> None:
    sources = Sources({"m": {"data": {"a": "1"}, "binaryData": {"b": "AA=="}}, "no": None}, {}, {})
    assert files_of({"configMap": {"name": "m"}}, sources, str) == {"a": b"1", "b": b"\x00"}
    chosen = {"name": "m", "items": [{"key": "a", "path": "x/y"}]}
    assert files_of({"configMap": chosen}, sources, str) == {"x/y": b"1"}
    assert files_of({"configMap": {"name": "no", "optional": True}}, sources, str) == {}
    with pytest.raises(Missing, match='"m" has no entry "z"'):
        files_of({"configMap": {"name": "m", "items": [{"key": "z", "path": "z"}]}}, sources, str)
