"""How a pod becomes commands of this machine.  Pure.

    refusal      why a pod may not, or cannot, run as processes
    launch       what to run for one container: a command, an environment, a folder

There are no images and no mounts: a container is its command.  Where its command, arguments or variables name a path
that is mounted, the folder that stands for it takes its place; an argument that is an address without a host (`:8080`)
and one of its ports gets the pod's own.
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
"""The variables of ours that a container gets: none that could tell a secret."""
TOKEN_MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
VARIABLE_PATTERN = re.compile(r"\$(\$|\(([A-Za-z_.-][A-Za-z0-9_.-]*)\))")
MAP_FIELD_PATTERN = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


@dataclass(frozen=True, slots=True)
class ProcessPolicy:
    """Whose pods run as processes, and which programs."""

    executable: Path
    """What the command `tapestry` is."""
    namespaces: frozenset[str] = frozenset({"tapestry-system"})
    run_pods: bool = False
    """Whether any pod may run any command."""


class ContainerFolder(NamedTuple):
    """Where a container lives."""

    folder: Path
    mounts: Mapping[str, Path]
    """The folders, or files, that stand for the paths it has mounted."""
    address: str
    """Of its pod; empty where it uses its node's."""
    kubeconfig: Path | None = None
    """By which it reaches the API server as its account; None where it has no token."""


class Launch(NamedTuple):
    """What to run."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path


# -- what may run


def rejection_reason(pod: Object, policy: ProcessPolicy) -> str | None:
    """Why the pod does not run here; None if it does."""
    if not policy.run_pods and namespace_of(pod) not in policy.namespaces:
        return f"pods of the namespace {namespace_of(pod)} are not run as processes"
    for volume in pod["spec"].get("volumes") or ():
        if not any(kind in volume for kind in VOLUME_KINDS):
            return f"volume {volume['name']}: only {', '.join(VOLUME_KINDS)} can be had without mounts"
    return next(
        (
            f"container {each['name']}: {why}"
            for each in containers_of(pod)
            for why in container_rejections(each, policy)
        ),
        None,
    )


def container_rejections(container: Object, policy: ProcessPolicy) -> Iterator[str]:
    if not container.get("command"):
        yield "has no command, and there are no images here that could have one"
    if container.get("lifecycle"):
        yield "has lifecycle hooks, which are not run here"
    if any(value_at(container, probe, "grpc") for probe in PROBES):
        yield "has a probe by gRPC, which is not made here"
    if not policy.run_pods:
        yield from program_allowlist.program_rejections(container)


# -- what is run


def container_launch(
    pod: Object,
    container: Object,
    container_folder: ContainerFolder,
    sources: Sources,
    policy: ProcessPolicy,
    inherited: Mapping[str, str],
) -> Launch:
    """What to run for the container; `ours` are the variables of this process.  Raises Missing."""
    kept = {name: inherited[name] for name in INHERITED_VARIABLES if name in inherited}
    if not policy.run_pods:
        return tapestry_launch(pod, container, container_folder, sources, policy, kept)
    own = {
        name: with_local_paths(value, container_folder.mounts)
        for name, value in container_variables(pod, container, sources).items()
    }
    environment = {
        **kept,
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
    """The same for our own program.  What `refusal` has let through is run word for word: nothing is put in place of
    mounted paths or variables, by which a word could become another.
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
    """A command as it is to be run on this machine."""
    expanded = [with_local_paths(expand_variables(each, environment), container_folder.mounts) for each in words]
    program, *arguments = expanded
    return [
        str(policy.executable) if program == PROGRAM else program,
        *(with_pod_address(each, ports, container_folder.address) for each in arguments),
    ]


def working_dir(container: Object, container_folder: ContainerFolder) -> Path:
    wanted = container.get("workingDir") or ""
    moved = with_local_paths(wanted, container_folder.mounts)
    return Path(moved) if moved != wanted else container_folder.folder


def with_local_paths(text: str, mounts: Mapping[str, Path]) -> str:
    """`text` with the folders that stand for mounted paths in place of these."""
    if not mounts:
        return text
    longest = sorted(mounts, key=len, reverse=True)
    pattern = rf"(?<![\w./-])({'|'.join(map(re.escape, longest))})(?![\w.-])"
    return re.sub(pattern, lambda found: str(mounts[found[1]]), text)


def with_pod_address(argument: str, ports: frozenset[str], address: str) -> str:
    """`--bind=:8080` with the pod's address, if 8080 is a port of the container."""
    before, colon, port = argument.rpartition(":")
    if colon and address and port in ports and (not before or before.endswith("=")):
        return f"{before}{address}:{port}"
    return argument


def expand_variables(text: str, environment: Mapping[str, str]) -> str:
    """`text` with `$(NAME)` replaced; names that nobody set stay, and `$$` is a dollar."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] == "$" else environment.get(found[2], found[0])

    return VARIABLE_PATTERN.sub(value, text)


# -- variables


def container_variables(pod: Object, container: Object, sources: Sources) -> dict[str, str]:
    """The container's own variables; later ones may use earlier ones."""
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
    """What a field of the pod is, in a variable or a file."""
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
        raise MissingSource(f"{path}: the pod has none")
    return str(found_at or "")


def resource_value(pod: Object, container: Object, wanted: Object) -> str:
    """What the container may use of a resource, in units of the divisor, rounded up."""
    named = wanted.get("containerName")
    spec = next((each for each in containers_of(pod) if each["name"] == named), container)
    part, _, resource = wanted["resource"].partition(".")
    amount = ResourceList.parse(value_at(spec, "resources", part)).get(resource, parse_quantity(0))
    divisor = parse_quantity(wanted.get("divisor") or "1")
    return str(-(-amount.nano // (divisor.nano or parse_quantity("1").nano)))
