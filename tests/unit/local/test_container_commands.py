"""Commands of pods as processes, and rejected pods."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis.clusterbindings import CLUSTER_BINDING
from tapestry.kube.crds import decode_spec
from tapestry.kube.objects import Object
from tapestry.local.container_commands import (
    INHERITED_VARIABLES,
    TOKEN_MOUNT_PATH,
    ContainerFolder,
    Isolation,
    Launch,
    ProcessPolicy,
    container_launch,
    expand_variables,
    field_value,
    rejection_reason,
    resource_value,
    with_local_paths,
    with_pod_address,
)
from tapestry.local.container_setup import PodLauncher, container_mounts
from tapestry.local.pod_folders import PodFolder
from tapestry.local.volume_sources import MissingSource, Sources, TokenRequest, source_references, volume_files
from tapestry.local.world import with_local_settings
from tapestry.manager.config import BindingsConfig
from tapestry.manager.installation import installation_objects
from tapestry.manager.manifests import syncer_manifests
from tapestry.manager.syncers import load_templates, packaged_templates, scopes, template_values

from .pods import new_pod

RUNS = "container c: runs tapestry {}; only tapestry manager and tapestry syncer are allowed"
SECRET = {"name": "s", "namespace": "tapestry-system"}
TRUST = ProcessPolicy(Path("/opt/bin/tapestry"))
ANY = ProcessPolicy(Path("/opt/bin/tapestry"), run_pods=True)
ISOLATION = Isolation("/home/owner", ("/data/world",), ("/home/owner/.venv", "/opt"))
ISOLATED = ProcessPolicy(Path("/opt/bin/tapestry"), run_pods=True, user=1000, isolation=ISOLATION)
NOTHING = Sources({}, {}, {})
HOME = ContainerFolder(Path("/pods/c"), {"/etc/app": Path("/pods/volumes/app")}, "127.96.1.2")


def our_pod(namespace: str = "tapestry-system", **container: Any) -> Object:
    """Return a pod that runs our own program."""
    pod = new_pod(containers=[{"name": "c", "image": "i", "command": ["tapestry", "syncer"], **container}])
    return {**pod, "metadata": {**pod["metadata"], "namespace": namespace}}


def launch_of(
    pod: Object, sources: Sources = NOTHING, home: ContainerFolder = HOME, trust: ProcessPolicy = ANY, **environ: str
) -> Launch:
    return container_launch(pod, pod["spec"]["containers"][0], home, sources, trust, environ)


# -- allowed pods


def test_our_program_runs_in_trusted_namespace() -> None:
    assert rejection_reason(our_pod(args=["--binding", "b", "--kubelet-address=[::1]:0"]), TRUST) is None
    assert rejection_reason(our_pod(command=["tapestry"], args=["manager", "--leader-elect=false"]), TRUST) is None


def test_pods_of_our_manifests_run() -> None:
    binding = {"metadata": {"name": "b", "uid": "u"}, "spec": {"clusterID": "c", "secretRef": SECRET}}
    config = BindingsConfig(allow_loopback=True)
    filled = template_values(binding, decode_spec(CLUSTER_BINDING, binding), config)
    syncer = [
        each.object for each in syncer_manifests(load_templates(packaged_templates("syncer")), filled, scopes(config))
    ]
    deployments = [
        each for each in (*syncer, *map(with_local_settings, only_deployments())) if each["kind"] == "Deployment"
    ]
    assert len(deployments) == 2
    for deployment in deployments:
        pod = {**deployment["spec"]["template"], "metadata": {"name": "p", "namespace": "tapestry-system"}}
        assert rejection_reason(pod, TRUST) is None


def only_deployments() -> list[Object]:
    return [each for each in installation_objects() if each["kind"] == "Deployment"]


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (our_pod(namespace="default"), "pods of the namespace default may not run as processes"),
        (our_pod(command=["sh", "-c", "tapestry"]), "container c: runs sh; only tapestry is allowed"),
        (our_pod(command=["./tapestry"]), "container c: runs ./tapestry; only tapestry is allowed"),
        (our_pod(command=None), "container c: has no command, and images are not supported"),
        (
            our_pod(livenessProbe={"exec": {"command": ["cat", "/etc/shadow"]}}),
            "container c: has a probe that runs a command; use httpGet or tcpSocket",
        ),
        (our_pod(command=["tapestry"]), RUNS.format("")),
        (our_pod(command=["tapestry", "k", "get", "pods"]), RUNS.format("k")),
        (our_pod(command=["tapestry", "-h", "syncer"]), RUNS.format("-h")),
        (our_pod(command=["tapestry", "$(COMMAND)"]), RUNS.format("$(COMMAND)")),
        *(
            (our_pod(args=args), f"container c: has the argument {word}, which is not allowed for tapestry syncer")
            for word, args in (
                ("--kubeconfig", ["--kubeconfig", "/mnt/kc"]),
                ("--kubeconfig", ["--kubeconfig=/mnt/kc"]),
                ("--config", ["--config=/mnt/config"]),
                ("-c", ["-c", "/mnt/config"]),
                ("-c/mnt/config", ["-c/mnt/config"]),
                ("--context", ["--context=x"]),
                ("--audit", ["--binding", "--audit=/etc/cron.d/x"]),
                ("--syncer-image", ["--syncer-image=x"]),
                ("--", ["--", "--config=x"]),
            )
        ),
        *(
            (
                our_pod(command=["tapestry", "manager", word]),
                f"container c: has the argument {word}, which is not allowed for tapestry manager",
            )
            for word in ("--deploy-kubeconfig", "--template-dir", "--binding")
        ),
        (
            our_pod(args=["--binding=$(X)"]),
            "container c: has the argument --binding=$(X); variables in arguments are not allowed",
        ),
        *(
            (
                our_pod(env=[{"name": name, "value": "/etc/app"}]),
                f"container c: sets {name}, which is not an allowed variable of tapestry",
            )
            for name in (
                "PYTHONPATH",
                "PYTHONSTARTUP",
                "LD_PRELOAD",
                "KUBECONFIG",
                "HOME",
                "PATH",
                "OPENSSL_CONF",
                "GCONV_PATH",
                "SSL_CERT_FILE",
                "TMPDIR",
                "TAPESTRY_KUBECONFIG",
                "TAPESTRY_AUDIT",
                "TAPESTRY_DEPLOY_KUBECONFIG",
                "TAPESTRY_TEMPLATE_DIR",
                "TAPESTRY_METRICS_KEY",
                "_TAPESTRY_COMPLETE",
                "KUBERNETES_SERVICE_HOST",
            )
        ),
        (our_pod(workingDir="/etc/app"), "container c: has a workingDir; remove it"),
        (
            our_pod(envFrom=[{"secretRef": {"name": "s"}}]),
            "container c: has variables with unknown names (envFrom)",
        ),
        (
            our_pod(lifecycle={"preStop": {"sleep": {"seconds": 1}}}),
            "container c: has lifecycle hooks, which are not supported",
        ),
        (our_pod(readinessProbe={"grpc": {"port": 1}}), "container c: has a gRPC probe, which is not supported"),
    ],
)
def test_other_containers_are_rejected(pod: Object, why: str) -> None:
    assert rejection_reason(pod, TRUST) == why


def test_init_containers_are_checked() -> None:
    pod = our_pod()
    pod["spec"]["initContainers"] = [{"name": "i", "image": "i", "command": ["curl"]}]
    assert rejection_reason(pod, TRUST) == "container i: runs curl; only tapestry is allowed"


def test_volume_that_needs_a_mount_is_rejected() -> None:
    pod = our_pod()
    pod["spec"]["volumes"] = [{"name": "v", "hostPath": {"path": "/"}}]
    assert (rejection_reason(pod, ANY) or "").startswith("volume v: only configMap, secret,")


def test_run_pods_allows_any_command_but_no_images() -> None:
    assert rejection_reason(our_pod(namespace="default", command=["sleep", "1"]), ANY) is None
    assert rejection_reason(our_pod(command=[]), ANY) is not None


def with_spec(**spec: Any) -> Object:
    pod = our_pod()
    return {**pod, "spec": {**pod["spec"], **spec}}


NO_HOST = "is not supported: a pod may not use the namespaces of this machine"


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (with_spec(hostNetwork=True), f"pod: hostNetwork {NO_HOST}"),
        (with_spec(hostPID=True), f"pod: hostPID {NO_HOST}"),
        (with_spec(hostIPC=True), f"pod: hostIPC {NO_HOST}"),
        (
            with_spec(securityContext={"runAsUser": 0}),
            "pod: runAsUser 0 is not supported: processes of the pod run as the user 1000",
        ),
        (
            with_spec(securityContext={"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}),
            "pod: securityContext.sysctls is not supported",
        ),
        (
            our_pod(securityContext={"privileged": True}),
            "container c: is privileged; processes have no more rights than the user who started the kubelet",
        ),
        (
            our_pod(securityContext={"capabilities": {"add": ["NET_BIND_SERVICE", "SYS_ADMIN"]}}),
            "container c: adds the capability SYS_ADMIN; processes have no capabilities",
        ),
        (
            our_pod(securityContext={"runAsUser": 0}),
            "container c: runAsUser 0 is not supported: processes of the pod run as the user 1000",
        ),
        (
            our_pod(securityContext={"procMount": "Unmasked"}),
            "container c: has another procMount than Default",
        ),
        (
            our_pod(ports=[{"containerPort": 80, "hostPort": 80}]),
            "container c: has the hostPort 80, which is not supported",
        ),
        (our_pod(volumeDevices=[{"name": "v"}]), "container c: has volumeDevices, which are not supported"),
        *(
            (
                our_pod(volumeMounts=[{"name": "v", "mountPath": path}]),
                f"container c: has the mountPath {path}; it must be an absolute path other than / and not below /proc",
            )
            for path in ("/", "//", "/a/..", "relative", "../up", "/proc", "/proc/1/root", "/x/../proc/sys")
        ),
        (
            our_pod(volumeMounts=[{"name": "v", "mountPath": "/v", "subPath": "a/../../b"}]),
            "container c: has the subPath a/../../b, which leaves the volume",
        ),
        (
            our_pod(volumeMounts=[{"name": "v", "mountPath": "/v", "subPathExpr": "$(A)"}]),
            "container c: has a subPathExpr, which is not supported",
        ),
        (
            our_pod(volumeMounts=[{"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}]),
            "container c: has the mountPropagation Bidirectional, which is not supported",
        ),
        *(
            (
                our_pod(image=path),
                f"container c: has the image {path}, a folder that is hidden from containers; use another folder",
            )
            for path in ("/home/owner/.ssh", "/srv/../home/owner", "/data/world/virtual", "/run")
        ),
    ],
)
def test_pod_cannot_request_more_than_the_user_allows(pod: Object, why: str) -> None:
    assert rejection_reason(pod, ISOLATED) == why


def test_harmless_security_settings_are_accepted() -> None:
    context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}
    pod = our_pod(securityContext={**context, "runAsUser": 1000, "runAsNonRoot": True}, image="/srv/app")
    assert rejection_reason(pod, ISOLATED) is None
    pod = with_spec(securityContext={"runAsUser": 65532, "runAsNonRoot": True})
    assert rejection_reason(pod, replace(ISOLATED, user=0)) is None
    root = ProcessPolicy(Path("tapestry"), run_pods=True, user=0)
    assert (rejection_reason(pod, root) or "").startswith("pod: runAsUser 65532 is not supported")
    assert (rejection_reason(our_pod(securityContext={"runAsNonRoot": True}), root) or "") == (
        "container c: runAsNonRoot is not supported: processes run as root, who started the kubelet"
    )


# -- launches


def test_isolated_container_has_its_own_home_and_unchanged_paths() -> None:
    container = {"args": ["/etc/app/x", ":8080"], "ports": [{"containerPort": 8080}], "stdin": True, "tty": True}
    found = launch_of(our_pod(command=["cat"], **container), trust=ISOLATED, HOME="/home/owner", TMPDIR="/secret")
    assert found.command == ["cat", "/etc/app/x", ":8080"]
    assert found.folder == Path("/home/owner")
    assert found.environment == {"HOME": "/home/owner", "HOSTNAME": "web", "TERM": "xterm"}
    assert (found.terminal, found.stdin, found.stdin_once) == (True, True, False)


def test_working_folder_comes_from_spec_or_image() -> None:
    for trust, home in ((ISOLATED, "/home/owner"), (ANY, "/pods/c")):
        assert launch_of(our_pod(image="/srv/app"), trust=trust).folder == Path("/srv/app")
        assert launch_of(our_pod(image="nginx"), trust=trust).folder == Path(home)
    assert launch_of(our_pod(image="/srv/app", workingDir="/etc/app"), trust=ISOLATED).folder == Path("/etc/app")


def test_limits_of_a_container_limit_each_process() -> None:
    limits = {"memory": "64Mi", "cpu": "1", "ephemeral-storage": "1Gi"}
    found = launch_of(our_pod(resources={"limits": limits}))
    assert found.limits == {"CORE": 0, "DATA": 64 << 20, "FSIZE": 1 << 30}
    assert launch_of(our_pod(), trust=TRUST).limits is None


def test_only_empty_dirs_are_mounted_writable(tmp_path: Path) -> None:
    pod = with_spec(volumes=[{"name": "e", "emptyDir": {}}, {"name": "m", "configMap": {"name": "m"}}])
    mounts = [{"name": "m", "mountPath": "/a/b"}, {"name": "e", "mountPath": "/a", "subPath": "s"}]
    found = list(
        container_mounts(pod, {"name": "c", "volumeMounts": mounts}, PodFolder(tmp_path), ISOLATION, tmp_path / "k")
    )
    assert [(each.path, each.read_only) for each in found] == [
        ("/tmp", False),
        ("/home/owner", False),
        ("/home/owner/.venv", True),
        ("/run/kubeconfig", True),
        ("/a", False),
        ("/a/b", True),
    ]
    assert found[-2].sub_path == "s"


def test_image_must_be_a_folder_of_this_machine(tmp_path: Path) -> None:
    launches = PodLauncher(PodFolder(tmp_path), "127.96.1.2", "https://server", ANY, {})
    with pytest.raises(MissingSource, match='the image "/no/such/folder" is not a folder of this machine'):
        launches.prepare(our_pod(image="/no/such/folder"), NOTHING)


def test_leased_pod_gets_no_kubeconfig_for_the_wrong_cluster(tmp_path: Path) -> None:
    mount = {"name": "v", "mountPath": TOKEN_MOUNT_PATH}
    pod = with_spec(volumes=[{"name": "v", "secret": {"secretName": "token-of-another-cluster"}}])
    assert PodFolder(tmp_path).kubeconfig(pod, {"name": "c", "volumeMounts": [mount]}, "https://server") is None


def test_command_is_our_executable_with_container_arguments() -> None:
    for trust in (TRUST, ANY):
        found = launch_of(our_pod(args=["--binding", "b"]), trust=trust)
        assert found.command == ["/opt/bin/tapestry", "syncer", "--binding", "b"]
        assert found.folder == HOME.folder


def test_mount_never_changes_program_or_arguments() -> None:
    mounts = {each: Path("/pods/volumes/evil") for each in ("tapestry", "syncer", "--binding", "b")}
    pod = our_pod(args=["--binding", "b"], env=[{"name": "TAPESTRY_NAMESPACE", "value": "b"}])
    assert rejection_reason(pod, TRUST) is None
    found = launch_of(pod, home=HOME._replace(mounts=mounts), trust=TRUST)
    assert found.command == ["/opt/bin/tapestry", "syncer", "--binding", "b"]


def test_our_program_has_no_home_and_only_its_kubeconfig() -> None:
    environ = {"HOME": "/home/owner", "KUBECONFIG": "/home/owner/.kube/config", "PATH": "/bin", "PYTHONPATH": "/evil"}
    expected = {
        "PATH": "/bin",
        "HOME": "/nonexistent",
        "PYTHONNOUSERSITE": "1",
        "PYTHONSAFEPATH": "1",
        "HOSTNAME": "web",
    }
    assert launch_of(our_pod(), trust=TRUST, **environ).environment == expected
    found = launch_of(our_pod(), home=HOME._replace(kubeconfig=Path("/pods/k")), trust=TRUST, **environ)
    assert found.environment == {**expected, "KUBECONFIG": "/pods/k"}


def test_container_variables_do_not_override_ours() -> None:
    names = ("HOME", "KUBECONFIG", "PATH", "PYTHONNOUSERSITE", "HOSTNAME")
    pod = our_pod(env=[{"name": name, "value": "/evil"} for name in names])
    found = launch_of(pod, home=HOME._replace(kubeconfig=Path("/pods/k")), trust=TRUST, PATH="/bin")
    assert "/evil" not in found.environment.values()


def test_volume_cannot_contain_the_kubeconfig(tmp_path: Path) -> None:
    folder = PodFolder(tmp_path)
    mount = {"name": "v", "mountPath": TOKEN_MOUNT_PATH, "subPath": "x"}
    token = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    pod = with_spec(volumes=[{"name": "v", **token}])
    found = folder.kubeconfig(pod, {"name": "c", "volumeMounts": [mount]}, "https://server")
    assert found is not None
    assert not found.is_relative_to(folder.volume("v"))


def test_ephemeral_containers_are_not_run(tmp_path: Path) -> None:
    pod = our_pod()
    pod["spec"]["ephemeralContainers"] = [{"name": "debug", "image": "i", "command": ["sh"]}]
    launches = PodLauncher(PodFolder(tmp_path), "127.96.1.2", "https://server", TRUST, {})
    launches.prepare(pod, NOTHING)
    assert list(launches.launches) == ["c"]


def test_mounted_paths_become_folders_everywhere() -> None:
    container = {
        "args": ["--config=/etc/app/config.yaml", "/etc/application", "/etc/app", "x:/etc/app/y", "/opt/etc/app"],
        "env": [{"name": "CONFIG", "value": "/etc/app/config.yaml"}],
        "workingDir": "/etc/app/work",
    }
    found = launch_of(our_pod(command=["tapestry"], **container))
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


def test_inner_mount_wins() -> None:
    mounts = {"/etc": Path("/a"), "/etc/app": Path("/b")}
    assert with_local_paths("/etc/app/x /etc/y", mounts) == "/b/x /a/y"


def test_container_port_gets_pod_address() -> None:
    ports = [{"containerPort": 8080}, {"containerPort": 8081}]
    args = ["--metrics=:8080", ":8081", "--other=:9090", "--host=1.2.3.4:8080", "a:8080"]
    found = launch_of(our_pod(command=["tapestry"], args=args, ports=ports))
    assert found.command[1:] == ["--metrics=127.96.1.2:8080", "127.96.1.2:8081", *args[2:]]
    assert with_pod_address("--metrics=:8080", frozenset({"8080"}), "") == "--metrics=:8080"


def test_container_inherits_only_harmless_variables() -> None:
    found = launch_of(our_pod(), PATH="/bin", AWS_SECRET_ACCESS_KEY="s", KUBECONFIG="mine", TZ="UTC")
    assert found.environment == {"PATH": "/bin", "TZ": "UTC", "HOSTNAME": "web"}


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=5)))
def test_no_other_variable_is_inherited(environ: dict[str, str]) -> None:
    assert set(launch_of(our_pod(), **environ).environment) <= {*INHERITED_VARIABLES, "HOSTNAME"}


def test_kubeconfig_needs_a_token() -> None:
    found = launch_of(our_pod(), home=HOME._replace(kubeconfig=Path("/pods/k")))
    assert found.environment["KUBECONFIG"] == "/pods/k"


def test_variables_come_from_values_fields_and_entries() -> None:
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
    found = launch_of(our_pod(command=["x"], env=env, args=["$(M)"], resources={"limits": {"cpu": "1500m"}}), sources)
    expected = {"A": "a", "B": "ab $(NOBODY) $(A)", "POD": "web", "M": "from a map", "S": "hidden", "CPU": "2"}
    assert {name: value for name, value in found.environment.items() if name != "HOSTNAME"} == expected
    assert found.command[1:] == ["from a map"]


def test_all_entries_of_a_map_become_variables() -> None:
    pod = our_pod(envFrom=[{"prefix": "P_", "configMapRef": {"name": "m"}}])
    assert launch_of(pod, Sources({"m": {"data": {"k": "v"}}}, {}, {})).environment["P_k"] == "v"


@pytest.mark.parametrize(
    ("origin", "why"),
    [
        ({"configMapKeyRef": {"name": "m", "key": "k"}}, 'ConfigMap "m" not found'),
        ({"secretKeyRef": {"name": "s", "key": "other"}}, 'Secret "s" has no entry "other"'),
    ],
)
def test_missing_source_is_named(origin: Object, why: str) -> None:
    sources = Sources({"m": None}, {"s": {"data": {"k": ""}}}, {})
    with pytest.raises(MissingSource, match=why):
        launch_of(our_pod(env=[{"name": "A", "valueFrom": origin}]), sources)


def test_dollar_can_be_escaped() -> None:
    assert expand_variables("$$ $(A) $(B) $", {"A": "1"}) == "$ 1 $(B) $"


def test_pod_fields_are_texts() -> None:
    pod = new_pod()
    pod["metadata"] |= {"labels": {"a/b": "x", "c": "y"}}
    assert field_value(pod, "metadata.labels['a/b']") == "x"
    assert field_value(pod, "metadata.labels") == 'a/b="x"\nc="y"'
    assert field_value(pod, "metadata.annotations['none']") == ""
    assert field_value(pod, "spec.nodeName") == "n"
    with pytest.raises(MissingSource):
        field_value(pod, "status.podIP")


@pytest.mark.parametrize(
    ("resource", "divisor", "text"),
    [
        ("limits.memory", "1Mi", "64"),
        ("limits.memory", "0", str(64 << 20)),
        ("requests.cpu", "1m", "250"),
        ("limits.cpu", "", "0"),
    ],
)
def test_amounts_are_in_units_of_divisor(resource: str, divisor: str, text: str) -> None:
    container = {"resources": {"limits": {"memory": "64Mi"}, "requests": {"cpu": "250m"}}}
    assert resource_value(new_pod(), container, {"resource": resource, "divisor": divisor}) == text


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


def test_source_references_list_all_needs() -> None:
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    pod = our_pod(env=env, envFrom=[{"configMapRef": {"name": "m"}}])
    pod["spec"]["volumes"] = [ACCESS, {"name": "v", "secret": {"secretName": "mounted"}}, {"name": "e", "emptyDir": {}}]
    assert source_references(pod) == (
        {"m", "kube-root-ca.crt"},
        {"s", "mounted"},
        {TokenRequest("", 3607)},
    )


def test_volume_is_projected_from_all_sources() -> None:
    sources = Sources(
        {"kube-root-ca.crt": {"data": {"ca.crt": "pem", "other": "x"}}}, {}, {TokenRequest("", 3607): "jwt"}
    )
    files = volume_files(ACCESS, sources, lambda item: f"<{item['fieldRef']['fieldPath']}>")
    assert files == {"token": b"jwt", "ca.crt": b"pem", "namespace": b"<metadata.namespace>"}


def test_volume_has_selected_or_all_entries() -> None:
    sources = Sources({"m": {"data": {"a": "1"}, "binaryData": {"b": "AA=="}}, "no": None}, {}, {})
    assert volume_files({"configMap": {"name": "m"}}, sources, str) == {"a": b"1", "b": b"\x00"}
    chosen = {"name": "m", "items": [{"key": "a", "path": "x/y"}]}
    assert volume_files({"configMap": chosen}, sources, str) == {"x/y": b"1"}
    assert volume_files({"configMap": {"name": "no", "optional": True}}, sources, str) == {}
    with pytest.raises(MissingSource, match='"m" has no entry "z"'):
        volume_files({"configMap": {"name": "m", "items": [{"key": "z", "path": "z"}]}}, sources, str)
