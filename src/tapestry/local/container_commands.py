"""Commands, environments and folders that run a pod's containers as processes. Pure.

`rejection_reason` says why a pod cannot run as processes.  `container_launch` returns what to run for a container.

A container is its command.  An image that is an absolute path is its working folder; any other image has no effect.
With namespaces, volumes are mounted (`container_mounts`).  Without them, mounted paths in commands, arguments and
variables are replaced by the folders that stand for them, and an argument that is an address without a host (`:8080`)
with one of the container's ports gets the pod's address.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from tapestry.kube.objects import Object, annotations_of, labels_of, name_of, namespace_of, uid_of, value_at
from tapestry.kube.pods import containers_of
from tapestry.kube.quantity import ResourceList, parse_quantity
from tapestry.local import program_allowlist
from tapestry.local.program_allowlist import PROBES, PROGRAM
from tapestry.local.volume_sources import VOLUME_KINDS, MissingSource, Sources, decode_text

INHERITED_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "TMPDIR")
"""Environment variables that containers inherit; none of them may contain a secret."""
TOKEN_MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
VARIABLE_PATTERN = re.compile(r"\$(\$|\(([A-Za-z_.-][A-Za-z0-9_.-]*)\))")
KUBECONFIG_PATH = "/run/kubeconfig"
"""Path of the kubeconfig in containers with namespaces."""
NEEDLESS_CAPABILITIES = {"NET_BIND_SERVICE", "SYS_PTRACE"}
"""Capabilities that a container may add, because all may use low ports and trace processes of their own user."""
DEFAULT_SHELL = ["sh"]
"""Command of an ephemeral container without one."""
MAP_FIELD_PATTERN = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


@dataclass(frozen=True, slots=True)
class Isolation:
    """Folders of this machine in containers with namespaces of their own; other folders are read-only there."""

    home: str
    """Home folder of the user, which is replaced by the folder of the container."""
    hidden: tuple[str, ...] = ()
    """Folders that are empty in containers."""
    visible: tuple[str, ...] = ()
    """Read-only folders that containers see even if they are below a hidden or replaced one."""

    def hides(self, path: str) -> bool:
        replaced = (self.home, *self.hidden, "/tmp", "/run", "/dev", "/proc")
        return any(is_below(path, each) for each in replaced)


def is_below(path: str, folder: str) -> bool:
    return posixpath.normpath(path) == folder or posixpath.normpath(path).startswith(folder.rstrip("/") + "/")


@dataclass(frozen=True, slots=True)
class ProcessPolicy:
    """Pods and programs that may run as processes."""

    executable: Path
    """Program that the command `tapestry` means."""
    namespaces: frozenset[str] = frozenset({"tapestry-system"})
    run_pods: bool = False
    """Allow any pod and any command."""
    user: int = 0
    """ID of the user as whom processes run."""
    isolation: Isolation | None = None
    """Namespaces of the pods' containers; None runs plain processes."""


class ContainerFolder(NamedTuple):
    folder: Path
    mounts: Mapping[str, Path]
    address: str
    """Address of the pod; empty if it uses its node's."""
    kubeconfig: Path | None = None
    """Kubeconfig with the token of its service account; None without a token."""


class ContainerMount(NamedTuple):
    path: str
    source: Path
    sub_path: str = ""
    """Path below the source that the pod chose; it may contain symbolic links of the pod."""
    read_only: bool = True


