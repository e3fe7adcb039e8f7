"""Version of the served API."""

import platform

from tapestry.kube.objects import Object

RELEASES = {"v1.34.3": ("df11db1c0f08fab3c0baee1e5ce6efbf816af7f1", "2025-12-09T14:59:13Z")}
"""Commit and build date of each Kubernetes release whose API data we ship."""


def version_info(version: str) -> Object:
    """Return the body of /version: the Kubernetes release of the API, and the Python version.

    `kubectl --match-server-version` compares version, commit and tree state with its own.
    """
    major, minor, _ = version.removeprefix("v").split(".", 2)
    commit, built = RELEASES[version]
    return {
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": str(int(minor) - 1),
        "gitVersion": version,
        "gitCommit": commit,
        "gitTreeState": "clean",
        "buildDate": built,
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation().lower(),
        "platform": "linux/amd64",
    }
