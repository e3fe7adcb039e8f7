"""Takes the pods that Kubernetes publishes for its Pod Security Standards out of its Go module.

    python tools/pod_security_cases.py    writes tests/golden/pod_security/{baseline,restricted}-{pass,fail}.yaml

Needs Go for its module cache; the files are committed, so the tests do not.  A pod stands under the name that it has
upstream, which is that of the check it is about and a number.

Only the newest version is taken.  It has every case of v1.25 and after but one, the sysctls that are allowed: they
became more.
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
    """Where Go keeps the module, fetched if it is not there yet."""
    with tempfile.TemporaryDirectory() as anywhere:
        command = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
        answer = subprocess.run(command, cwd=anywhere, check=True, capture_output=True, text=True)
    return Path(json.loads(answer.stdout)["Dir"])


def case(pod: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name, and the pod as the tests need it."""
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