class Launch(NamedTuple):
    """Command, environment and working folder of a process."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    mounts: Sequence[ContainerMount] = ()
    """Mounts of a container with namespaces."""
    limits: Mapping[str, int] | None = None
    """Resource limits as `setrlimit` names them; None for our own program, which has none."""
    terminal: bool = False
    stdin: bool = False
    stdin_once: bool = False


# -- permission


def rejection_reason(pod: Object, policy: ProcessPolicy) -> str | None:
    """Return why the pod cannot run as processes; None if it can."""
    if not policy.run_pods and namespace_of(pod) not in policy.namespaces:
        return f"pods of the namespace {namespace_of(pod)} may not run as processes"
    for volume in pod["spec"].get("volumes") or ():
        if not any(kind in volume for kind in VOLUME_KINDS):
            return f"volume {volume['name']}: only {', '.join(VOLUME_KINDS)} are supported without mounts"
    if policy.run_pods and (reason := next(pod_security_rejections(pod, policy), None)):
        return f"pod: {reason}"
    return next(filter(None, (container_rejection_reason(pod, each, policy) for each in containers_of(pod))), None)


def container_rejection_reason(pod: Object, container: Object, policy: ProcessPolicy) -> str | None:
    reason = next(container_rejections(container, replace(policy, user=pod_user(pod, policy))), None)
    return f"container {container['name']}: {reason}" if reason else None


def container_rejections(container: Object, policy: ProcessPolicy) -> Iterator[str]:
    if not container.get("command"):
        yield "has no command, and images are not supported"
    if container.get("lifecycle"):
        yield "has lifecycle hooks, which are not supported"
    if any(value_at(container, probe, "grpc") for probe in PROBES):
        yield "has a gRPC probe, which is not supported"
    if policy.run_pods:
        yield from security_rejections(container, policy)
    else:
        yield from program_allowlist.program_rejections(container)


def pod_security_rejections(pod: Object, policy: ProcessPolicy) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod["spec"].get(name):
            yield f"{name} is not supported: a pod may not use the namespaces of this machine"
    context = pod["spec"].get("securityContext") or {}
    if context.get("sysctls"):
        yield "securityContext.sysctls is not supported"
    yield from user_rejections(context, replace(policy, user=pod_user(pod, policy)))


def pod_user(pod: Object, policy: ProcessPolicy) -> int:
    """Return the ID of the user in the pod.  In a user namespace, the user can have any ID except that of root."""
    user: int | None = value_at(pod, "spec", "securityContext", "runAsUser")
    return user if user and policy.isolation is not None else policy.user


def user_rejections(context: Object, policy: ProcessPolicy) -> Iterator[str]:
    user = context.get("runAsUser")
    if user is not None and user != policy.user:
        yield f"runAsUser {user} is not supported: processes of the pod run as the user {policy.user}"
    if context.get("runAsNonRoot") and policy.user == 0:
        yield "runAsNonRoot is not supported: processes run as root, who started the kubelet"


def security_rejections(container: Object, policy: ProcessPolicy) -> Iterator[str]:
    """Yield what a container requests beyond the rights of the user, or what would be ignored."""
    context = container.get("securityContext") or {}
    if context.get("privileged"):
        yield "is privileged; processes have no more rights than the user who started the kubelet"
    added = {*(value_at(context, "capabilities", "add", default=()))} - NEEDLESS_CAPABILITIES
    if added:
        yield f"adds the capability {min(added)}; processes have no capabilities"
    if (context.get("procMount") or "Default") != "Default":
        yield "has another procMount than Default"
    yield from user_rejections(context, policy)
    for port in container.get("ports") or ():
        if port.get("hostPort"):
            yield f"has the hostPort {port['hostPort']}, which is not supported"
    if container.get("volumeDevices"):
        yield "has volumeDevices, which are not supported"
    for each in container.get("volumeMounts") or ():
        yield from mount_rejections(each)
    image = container.get("image") or ""
    if policy.isolation is not None and image.startswith("/") and policy.isolation.hides(image):
        yield f"has the image {image}, a folder that is hidden from containers; use another folder"


def mount_rejections(mount: Object) -> Iterator[str]:
    path = mount["mountPath"]
    normal = posixpath.normpath(path)
    if not path.startswith("/") or normal in ("/", "//") or is_below(normal, "/proc"):
        yield f"has the mountPath {path}; it must be an absolute path other than / and not below /proc"
    if ".." in (mount.get("subPath") or "").split("/"):
        yield f"has the subPath {mount['subPath']}, which leaves the volume"
    if mount.get("subPathExpr"):
        yield "has a subPathExpr, which is not supported"
    if (mount.get("mountPropagation") or "None") != "None":
        yield f"has the mountPropagation {mount['mountPropagation']}, which is not supported"


# -- launch


def container_launch(
    pod: Object,
    container: Object,
    container_folder: ContainerFolder,
    sources: Sources,
    policy: ProcessPolicy,
    inherited: Mapping[str, str],
) -> Launch:
    """Return what to run for the container; `inherited` are this process's variables.  Raise MissingSource."""
    allowed = {name: inherited[name] for name in INHERITED_VARIABLES if name in inherited}
    if not policy.run_pods:
        return tapestry_launch(pod, container, container_folder, sources, policy, allowed)
    own = container_variables(pod, container, sources)
    if policy.isolation is None:
        own = {name: with_local_paths(value, container_folder.mounts) for name, value in own.items()}
        given, kubeconfig = allowed, container_folder.kubeconfig
    else:
        given = {name: value for name, value in allowed.items() if name != "TMPDIR"} | {"HOME": policy.isolation.home}
        kubeconfig = Path(KUBECONFIG_PATH) if container_folder.kubeconfig else None
    environment = {
        **given,
        "HOSTNAME": pod["spec"].get("hostname") or name_of(pod),
        **({"TERM": "xterm"} if container.get("tty") else {}),
        **({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {}),
        **own,
    }
    return Launch(
        container_command(container, own, container_folder, policy),
        environment,
        working_dir(container, container_folder, policy.isolation),
        limits=resource_limits(container),
        terminal=bool(container.get("tty")),
        stdin=bool(container.get("stdin")),
        stdin_once=bool(container.get("stdinOnce")),
    )


def resource_limits(container: Object) -> dict[str, int]:
    """Return limits of one process: memory that it allocates, size of a file, and no core dumps."""
    amounts = ResourceList.parse(value_at(container, "resources", "limits"))
    names = {"memory": "DATA", "ephemeral-storage": "FSIZE"}
    return {"CORE": 0} | {names[each]: amount.value() for each, amount in amounts.items() if each in names}


def tapestry_launch(
    pod: Object,
    container: Object,
    container_folder: ContainerFolder,
    sources: Sources,
    policy: ProcessPolicy,
    inherited: Mapping[str, str],
) -> Launch:
    """Return what to run for Tapestry's own program, after `rejection_reason` accepted it.

    Paths and variables are not replaced, so that no argument can become another.
    """
    words = [*container["command"], *(container.get("args") or ())]
    arguments = [with_pod_address(each, ports_of(container), container_folder.address) for each in words[1:]]
    environment = {
        **container_variables(pod, container, sources),
        "HOSTNAME": name_of(pod),
        **program_allowlist.enforced_environment(inherited, container_folder.kubeconfig),
    }
    return Launch([str(policy.executable), *arguments], environment, container_folder.folder)


def ports_of(container: Object) -> frozenset[str]:
    return frozenset(str(each["containerPort"]) for each in container.get("ports") or ())


def container_command(
    container: Object, environment: Mapping[str, str], container_folder: ContainerFolder, policy: ProcessPolicy
) -> list[str]:
    words = [*container["command"], *(container.get("args") or ())]
    return localized_command(words, environment, container_folder, policy, ports_of(container))


def localized_command(
    words: Sequence[str],
    environment: Mapping[str, str],
    container_folder: ContainerFolder,
    policy: ProcessPolicy,
    ports: frozenset[str] = frozenset(),
) -> list[str]:
    """Return the command with variables replaced, and without namespaces also paths and addresses."""
    program, *arguments = [expand_variables(each, environment) for each in words]
    if policy.isolation is None:
        program, *arguments = [with_local_paths(each, container_folder.mounts) for each in (program, *arguments)]
        arguments = [with_pod_address(each, ports, container_folder.address) for each in arguments]
    return [str(policy.executable) if program == PROGRAM else program, *arguments]


def exec_command(words: Sequence[str], container_folder: ContainerFolder, policy: ProcessPolicy) -> list[str]:
    """Return the command to execute in a running container; variables are not replaced."""
    if policy.isolation is not None:
        return list(words)
    return [with_local_paths(each, container_folder.mounts) for each in words]


def working_dir(container: Object, container_folder: ContainerFolder, isolation: Isolation | None) -> Path:
    given, image = container.get("workingDir") or "", container.get("image") or ""
    local = given if isolation is not None else with_local_paths(given, container_folder.mounts)
    if given and (local != given or isolation is not None):
        return Path(local)
    if image.startswith("/"):
        return Path(image)
    return Path(isolation.home) if isolation is not None else container_folder.folder


def with_local_paths(text: str, mounts: Mapping[str, Path]) -> str:
    """Replace mounted paths in `text` by the folders that stand for them."""
    if not mounts:
        return text
    longest = sorted(mounts, key=len, reverse=True)
    pattern = rf"(?<![\w./-])({'|'.join(map(re.escape, longest))})(?![\w.-])"
    return re.sub(pattern, lambda found: str(mounts[found[1]]), text)


def with_pod_address(argument: str, ports: frozenset[str], address: str) -> str:
    """Add the pod's address to `--bind=:8080` if 8080 is a port of the container."""
    before, colon, port = argument.rpartition(":")
    if colon and address and port in ports and (not before or before.endswith("=")):
        return f"{before}{address}:{port}"
    return argument


def expand_variables(text: str, environment: Mapping[str, str]) -> str:
    """Replace `$(NAME)` in `text`; unknown names stay, and `$$` is a dollar sign."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] == "$" else environment.get(found[2], found[0])

    return VARIABLE_PATTERN.sub(value, text)


# -- variables


def container_variables(pod: Object, container: Object, sources: Sources) -> dict[str, str]:
    """Return the container's own variables; later ones may use earlier ones."""
    known: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        known |= {source.get("prefix", "") + name: decode_text(text) for name, text in sources.entries(source).items()}
    for each in container.get("env") or ():
        value = variable_value(pod, container, each, sources, known)
        if value is not None:
            known[each["name"]] = value
    return known


def variable_value(
    pod: Object, container: Object, variable: Object, sources: Sources, known: Mapping[str, str]
) -> str | None:
    origin = variable.get("valueFrom")
    if not origin:
        return expand_variables(variable.get("value") or "", known)
    if "fieldRef" in origin:
        return field_value(pod, origin["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in origin:
        return resource_value(pod, container, origin["resourceFieldRef"])
    found = sources.entry(origin)
    return None if found is None else decode_text(found)


def field_value(pod: Object, path: str) -> str:
    if found := MAP_FIELD_PATTERN.fullmatch(path):
        values: Mapping[str, str] = labels_of(pod) if found[1] == "labels" else annotations_of(pod)
        return values.get(found[2], "")
    if path in ("metadata.labels", "metadata.annotations"):
        values = labels_of(pod) if path.endswith("labels") else annotations_of(pod)
        return "\n".join(f'{name}="{value}"' for name, value in sorted(values.items()))
    if path in ("status.podIPs", "status.hostIPs"):
        return ",".join(each["ip"] for each in value_at(pod, *path.split("."), default=[]))
    if path == "metadata.uid":
        return uid_of(pod)
    found_at = value_at(pod, *path.split("."))
    if found_at is None and path not in ("spec.serviceAccountName",):
        raise MissingSource(f"{path}: not set on the pod")
    return str(found_at or "")


def resource_value(pod: Object, container: Object, reference: Object) -> str:
    """Return the request or limit of a resource in units of the divisor, rounded up."""
    container_name = reference.get("containerName")
    spec = next((each for each in containers_of(pod) if each["name"] == container_name), container)
    part, _, resource = reference["resource"].partition(".")
    amount = ResourceList.parse(value_at(spec, "resources", part)).get(resource, parse_quantity(0))
    divisor = parse_quantity(reference.get("divisor") or "1")
    return str(-(-amount.nano // (divisor.nano or parse_quantity("1").nano)))
