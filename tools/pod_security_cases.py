"""Extract the Pod Security Standards test pods of Kubernetes from its Go module.

    python tools/pod_security_cases.py    writes tests/golden/pod_security/{baseline,restricted}-{pass,fail}.yaml

This needs Go for its module cache. The files are committed, so the tests do not need Go. A pod keeps its upstream name,
which is that of its check and a number.

Only the latest version is extracted. It contains all cases since v1.25 but one: the list of allowed sysctls has grown.
"""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

MODULE = "k8s.io/pod-security-admission"
VERSION = "v0.34.3"
STANDARD = "v1.34"
TARGET = Path(__file__).parent.parent / "tests" / "golden" / "pod_security"
HEADER = f"""\
# Copyright The Kubernetes Authors.  Licensed under the Apache License, Version 2.0.
# Made by tools/pod_security_cases.py from {MODULE} {VERSION}, test/testdata/{{folder}}:
# one line for each pod, without kind and registry, otherwise unchanged.
"""


def module_folder() -> Path:
    """Return the folder of the module in Go's cache, downloading it if necessary."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
        result = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return Path(json.loads(result.stdout)["Dir"])


def case(pod: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of a pod, and the pod as the tests need it."""
    metadata, spec = pod["metadata"], pod["spec"]
    for container in (*spec["initContainers"], *spec["containers"]):
        container["image"] = container["image"].rpartition("/")[2]
    return metadata["name"], {"metadata": metadata, "spec": spec}


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    testdata = module_folder() / "test" / "testdata"
    for level in ("baseline", "restricted"):
        for outcome in ("pass", "fail"):
            folder = f"{level}/{STANDARD}/{outcome}"
            cases = [case(yaml.safe_load(file.read_text())) for file in sorted((testdata / folder).glob("*.yaml"))]
            lines = [f"{name}: {json.dumps(pod)}\n" for name, pod in cases]
            target = TARGET / f"{level}-{outcome}.yaml"
            target.write_text(HEADER.format(folder=folder) + "".join(lines))
            print(f"{len(cases)} cases in {target.name}")


if __name__ == "__main__":
    main()
