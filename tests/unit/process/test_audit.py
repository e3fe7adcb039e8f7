import json
import logging
import os
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tapestry.process import audit as audit_module
from tapestry.process.audit import AuditLog, AuditWriter, WriteRecord


def new_write(name: str = "web-0", **more: Any) -> WriteRecord:
    return WriteRecord("syncer/east", "patch", "pods", name, namespace="default", code=200, **more)


def names(path: Path) -> list[str]:
    return [json.loads(line)["name"] for line in path.read_text().splitlines()]


def dropped() -> float:
    return REGISTRY.get_sample_value("tapestry_audit_dropped_total") or 0.0


def test_record_is_one_line_with_request_and_result(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with AuditLog(str(path)) as audit:
        audit.record(
            new_write(subresource="status", request_id="r1", seconds=0.5, time=datetime(2026, 1, 2, 3, 4, 5, 6000, UTC))
        )
        audit.record(
            WriteRecord("hub", "create", "nodes", "n", error="TransportError", time=datetime(2026, 1, 2, tzinfo=UTC))
        )
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {
            "who": "syncer/east",
            "verb": "patch",
            "resource": "pods",
            "name": "web-0",
            "namespace": "default",
            "subresource": "status",
            "code": 200,
            "requestId": "r1",
            "seconds": 0.5,
            "time": "2026-01-02T03:04:05.006000Z",
        },
        {
            "who": "hub",
            "verb": "create",
            "resource": "nodes",
            "name": "n",
            "error": "TransportError",
            "time": "2026-01-02T00:00:00Z",
        },
    ]


def test_record_has_its_creation_time() -> None:
    before = datetime.now(UTC)
    assert before <= new_write().time <= datetime.now(UTC)


