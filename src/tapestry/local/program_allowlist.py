"""Which containers of our own program run as processes of this machine.  Pure.

Whoever may create a pod in our namespace, or write a ConfigMap that one reads, chooses its command, its arguments and
its environment.  Most commands of `tapestry` and many settings name files and programs: a kubeconfig runs plugins, an
audit log is written anywhere.  So only the manager and the syncer run, with the flags and variables listed here.  A new
flag or variable has to be added here before pods can use it.
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
"""By command, the flags that name neither a file nor a program."""
ALLOWED_VARIABLES = frozenset(
    {
        "POD_IP",
        "TAPESTRY_ALLOW_LOOPBACK",
        "TAPESTRY_KUBECONFIG_NAMESPACES",
        "TAPESTRY_KUBELET_ADDRESS",
        "TAPESTRY_LEADER_ELECTION_NAMESPACE",
        "TAPESTRY_NAMESPACE",
        "TAPESTRY_SYNCER_ARGS",
        "TAPESTRY_SYNCER_IMAGE",
        "TAPESTRY_SYNCER_REPLICAS",
    }
)
"""Variables that a container may set: those of our templates and of a world."""
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
NO_HOME = Path("/nonexistent")


def program_rejections(container: Object) -> Iterator[str]:
    """Why a container may not run, though it is in our namespace."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    yield from command_rejections(words)
    if any(value_at(container, probe, "exec") for probe in PROBES):
        yield "has a probe that runs a command; use httpGet or tcpSocket"
    for variable in container.get("env") or ():
        if variable["name"] not in ALLOWED_VARIABLES:
            yield f"sets {variable['name']}, which is not among the variables that {PROGRAM} may be given here"
    if container.get("envFrom"):
        yield "has variables whose names are not known (envFrom)"
    if container.get("workingDir"):
        yield "has a workingDir; leave it out"


def command_rejections(words: list[str]) -> Iterator[str]:
    program, command = (*words, "", "")[:2]
    if program != PROGRAM:
        yield f"runs {program or 'nothing'}; only {PROGRAM} itself is run here"
        return
    if command not in ALLOWED_FLAGS:
        allowed = " and ".join(f"{PROGRAM} {each}" for each in ALLOWED_FLAGS)
        yield f"runs {PROGRAM} {command}; only {allowed} are run here"
        return
    for word in words[2:]:
        # A word without a dash is the value of the flag before it; neither command takes any other.
        if word.startswith("-") and word.partition("=")[0] not in ALLOWED_FLAGS[command]:
            yield f"has the argument {word.partition('=')[0]}, which {PROGRAM} {command} may not be given here"
        if "$(" in word:
            yield f"has the argument {word}; variables are not put into arguments here"


def enforced_environment(inherited: Mapping[str, str], kubeconfig: Path | None) -> dict[str, str]:
    """Variables that no container can set; `ours` are those of this process that are passed on.

    Without a token a container has no kubeconfig at all, not that of whoever started this process.
    """
    return {
        **inherited,
        "HOME": str(NO_HOME),
        "PYTHONNOUSERSITE": "1",
        "PYTHONSAFEPATH": "1",
        **({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {}),
    }
