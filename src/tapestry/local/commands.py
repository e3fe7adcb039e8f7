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
from tapestry.kube.quantity import Amounts, parse
from tapestry.local import own_program
from tapestry.local.own_program import OURS, PROBES
from tapestry.local.sources import KINDS, Missing, Sources, decoded

KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "TMPDIR")
"""The variables of ours that a container gets: none that could tell a secret."""
TOKENS_AT = "/var/run/secrets/kubernetes.io/serviceaccount"
VARIABLE = re.compile(r"\$(\$|\(([A-Za-z_.-][A-Za-z0-9_.-]*)\))")
OF_MAP = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose pods run as processes, and which programs."""

    executable: Path
    """What the command `tapestry` is."""
    namespaces: frozenset[str] = frozenset({"tapestry-system"})
    run_pods: bool = False
    """Whether any pod may run any command."""


class Home(NamedTuple):
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


def refusal(pod: Object, trust: Trust) -> str | None:
    """Why the pod does not run here; None if it does."""
    if not trust.run_pods and namespace_of(pod) not in trust.namespaces:
        return f"pods of the namespace {namespace_of(pod)} are not run as processes"
    for volume in pod["spec"].get("volumes") or ():
        if not any(kind in volume for kind in KINDS):
            return f"volume {volume['name']}: only {', '.join(KINDS)} can be had without mounts"
    return next(
        (f"container {each['name']}: {why}" for each in containers_of(pod) for why in faults(each, trust)), None
    )


def faults(container: Object, trust: Trust) -> Iterator[str]:
    if not container.get("command"):
        yield "has no command, and there are no images here that could have one"
    if container.get("lifecycle"):
        yield "has lifecycle hooks, which are not run here"
    if any(value_at(container, probe, "grpc") for probe in PROBES):
        yield "has a probe by gRPC, which is not made here"
    if not trust.run_pods:
        yield from own_program.faults(container)


# -- what is run


def launch(
    pod: Object, container: Object, home: Home, sources: Sources, trust: Trust, ours: Mapping[str, str]
) -> Launch:
    """What to run for the container; `ours` are the variables of this process.  Raises Missing."""
    kept = {name: ours[name] for name in KEPT if name in ours}
    if not trust.run_pods:
        return own_launch(pod, container, home, sources, trust, kept)
    own = {name: relocated(value, home.mounts) for name, value in variables(pod, container, sources).items()}
    environment = {
        **kept,
        "HOSTNAME": name_of(pod),
        **({"KUBECONFIG": str(home.kubeconfig)} if home.kubeconfig else {}),
        **own,
    }
    return Launch(command_of(container, own, home, trust), environment, folder_of(container, home))


def own_launch(
    pod: Object, container: Object, home: Home, sources: Sources, trust: Trust, kept: Mapping[str, str]
) -> Launch:
    """The same for our own program.  What `refusal` has let through is run word for word: nothing is put in place of
    mounted paths or variables, by which a word could become another.
    """
    words = [*container["command"], *(container.get("args") or ())]
    arguments = [addressed(each, ports_of(container), home.address) for each in words[1:]]
    environment = {
        **variables(pod, container, sources),
        "HOSTNAME": name_of(pod),
        **own_program.environment(kept, home.kubeconfig),
    }
    return Launch([str(trust.executable), *arguments], environment, home.folder)


def ports_of(container: Object) -> frozenset[str]:
    return frozenset(str(each["containerPort"]) for each in container.get("ports") or ())


def command_of(container: Object, environment: Mapping[str, str], home: Home, trust: Trust) -> list[str]:
    words = [*container["command"], *(container.get("args") or ())]
    return in_place(words, environment, home, trust, ports_of(container))


def in_place(
    words: Sequence[str],
    environment: Mapping[str, str],
    home: Home,
    trust: Trust,
    ports: frozenset[str] = frozenset(),
) -> list[str]:
    """A command as it is to be run on this machine."""
    expanded = [relocated(substituted(each, environment), home.mounts) for each in words]
    program, *arguments = expanded
    return [
        str(trust.executable) if program == OURS else program,
        *(addressed(each, ports, home.address) for each in arguments),
    ]


def folder_of(container: Object, home: Home) -> Path:
    wanted = container.get("workingDir") or ""
    moved = relocated(wanted, home.mounts)
    return Path(moved) if moved != wanted else home.folder


def relocated(text: str, mounts: Mapping[str, Path]) -> str:
    """`text` with the folders that stand for mounted paths in place of these."""
    if not mounts:
        return text
    longest = sorted(mounts, key=len, reverse=True)
    pattern = rf"(?<![\w./-])({'|'.join(map(re.escape, longest))})(?![\w.-])"
    return re.sub(pattern, lambda found: str(mounts[found[1]]), text)


def addressed(argument: str, ports: frozenset[str], address: str) -> str:
    """`--bind=:8080` with the pod's address, if 8080 is a port of the container."""
    before, colon, port = argument.rpartition(":")
    if colon and address and port in ports and (not before or before.endswith("=")):
        return f"{before}{address}:{port}"
    return argument


def substituted(text: str, environment: Mapping[str, str]) -> str:
    """`text` with `$(NAME)` replaced; names that nobody set stay, and `$$` is a dollar."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] == "$" else environment.get(found[2], found[0])

    return VARIABLE.sub(value, text)


# -- variables


def variables(pod: Object, container: Object, sources: Sources) -> dict[str, str]:
    """The container's own variables; later ones may use earlier ones."""
    known: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        known |= {source.get("prefix", "") + name: decoded(text) for name, text in sources.entries(source).items()}
    for each in container.get("env") or ():
        value = variable(pod, container, each, sources, known)
        if value is not None:
            known[each["name"]] = value
    return known


def variable(
    pod: Object, container: Object, variable: Object, sources: Sources, known: Mapping[str, str]
) -> str | None:
    origin = variable.get("valueFrom")
    if not origin:
        return substituted(variable.get("value") or "", known)
    if "fieldRef" in origin:
        return field_text(pod, origin["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in origin:
        return amount_text(pod, container, origin["resourceFieldRef"])
    found = sources.entry(origin)
    return None if found is None else decoded(found)


def field_text(pod: Object, path: str) -> str:
    """What a field of the pod is, in a variable or a file."""
    if found := OF_MAP.fullmatch(path):
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
        raise Missing(f"{path}: the pod has none")
    return str(found_at or "")


def amount_text(pod: Object, container: Object, wanted: Object) -> str:
    """What the container may use of a resource, in units of the divisor, rounded up."""
    named = wanted.get("containerName")
    spec = next((each for each in containers_of(pod) if each["name"] == named), container)
    part, _, resource = wanted["resource"].partition(".")
    amount = Amounts.parse(value_at(spec, "resources", part)).get(resource, parse(0))
    divisor = parse(wanted.get("divisor") or "1")
    return str(-(-amount.nano // (divisor.nano or parse("1").nano)))
