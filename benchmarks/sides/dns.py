"""Sides of the benchmark of DNS: servers on an event loop, and a client in another process."""

import asyncio
import ipaddress
import itertools
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import uvloop

from benchmarks.fresh import held_bytes
from tapestry.dns import listener as listeners
from tapestry.dns.cluster_names import ClusterNames
from tapestry.dns.listener import DnsListener, udp_socket
from tapestry.dns.messages import Type, encode_query, wire_name
from tapestry.dns.resolver import Resolver, Rules

DOMAIN, SERVICES, ENDPOINTS = "cluster.local", 1000, 20
LOOPBACK = ipaddress.ip_network("127.0.0.0/8")
WINDOW = 64
"""Queries that the client has under way."""
BATCH = 32
CLIENTS = 3
"""Processes that send queries."""
NAMES: dict[str, Callable[[int], str]] = {
    "echo": lambda number: f"s{number % 10}.default.svc.{DOMAIN}",
    "few names": lambda number: f"s{number % 10}.default.svc.{DOMAIN}",
    "many names": lambda number: f"s{number % SERVICES}.default.svc.{DOMAIN}",
    "no such names": lambda number: f"x{number}.default.svc.{DOMAIN}",
    "headless": lambda _: f"h.default.svc.{DOMAIN}",
}


def service(**spec: Any) -> bytes:
    return json.dumps({"spec": spec}).encode()


def cluster() -> ClusterNames:
    """Return the names of a cluster with many Services, and a headless one."""
    names = ClusterNames(DOMAIN)
    for number in range(SERVICES):
        names.put_service("default", f"s{number}", service(clusterIP=f"10.96.{number >> 8}.{number & 255}"))
    names.put_service("default", "h", service(clusterIP="None"))
    endpoints = [{"addresses": [f"10.1.0.{number}"]} for number in range(ENDPOINTS)]
    names.put_slice("default", "h", "h", json.dumps({"addressType": "IPv4", "endpoints": endpoints}).encode())
    return names


def client(kind: str, port: str, seconds: str) -> dict[str, float]:
    """Send queries for some seconds, and return how many were answered in a second."""
    messages = itertools.cycle(
        [encode_query(number, wire_name(NAMES[kind](number)), Type.A) for number in range(SERVICES * 5)]
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        channel.settimeout(0.2)
        channel.connect(("127.0.0.1", int(port)))
        for _ in range(WINDOW):
            channel.send(next(messages))
        count, started = 0, time.perf_counter()
        while time.perf_counter() - started < float(seconds):
            try:
                channel.recv(2048)
                count += 1
            except TimeoutError:
                for _ in range(WINDOW - 1):  # they are lost
                    channel.send(next(messages))
            channel.send(next(messages))
    return {"rate": count / (time.perf_counter() - started)}


def rates(seconds: str) -> dict[str, dict[str, float]]:
    """Return the queries that were answered in a second, and those in a second of CPU time, for each kind."""
    listeners.QUERIES_PER_SECOND = listeners.BURST = float("1e9")
    return uvloop.run(all_rates(seconds))


async def all_rates(seconds: str) -> dict[str, dict[str, float]]:
    found = {"echo": await rate_of("echo", await echo_port(), seconds)}
    names = cluster()
    async with asyncio.TaskGroup() as group:
        listener = DnsListener(
            Resolver("bench", wire_name(DOMAIN), lambda: names, lambda: Rules(source_ranges=(LOOPBACK,))), group
        )
        await listener.start("127.0.0.1", 0)
        for kind in NAMES:
            if kind != "echo":
                found[kind] = await rate_of(kind, listener.port, seconds)
        await listener.stop()
    return found


def flood(seconds: str) -> dict[str, float]:
    """Return what a flood of one cluster costs the process, and how long queries of another take meanwhile."""
    return uvloop.run(flooded(float(seconds)))


async def flooded(seconds: float) -> dict[str, float]:
    names = cluster()
    found: dict[str, float] = {}
    async with asyncio.TaskGroup() as group:
        resolver = Resolver("bench", wire_name(DOMAIN), lambda: names, lambda: Rules(source_ranges=(LOOPBACK,)))
        victim, other = DnsListener(resolver, group), DnsListener(resolver, group)
        for each in (victim, other):
            await each.start("127.0.0.1", 0)
        found["quiet p99"] = p99(await latencies(victim.port, seconds))
        flooding = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.fresh", "benchmarks.sides.dns:flooder", str(other.port), str(seconds)),
            stdout=subprocess.PIPE,
        )
        assert flooding.stdout is not None
        before, started = time.process_time(), time.perf_counter()
        found["flooded p99"] = p99(await latencies(victim.port, seconds))
        found["cpu"] = (time.process_time() - before) / (time.perf_counter() - started)
        found["sent"] = json.loads(await flooding.stdout.read())["rate"]
        await flooding.wait()
        for each in (victim, other):
            await each.stop()
    return found


def flooder(port: str, seconds: str) -> dict[str, float]:
    """Send queries as fast as possible, and read no response."""
    message = encode_query(1, wire_name(f"x.default.svc.{DOMAIN}"), Type.A)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        count, started = 0, time.perf_counter()
        while time.perf_counter() - started < float(seconds):
            channel.sendto(message, ("127.0.0.1", int(port)))
            count += 1
        return {"rate": count / (time.perf_counter() - started)}


async def latencies(port: int, seconds: float) -> list[float]:
    """Return the seconds that queries took, which are sent a hundred times in a second."""
    loop, found = asyncio.get_running_loop(), list[float]()
    message = encode_query(1, wire_name(f"s1.default.svc.{DOMAIN}"), Type.A)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        channel.connect(("127.0.0.1", port))
        end = loop.time() + seconds
        while loop.time() < end:
            started = loop.time()
            channel.send(message)
            await loop.sock_recv(channel, 2048)
            found.append(loop.time() - started)
            await asyncio.sleep(0.01)
    return found


def p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


async def echo_port() -> int:
    """Return the port of a server that sends each packet back, by the same calls as the resolver."""
    loop, channel = asyncio.get_running_loop(), udp_socket(socket.AF_INET, ("127.0.0.1", 0))

    def read() -> None:
        for _ in range(BATCH):
            try:
                data, source = channel.recvfrom(1024)
            except BlockingIOError:
                return
            channel.sendto(data, source)

    loop.add_reader(channel, read)
    port: int = channel.getsockname()[1]
    return port


async def rate_of(kind: str, port: int, seconds: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.fresh", "benchmarks.sides.dns:client", kind, str(port), seconds]
    before = time.process_time()
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(output_of(command)) for _ in range(CLIENTS)]
    cpu = time.process_time() - before
    total = sum(json.loads(each.result())["rate"] for each in running)
    return {"rate": total, "per cpu second": total * float(seconds) / cpu}


async def output_of(command: list[str]) -> bytes:
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    return output


def idle(count: str) -> dict[str, float]:
    """Return the memory of a listener without queries, in kilobytes."""
    return {"kilobytes": uvloop.run(idle_kilobytes(int(count)))}


async def idle_kilobytes(count: int) -> float:
    async with asyncio.TaskGroup() as group:
        before = held_bytes()
        found = [
            DnsListener(Resolver(str(number), wire_name(DOMAIN), lambda: None, lambda: None), group)
            for number in range(count)
        ]
        for each in found:
            await each.start("127.0.0.1", 0)
        grown = held_bytes() - before
        for each in found:
            await each.stop()
    return grown / count / 1024
