"""Commands, environments and folders that run a pod's containers as processes (pure).

`rejection_reason` says why a pod cannot run as processes.  `container_launch` returns what to run for a container.

There are no images and no mounts: a container is its command.  Mounted paths in commands, arguments and variables are
replaced by the folders that stand for them.  An argument that is an address without a host (`:8080`) with one of the
container's ports gets the pod's address.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
MAP_FIELD_PATTERN = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


@dataclass(frozen=True, slots=True)
class ProcessPolicy:
    """Pods and programs that may run as processes."""

    executable: Path
    """Program that the command `tapestry` means."""
    namespaces: frozenset[str] = frozenset({"tapestry-system"})
    run_pods: bool = False
    """Allow any pod and any command."""


class ContainerFolder(NamedTuple):
    folder: Path
    mounts: Mapping[str, Path]
    address: str
    """Address of the pod; empty if it uses its node's."""
    kubeconfig: Path | None = None
    """Kubeconfig with the token of its service account; None without a token."""


class Launch(NamedTuple):
    """Command, environment and working folder of a process."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path


# -- permission


def rejection_reason(pod: Object, policy: ProcessPolicy) -> str | None:
    """Return why the pod cannot run as processes; None if it can."""
    if not policy.run_pods and namespace_of(pod) not in policy.namespaces:
        return f"pods of the namespace {namespace_of(pod)} may not run as processes"
    for volume in pod["spec"].get("volumes") or ():
        if not any(kind in volume for kind in VOLUME_KINDS):
            return f"volume {volume['name']}: only {', '.join(VOLUME_KINDS)} are supported without mounts"
    return next(
        (
            f"container {each['name']}: {reason}"
            for each in containers_of(pod)
            for reason in container_rejections(each, policy)
        ),
        None,
    )


def container_rejections(container: Object, policy: ProcessPolicy) -> Iterator[str]:
    if not container.get("command"):
        yield "has no command, and images are not supported"
    if container.get("lifecycle"):
        yield "has lifecycle hooks, which are not supported"
    if any(value_at(container, probe, "grpc") for probe in PROBES):
        yield "has a gRPC probe, which is not supported"
    if not policy.run_pods:
        yield from program_allowlist.program_rejections(container)


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
    own = {
        name: with_local_paths(value, container_folder.mounts)
        for name, value in container_variables(pod, container, sources).items()
    }
    environment = {
        **allowed,
        "HOSTNAME": name_of(pod),
        **({"KUBECONFIG": str(container_folder.kubeconfig)} if container_folder.kubeconfig else {}),
        **own,
    }
    return Launch(
        container_command(container, own, container_folder, policy),
        environment,
        working_dir(container, container_folder),
    )


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
    """Return the command with variables, paths and addresses replaced."""
    expanded = [with_local_paths(expand_variables(each, environment), container_folder.mounts) for each in words]
    program, *arguments = expanded
    return [
        str(policy.executable) if program == PROGRAM else program,
        *(with_pod_address(each, ports, container_folder.address) for each in arguments),
    ]


def working_dir(container: Object, container_folder: ContainerFolder) -> Path:
    given = container.get("workingDir") or ""
    local = with_local_paths(given, container_folder.mounts)
    return Path(local) if local != given else container_folder.folder


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
