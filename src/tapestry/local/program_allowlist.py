"""Allowlist of commands, flags and variables for Tapestry's own pods on process nodes. Pure.

A user who may create a pod in our namespace, or write a ConfigMap that it reads, controls its command, arguments and
environment.  Most commands of `tapestry` and many settings name files and programs: a kubeconfig runs plugins, an audit
log is written to any path.  So only the manager and the syncer run, with the flags and variables listed here.  A new
flag or variable must be added here before pods can use it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tapestry.kube.objects import Object, value_at

PROGRAM = "tapestry"
COMMON_FLAGS = frozenset({"--leader-elect", "--metrics-bind-address", "--health-probe-bind-address", "--log-level"})
ALLOWED_FLAGS: Mapping[str, frozenset[str]] = {
    "manager": COMMON_FLAGS | {"--kubeconfig-namespace", "--allow-loopback", "--syncer-image"},
    "syncer": COMMON_FLAGS | {"--binding", "--time-zone", "--kubelet-address", "--allow-loopback"},
}
"""Flags by command; none of them names a file or a program."""
ALLOWED_VARIABLES = frozenset(
    {
        "POD_IP",
        "TAPESTRY_ALLOW_LOOPBACK",
        "TAPESTRY_KUBECONFIG_NAMESPACES",
        "TAPESTRY_KUBELET_ADDRESS",
        "TAPESTRY_KUBELET_SECRET",
        "TAPESTRY_KUBELET_SERVICE",
        "TAPESTRY_LEADER_ELECTION_NAMESPACE",
        "TAPESTRY_NAMESPACE",
        "TAPESTRY_SYNCER_ARGS",
        "TAPESTRY_SYNCER_IMAGE",
        "TAPESTRY_SYNCER_KUBELET_SERVICE",
        "TAPESTRY_SYNCER_REPLICAS",
    }
)
"""Variables that a container may set: those of our templates and of a local world."""
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
NO_HOME = Path("/nonexistent")


def program_rejections(container: Object) -> Iterator[str]:
    """Yield the reasons why a container of our namespace may not run."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    yield from command_rejections(words)
    if any(value_at(container, probe, "exec") for probe in PROBES):
        yield "has a probe that runs a command; use httpGet or tcpSocket"
    for variable in container.get("env") or ():
        if variable["name"] not in ALLOWED_VARIABLES:
            yield f"sets {variable['name']}, which is not an allowed variable of {PROGRAM}"
    if container.get("envFrom"):
        yield "has variables with unknown names (envFrom)"
    if container.get("workingDir"):
        yield "has a workingDir; remove it"


def command_rejections(words: list[str]) -> Iterator[str]:
    program, command = (*words, "", "")[:2]
    if program != PROGRAM:
        yield f"runs {program or 'nothing'}; only {PROGRAM} is allowed"
        return
    if command not in ALLOWED_FLAGS:
        allowed = " and ".join(f"{PROGRAM} {each}" for each in ALLOWED_FLAGS)
        yield f"runs {PROGRAM} {command}; only {allowed} are allowed"
        return
    for word in words[2:]:
        # A word without a dash is the value of the flag before it; neither command has positional arguments.
        if word.startswith("-") and word.partition("=")[0] not in ALLOWED_FLAGS[command]:
            yield f"has the argument {word.partition('=')[0]}, which is not allowed for {PROGRAM} {command}"
        if "$(" in word:
            yield f"has the argument {word}; variables in arguments are not allowed"


def enforced_environment(inherited: Mapping[str, str], kubeconfig: Path | None) -> dict[str, str]:
    """Return variables that no container can override; `inherited` are passed on.

    Without a token, a container gets no kubeconfig, not even the user's own.
    """
    return {
        **inherited,
        "HOME": str(NO_HOME),
        "PYTHONNOUSERSITE": "1",
        "PYTHONSAFEPATH": "1",
        **({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {}),
    }