def test_close_writes_everything_in_order(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with AuditLog(str(path)) as audit:
        for number in range(1000):
            audit.record(new_write(str(number)))
    assert names(path) == [str(number) for number in range(1000)]


def test_records_are_written_in_the_background(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with AuditLog(str(path)) as audit, os.fdopen(reader, "rb") as pipe:
        os.set_blocking(reader, True)
        for name in ("a", "b"):
            audit.record(new_write(name))
            assert json.loads(pipe.readline())["name"] == name  # blocks until the thread writes


def test_file_is_appended_and_private(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for name in ("first", "second"):
        with AuditLog(str(path)) as audit:
            audit.record(new_write(name))
    assert names(path) == ["first", "second"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_renamed_file_is_recreated(tmp_path: Path) -> None:
    path, old = tmp_path / "audit.log", tmp_path / "audit.log.1"
    with AuditLog(str(path)) as audit:
        audit.record(new_write("before"))
        audit.flush()
        path.rename(old)
        audit.record(new_write("after"))
        audit.flush()
        assert (names(old), names(path)) == (["before"], ["after"])
        path.rename(old)
        path.write_text("")
        audit.record(new_write("replaced"))
    assert (names(old), names(path)) == (["after"], ["replaced"])


def test_truncated_file_continues_at_its_start(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with AuditLog(str(path)) as audit:
        audit.record(new_write("before"))
        audit.flush()
        os.truncate(path, 0)
        audit.record(new_write("after"))
    assert names(path) == ["after"]


def test_full_buffer_drops_and_counts_records(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    before = dropped()
    with os.fdopen(reader, "rb") as pipe:
        os.set_blocking(reader, True)
        with AuditLog(str(path), capacity=3) as audit:
            audit.record(new_write("x" * 200_000))  # more than a pipe holds: the thread blocks until we read
            assert pipe.read(1) == b"{"
            for name in "abcde":
                audit.record(new_write(name))
            assert dropped() - before == 2
            pipe.readline()
            assert [json.loads(pipe.readline())["name"] for _ in range(3)] == ["a", "b", "c"]
        assert pipe.read() == b""


def test_records_after_close_are_dropped_and_counted(tmp_path: Path) -> None:
    audit = AuditLog(str(tmp_path / "audit.log"))
    audit.close()
    before = dropped()
    audit.record(new_write())
    audit.close()
    assert dropped() - before == 1
    assert names(tmp_path / "audit.log") == []


def test_full_disk_loses_records_but_not_the_process(caplog: pytest.LogCaptureFixture) -> None:
    before = dropped()
    with AuditLog("/dev/full") as audit:
        audit.record(new_write())
        with pytest.raises(OSError, match="No space left"):
            audit.flush()
        audit.record(new_write())
    assert dropped() - before == 2
    assert [record.getMessage() for record in caplog.records] == ["audit log write failed"]


def test_failed_write_is_repeated_later(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.symlink_to("/dev/full")
    with AuditLog(str(path)) as audit:
        audit.record(new_write("kept"))
        with pytest.raises(OSError, match="No space left"):
            audit.flush()
        path.unlink()
        audit.record(new_write("next"))
    assert names(path) == ["kept", "next"]


def test_failed_write_is_repeated_without_a_new_record(tmp_path: Path) -> None:
    path, pipe_path = tmp_path / "audit.log", tmp_path / "pipe"
    path.symlink_to("/dev/full")
    os.mkfifo(pipe_path)
    reader = os.open(pipe_path, os.O_RDWR)  # keep a writer open: without one, the pipe would be at its end
    refused = LogSignal()
    logging.getLogger("tapestry.audit").addHandler(refused)
    try:
        with AuditLog(str(path)) as audit, os.fdopen(reader, "rb") as pipe:
            audit.record(new_write("kept"))
            assert refused.event.wait(60)
            pipe_path.rename(path)
            assert json.loads(pipe.readline())["name"] == "kept"
    finally:
        logging.getLogger("tapestry.audit").removeHandler(refused)


class LogSignal(logging.Handler):
    """Set an event when something is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.event.set()


def test_invalid_path_is_rejected_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        AuditLog(str(tmp_path / "missing" / "audit.log"))


def test_dash_is_stderr_and_stays_open(capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        with AuditLog("-") as audit:
            audit.record(new_write(name))
    assert [json.loads(line)["name"] for line in capfd.readouterr().err.splitlines()] == ["a", "b"]


def test_large_file_is_rotated_with_backups(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    beside = tmp_path / "audit.log.old"
    beside.write_text("somebody's own")
    with AuditLog(str(path), max_bytes=100, backups=2) as audit:
        for name in ("a", "b", "c", "d"):
            audit.record(new_write(name))
            audit.flush()
    moved = sorted(each for each in tmp_path.iterdir() if each not in (path, beside))
    assert [names(each) for each in moved] == [["c"], ["d"]]
    assert beside.read_text() == "somebody's own"


def test_many_records_do_not_exceed_the_maximum_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "PART_BYTES", 100)
    path = tmp_path / "audit.log"
    with AuditLog(str(path), max_bytes=500, backups=100) as log:
        written = [f"name-{number}" for number in range(200)]
        for name in written:
            log.record({"name": name})
        log.flush()
    moved = sorted(each for each in tmp_path.iterdir() if each != path)
    assert [name for each in [*moved, path] for name in names(each)] == written
    assert max(each.stat().st_size for each in moved) < 500 + 200


def test_records_beyond_memory_limit_are_dropped(tmp_path: Path) -> None:
    before = dropped()
    path = tmp_path / "audit.log"
    with AuditLog(str(path)) as audit:
        audit.record(new_write("large"), 1 << 40)
        audit.record({"name": "small"}, 10)
    assert names(path) == ["small"]
    assert dropped() == before + 1


def audit_threads() -> int:
    return sum(each.name == "audit" for each in threading.enumerate())


def test_logs_share_the_thread_of_a_writer(tmp_path: Path) -> None:
    before, writer = audit_threads(), AuditWriter()
    logs = [AuditLog(str(tmp_path / str(number)), writer=writer) for number in range(20)]
    for number, each in enumerate(logs):
        each.record(new_write(str(number)))
    assert audit_threads() - before == 1
    for number, each in enumerate(logs):
        each.close()
        assert names(tmp_path / str(number)) == [str(number)]


def test_writer_continues_with_new_logs(tmp_path: Path) -> None:
    writer = AuditWriter()
    for name in ("a", "b"):
        with AuditLog(str(tmp_path / name), writer=writer) as audit:
            audit.record(new_write(name))
        assert names(tmp_path / name) == [name]


def test_records_of_one_log_push_out_none_of_another(tmp_path: Path) -> None:
    pipe, writer, before = tmp_path / "pipe", AuditWriter(), dropped()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(reader, "rb") as file, AuditLog(str(tmp_path / "other"), writer=writer) as other:
        os.set_blocking(reader, True)
        with AuditLog(str(pipe), capacity=3, max_buffered_bytes=100, writer=writer) as full:
            full.record(new_write("x" * 200_000))  # the thread blocks until we read
            assert file.read(1) == b"{"
            for name in "abcde":
                full.record(new_write(name))
            full.record(new_write("large"), 101)
            for number in range(100):
                other.record(new_write(str(number)))
            assert dropped() - before == 3
            file.readline()
    assert names(tmp_path / "other") == [str(number) for number in range(100)]


def test_failing_log_does_not_stop_others(tmp_path: Path) -> None:
    writer = AuditWriter()
    with AuditLog("/dev/full", writer=writer) as failing, AuditLog(str(tmp_path / "sound"), writer=writer) as sound:
        failing.record(new_write())
        sound.record(new_write("kept"))
    assert names(tmp_path / "sound") == ["kept"]


def test_closed_log_ends_once(tmp_path: Path) -> None:
    """Otherwise the writer would write to a file that is closed, and end before its other logs."""
    writer = AuditWriter()
    with AuditLog(str(tmp_path / "other"), writer=writer) as other:
        closed = AuditLog(str(tmp_path / "closed"), writer=writer)
        closed.record(new_write())
        closed.close()
        closed.record(new_write())
        assert not closed.write_buffer()
        writer.write(closed, at_once=True)
        other.record(new_write("kept"))
    assert names(tmp_path / "other") == ["kept"]
