"""The verdict on a run of conformance tests."""

import re
from pathlib import Path

import pytest

import conformance

REPORT = """<testsuites><testsuite>
<testcase name="[It] [sig-a] one [Conformance]" status="passed"/>
<testcase name="[It] [sig-a] two [Conformance]" status="failed"><failure/></testcase>
<testcase name="[It] [sig-b] another" status="skipped"/>
</testsuite></testsuites>"""
ONE, TWO, THREE = "[sig-a] one [Conformance]", "[sig-a] two [Conformance]", "[sig-a] three [Conformance]"


def test_tests_missing_from_the_report_were_not_run(tmp_path: Path) -> None:
    report = tmp_path / "junit_01.xml"
    report.write_text(REPORT)
    assert [conformance.reported_status(report, name) for name in (ONE, TWO, THREE)] == ["passed", "failed", "not run"]
    assert conformance.reported_status(tmp_path / "elsewhere.xml", ONE) == "not run"


@pytest.mark.parametrize(
    ("states", "known", "code"),
    [
        ({ONE: "passed", TWO: "passed"}, [], 0),
        ({ONE: "passed", TWO: "failed"}, [], 1),
        ({ONE: "passed", TWO: "failed"}, [TWO], 0),
        ({ONE: "passed", TWO: "not run"}, [], 1),
        ({ONE: "passed", TWO: "passed"}, [TWO], 1),  # the list must be shortened
        ({ONE: "passed"}, [TWO], 0),  # a test that did not run
    ],
)
def test_run_passes_when_only_known_failures_fail(states: dict[str, str], known: list[str], code: int) -> None:
    assert conformance.exit_code_for(states, known) == code


def test_passes_are_counted_beside_those_of_kubernetes() -> None:
    classes = {"server": [ONE], "nodes": [TWO, THREE]}
    ours = {ONE: "passed", TWO: "passed", THREE: "late"}
    alone = conformance.counts(classes, ours, {}).splitlines()
    assert alone == ["server         1 of   1 pass", "nodes          1 of   2 pass"]
    beside = conformance.counts(classes, ours, {TWO: "passed", THREE: "passed"}).splitlines()
    assert beside == [alone[0], alone[1] + ",   2 with Kubernetes"]


@pytest.mark.parametrize("arguments", [["nodes", "--planes"], ["server", "--planes", "--beside"]])
def test_planes_run_only_the_class_server(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["conformance.py", *arguments])
    with pytest.raises(SystemExit):
        conformance.main()
    assert "--planes runs only the class server" in capsys.readouterr().err


def test_every_test_has_one_class_and_known_failures_exist() -> None:
    classes = {each: conformance.names_in(conformance.LISTS / file) for each, file in conformance.NEEDS.items()}
    assert {each: len(names) for each, names in classes.items()} == {"server": 103, "controllers": 30, "nodes": 77}
    every = [name for names in classes.values() for name in names]
    assert len(every) == len(set(every))
    assert set(conformance.names_in(conformance.LISTS / "not-yet.txt")) <= set(every)


def test_every_stream_test_runs_or_gives_a_reason() -> None:
    lines = (conformance.LISTS / "needs-streams.txt").read_text().splitlines()
    names = conformance.names_in(conformance.LISTS / "needs-streams.txt")
    reasons = [line for line in lines if re.fullmatch(r"# not run \([^)]+\): \[sig-.+ \[Conformance\]", line)]
    assert (len(names), len(reasons)) == (19, 20)
    assert len(lines) == len(names) + len(reasons) + 4
