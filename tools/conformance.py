"""Runs those of Kubernetes' conformance tests that need no containers against what we make, and counts.

    make conformance                                            all of them, against our server and our cluster
    python tools/conformance.py controllers nodes --focus Job   those of these classes whose names match
    python tools/conformance.py --beside                        all, and those that need more than a server also against
                                                                Kubernetes over the same nodes: both counts

There are three classes: tests that need a `server` and one Node object, those that need `controllers` too, and those
that need `nodes`, with a scheduler and kubelets, but not that anything runs there.  tests/conformance/needs-*.txt name
them, not-yet.txt those that are known not to pass: a run fails when any other does, and when one of these has come to
pass.  conformance_places.py says what they run against.

Each test is a process of its own with a limit to its time; several run at once, the serial ones after all others.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from conformance_places import Place, cluster, kubernetes, server
from kube_assets import assets_folder

LISTS = Path(__file__).parent.parent / "tests" / "conformance"
NEEDS = {"server": "needs-only-a-server.txt", "controllers": "needs-controllers.txt", "nodes": "needs-nodes.txt"}
AT_ONCE = 6
LIMIT_SECONDS = 900
SERIAL, SLOW = "[Serial]", "[Slow]"
PASSED = "passed"

Outcomes = dict[str, str]
"""What became of tests, by their names: `passed`, or something else."""


def names_in(path: Path) -> list[str]:
    """The lines of a list of tests, without its comments."""
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def run(names: Sequence[str], place: Place, assets: Path, report: Path) -> Outcomes:
    """Run tests in a place of their own, which ends with them."""
    report.mkdir(parents=True, exist_ok=True)
    print(f"{len(names)} tests in {report}", flush=True)
    shared = sorted((name for name in names if SERIAL not in name), key=lambda name: SLOW not in name)
    alone = [name for name in names if SERIAL in name]
    with place(report, assets) as config, ThreadPoolExecutor(AT_ONCE) as pool:
        one = partial(outcome, config=config, assets=assets, report=report)
        found = dict(zip(shared, pool.map(one, shared), strict=True))
        return found | {name: one(name) for name in alone}


def outcome(name: str, config: Path, assets: Path, report: Path) -> str:
    """Run one test; its log is in a folder that is called like it."""
    folder = report / re.sub(r"\W+", "-", name.removesuffix("[Conformance]"))[-100:].strip("-")
    folder.mkdir()
    command = [assets / "e2e.test", "--kubeconfig", config, "--kubectl-path", assets / "kubectl", "--provider=local"]
    command += ["--allowed-not-ready-nodes=-1", "--disable-log-dump", "--report-dir", folder]
    command += ["--ginkgo.no-color", "--ginkgo.v", "--ginkgo.focus", f"{re.escape(name)}$"]
    began = time.monotonic()
    with (folder / "log").open("w") as log:
        try:
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=LIMIT_SECONDS, check=False)
            became = told(folder / "junit_01.xml", name)
        except subprocess.TimeoutExpired:
            became = "late"
    print(f"{became:8} {time.monotonic() - began:4.0f} s  {name}", flush=True)
    return became


def told(report: Path, name: str) -> str:
    """What a report says of a test."""
    if not report.exists():
        return "not run"
    cases = xml.parse(report).iter("testcase")
    return next((case.get("status", "") for case in cases if case.get("name") == f"[It] {name}"), "not run")


def judged(found: Mapping[str, str], known: Sequence[str]) -> int:
    """Print what is not as it should be; the exit code."""
    failed = [name for name, state in found.items() if state != PASSED]
    surprises = [name for name in failed if name not in known]
    better = [name for name in known if found.get(name) == PASSED]
    for name in failed:
        print(f"{found[name]:8} {name}{'' if name in surprises else '  (known)'}")
    for name in better:
        print(f"passes now: take it out of {LISTS.name}/not-yet.txt: {name}")
    return 1 if surprises or better else 0


def counts(classes: Mapping[str, Sequence[str]], ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """A line for each class: how many pass here, beside how many pass with Kubernetes, if that was asked."""
    lines = []
    for title, names in classes.items():
        passed = f"{title:12} {count(names, ours):3} of {len(names):3} pass"
        beside = f", {count(names, theirs):3} with Kubernetes" if set(names) & set(theirs) else ""
        lines.append(passed + beside)
    return "\n".join(lines)


def count(names: Sequence[str], found: Mapping[str, str]) -> int:
    return sum(found.get(name) == PASSED for name in names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes", nargs="*", metavar="CLASS", help=f"{', '.join(NEEDS)}; all of them by default")
    parser.add_argument("--focus", default="", metavar="REGEX", help="run only tests whose names match")
    parser.add_argument("--beside", action="store_true", help="run them against Kubernetes, too")
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="where logs and results go, and stay")
    given = parser.parse_args()
    if unknown := set(given.classes) - set(NEEDS):
        parser.error(f"there is no class {', '.join(unknown)}; there are {', '.join(NEEDS)}")
    assets = assets_folder(os.environ)
    programs = ["e2e.test", "kubectl", *(["kube-apiserver", "kube-scheduler"] if given.beside else [])]
    if missing := [name for name in programs if not (assets / name).exists()]:
        raise SystemExit(
            f"no {', '.join(missing)} in {assets}: run make kube-assets conformance-assets (needs Go 1.24+)"
        )
    classes = {
        each: [name for name in names_in(LISTS / NEEDS[each]) if re.search(given.focus, name)]
        for each in given.classes or NEEDS
    }
    report = given.report or Path(tempfile.mkdtemp(prefix="conformance-"))
    small = classes.get("server", [])
    large = [name for title, names in classes.items() if title != "server" for name in names]
    ours = run(small, server, assets, report / "server") if small else {}
    ours |= run(large, cluster, assets, report / "cluster") if large else {}
    theirs = run(large, kubernetes, assets, report / "kubernetes") if large and given.beside else {}
    code = judged(ours, names_in(LISTS / "not-yet.txt"))
    print(counts(classes, ours, theirs))
    return code


if __name__ == "__main__":
    sys.exit(main())
