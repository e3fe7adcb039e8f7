import asyncio
import socket
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.controller.testing.clock import START, Spinning, VirtualClock, in_virtual_time, run, running_clock


def test_year_of_sleep_takes_no_real_time() -> None:
    async def main() -> timedelta:
        clock = running_clock()
        before = clock.now()
        await asyncio.sleep(365 * 86400)
        return clock.now() - before

    started = time.monotonic()
    assert run(main()) == timedelta(days=365)
    assert time.monotonic() - started < 60


def test_wall_clock_and_loop_advance_together() -> None:
    async def main() -> None:
        clock = running_clock()
        loop = asyncio.get_running_loop()
        assert clock.now() == START
        await asyncio.sleep(90.5)
        assert clock.now() == START + timedelta(seconds=90.5)
        assert clock.monotonic() == loop.time() == 90.5

    run(main())


@in_virtual_time
async def test_in_virtual_time_runs_on_its_own_loop() -> None:
    assert running_clock().now() == START
    await asyncio.sleep(3600)
    assert running_clock().monotonic() == 3600


def test_no_time_passes_without_a_timer() -> None:
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return running_clock().monotonic()

    assert run(main()) == 0


def test_start_can_be_chosen_and_is_utc() -> None:
    async def main() -> datetime:
        return running_clock().now()

    start = datetime(2025, 3, 30, 1, 59, tzinfo=timezone(timedelta(hours=1)))
    found = run(main(), start=start)
    assert found == start
    assert found.tzinfo is UTC


def test_start_without_time_zone_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"start: .* has no time zone"):
        VirtualClock(datetime(2025, 1, 1))  # noqa: DTZ001


@given(st.lists(st.floats(min_value=0, max_value=10**9), max_size=20))
def test_timers_fire_in_order_when_due(delays: list[float]) -> None:
    async def main() -> list[tuple[float, float]]:
        fired: list[tuple[float, float]] = []

        async def fire(delay: float) -> None:
            await asyncio.sleep(delay)
            fired.append((delay, asyncio.get_running_loop().time()))

        async with asyncio.TaskGroup() as tasks:
            for delay in delays:
                tasks.create_task(fire(delay))
        return fired

    fired = run(main())
    assert [delay for delay, _ in fired] == sorted(delays)
    for delay, at in fired:
        assert at == pytest.approx(delay, abs=1e-6)


def test_timeout_expires_in_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        return running_clock().monotonic()

    assert run(main()) == 30


def test_ready_socket_comes_before_timer() -> None:
    async def main() -> tuple[bytes, float]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.sendall(b"here already")
            async with asyncio.timeout(1):
                found = await asyncio.get_running_loop().sock_recv(ours, 100)
        return found, running_clock().monotonic()

    assert run(main()) == (b"here already", 0)


def test_server_and_client_use_a_real_socket() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def main() -> bytes:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello\n")
            found = await reader.read()
            writer.close()
            await writer.wait_closed()
        return found

    assert run(main()) == b"hello\n"


def test_thread_wakes_a_loop_without_timers() -> None:
    async def main() -> str:
        return await asyncio.to_thread(lambda: "from a thread")

    assert run(main()) == "from a thread"


def test_remaining_tasks_and_generators_are_closed() -> None:
    ended = []

    async def for_ever() -> None:
        try:
            await asyncio.sleep(10**6)
        finally:
            ended.append("task")

    async def numbers():  # type: ignore[no-untyped-def]
        try:
            yield 1
            yield 2
        finally:
            ended.append("generator")

    async def main() -> tuple[asyncio.Task[None], object]:
        task = asyncio.create_task(for_ever())
        generator = numbers()
        await anext(generator)
        return task, generator

    task, _ = run(main())
    assert task.cancelled()
    assert ended == ["task", "generator"]


def test_endless_periodic_timer_is_an_error() -> None:
    async def heartbeat() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(10)

    async def main() -> None:
        task = asyncio.create_task(heartbeat())
        await asyncio.Event().wait()
        await task

    with pytest.raises(Spinning, match=r"not done after 1000 iterations of the loop, at 2024-01-01T0\d"):
        run(main(), turns=1000)


def test_polling_without_pause_is_an_error() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(Spinning, match=r"at 2024-01-01T00:00:00\+00:00"):
        run(main(), turns=1000)


async def test_real_loop_has_no_virtual_clock() -> None:
    with pytest.raises(RuntimeError, match="runs on real time"):
        running_clock()
