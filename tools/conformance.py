"""Run Kubernetes' conformance tests that need no containers against Tapestry.

    make conformance                                            all of them, against the server and the cluster
    python tools/conformance.py controllers nodes --focus Job   tests of these classes with matching names
    python tools/conformance.py --beside                        all, and those that need more than a server also against
                                                                Kubernetes with the same nodes: both counts
    python tools/conformance.py --planes                        those that need a server, on one of 51 planes of a
                                                                process; the others are busy

There are three classes: tests that need a `server` and one Node object, tests that also need `controllers`, and tests
that need `nodes`, with a scheduler and kubelets, but no running containers. tests/conformance/needs-*.txt list them.
not-yet.txt lists tests that are known to fail: a run fails if any other test fails, or if one of these passes.
conformance_clusters.py and conformance_planes.py have the clusters that they run against.

Each test is a process with a time limit. Several run at once, and the serial ones after all others.
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

from conformance_clusters import TestCluster, cluster, kubernetes, server
from conformance_planes import busy_process
from kube_assets import assets_folder

LISTS = Path(__file__).parent.parent / "tests" / "conformance"
NEEDS = {"server": "needs-only-a-server.txt", "controllers": "needs-controllers.txt", "nodes": "needs-nodes.txt"}
AT_ONCE = 6
LIMIT_SECONDS = 900
SERIAL, SLOW = "[Serial]", "[Slow]"
PASSED = "passed"

Outcomes = dict[str, str]
"""Results by test name: `passed` or another status."""


def names_in(path: Path) -> list[str]:
    """Return the lines of a test list without comments."""
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def run(names: Sequence[str], test_cluster: TestCluster, assets: Path, report: Path) -> Outcomes:
    """Run tests against a new cluster, which stops afterwards."""
    report.mkdir(parents=True, exist_ok=True)
    print(f"{len(names)} tests in {report}", flush=True)
    parallel = sorted((name for name in names if SERIAL not in name), key=lambda name: SLOW not in name)
    serial = [name for name in names if SERIAL in name]
    with test_cluster(report, assets) as config, ThreadPoolExecutor(AT_ONCE) as pool:
        run_one = partial(outcome, config=config, assets=assets, report=report)
        outcomes = dict(zip(parallel, pool.map(run_one, parallel), strict=True))
        return outcomes | {name: run_one(name) for name in serial}


def outcome(name: str, config: Path, assets: Path, report: Path) -> str:
    """Run one test and return its status. Its log is in a folder of the same name."""
    folder = report / re.sub(r"\W+", "-", name.removesuffix("[Conformance]"))[-100:].strip("-")
    folder.mkdir()
    kubectl = next(each for each in (report / "kubectl", assets / "kubectl") if each.exists())
    command = [assets / "e2e.test", "--kubeconfig", config, "--kubectl-path", kubectl, "--provider=local"]
    command += ["--allowed-not-ready-nodes=-1", "--disable-log-dump", "--report-dir", folder]
    command += ["--ginkgo.no-color", "--ginkgo.v", "--ginkgo.focus", f"{re.escape(name)}$"]
    started = time.monotonic()
    with (folder / "log").open("w") as log:
        try:
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=LIMIT_SECONDS, check=False)
            status = reported_status(folder / "junit_01.xml", name)
        except subprocess.TimeoutExpired:
            status = "late"
    print(f"{status:8} {time.monotonic() - started:4.0f} s  {name}", flush=True)
    return status


def reported_status(report: Path, name: str) -> str:
    """Return the status of a test in a report."""
    if not report.exists():
        return "not run"
    cases = xml.parse(report).iter("testcase")
    return next((case.get("status", "") for case in cases if case.get("name") == f"[It] {name}"), "not run")


def exit_code_for(found: Mapping[str, str], known: Sequence[str]) -> int:
    """Print unexpected results and return the exit code."""
    failed = [name for name, state in found.items() if state != PASSED]
    unexpected = [name for name in failed if name not in known]
    fixed = [name for name in known if found.get(name) == PASSED]
    for name in failed:
        print(f"{found[name]:8} {name}{'' if name in unexpected else '  (known)'}")
    for name in fixed:
        print(f"passes now: remove it from {LISTS.name}/not-yet.txt: {name}")
    return 1 if unexpected or fixed else 0


def counts(classes: Mapping[str, Sequence[str]], ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Return a line per class with the number of passed tests, and that with Kubernetes if measured."""
    lines = []
    for title, names in classes.items():
        passed = f"{title:12} {count(names, ours):3} of {len(names):3} pass"
        with_kubernetes = f", {count(names, theirs):3} with Kubernetes" if set(names) & set(theirs) else ""
        lines.append(passed + with_kubernetes)
    return "\n".join(lines)


def count(names: Sequence[str], found: Mapping[str, str]) -> int:
    return sum(found.get(name) == PASSED for name in names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "classes", nargs="*", metavar="CLASS", help=f"class of tests to run: {', '.join(NEEDS)}; all by default"
    )
    parser.add_argument(
        "--focus", default="", metavar="REGEX", help="run only tests with names that match this expression"
    )
    parser.add_argument("--beside", action="store_true", help="also run the tests against Kubernetes")
    parser.add_argument("--planes", action="store_true", help="run the class server on a plane among busy planes")
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="folder for logs and results")
    arguments = parser.parse_args()
    if arguments.planes:
        if arguments.beside or arguments.classes not in ([], ["server"]):
            parser.error("--planes runs only the class server")
        arguments.classes = ["server"]
    if unknown := set(arguments.classes) - set(NEEDS):
        parser.error(f"unknown class {', '.join(unknown)}; choose from {', '.join(NEEDS)}")
    assets = assets_folder(os.environ)
    programs = ["e2e.test", "kubectl", *(["kube-apiserver", "kube-scheduler"] if arguments.beside else [])]
    if missing := [name for name in programs if not (assets / name).exists()]:
        raise SystemExit(
            f"no {', '.join(missing)} in {assets}: run make kube-assets conformance-assets (needs Go 1.24+)"
        )
    classes = {
        each: [name for name in names_in(LISTS / NEEDS[each]) if re.search(arguments.focus, name)]
        for each in arguments.classes or NEEDS
    }
    report = arguments.report or Path(tempfile.mkdtemp(prefix="conformance-"))
    server_tests = classes.get("server", [])
    cluster_tests = [name for title, names in classes.items() if title != "server" for name in names]
    server_cluster = busy_process if arguments.planes else server
    ours = run(server_tests, server_cluster, assets, report / "server") if server_tests else {}
    ours |= run(cluster_tests, cluster, assets, report / "cluster") if cluster_tests else {}
    theirs = run(cluster_tests, kubernetes, assets, report / "kubernetes") if cluster_tests and arguments.beside else {}
    code = exit_code_for(ours, names_in(LISTS / "not-yet.txt"))
    print(counts(classes, ours, theirs))
    return code


if __name__ == "__main__":
    sys.exit(main())
