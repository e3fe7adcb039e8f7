"""Untrusted pod statuses, each named after its defect.

Unit tests check the sanitized result; integration tests write it to a real API server.
"""

from collections.abc import Iterator
from typing import Any

from tapestry.kube.objects import Object

TIME = "2026-01-01T00:00:00Z"
HONEST: Object = {
    "phase": "Running",
    "reason": "Started",
    "message": "it runs",
    "startTime": TIME,
    "observedGeneration": 3,
    "qosClass": "Burstable",
    "nominatedNodeName": "n2",
    "hostIP": "10.1.0.1",
    "hostIPs": [{"ip": "10.1.0.1"}],
    "podIP": "10.0.0.1",
    "podIPs": [{"ip": "10.0.0.1"}, {"ip": "2001:db8::1"}],
    "conditions": [
        {
            "type": "Ready",
            "status": "False",
            "reason": "ContainersNotReady",
            "message": "not yet",
            "lastProbeTime": None,
            "lastTransitionTime": TIME,
            "observedGeneration": 3,
        }
    ],
    "containerStatuses": [
        {
            "name": "app",
            "ready": True,
            "started": True,
            "restartCount": 1,
            "image": "registry.example.com/app:1",
            "imageID": "registry.example.com/app@sha256:00",
            "containerID": "containerd://00",
            "state": {"running": {"startedAt": TIME}},
            "lastState": {
                "terminated": {
                    "exitCode": 1,
                    "signal": 9,
                    "reason": "Error",
                    "message": "it broke",
                    "startedAt": TIME,
                    "finishedAt": TIME,
                    "containerID": "containerd://01",
                }
            },
            "allocatedResources": {"cpu": "1", "memory": "1Gi"},
            "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "500m", "nvidia.com/gpu": "1"}},
            "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": [{"resourceID": "0"}]}],
            "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True, "recursiveReadOnly": "Disabled"}],
            "user": {"linux": {"uid": 0, "gid": 0, "supplementalGroups": [0]}},
            "stopSignal": "SIGTERM",
        }
    ],
    "initContainerStatuses": [
        {
            "name": "init",
            "ready": True,
            "restartCount": 0,
            "image": "i",
            "imageID": "",
            "state": {"waiting": {"reason": "W"}},
        }
    ],
    "ephemeralContainerStatuses": [],
    "resize": "InProgress",
    "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "gpu-1"}],
}
"""A status with every field."""


def nested(depth: int) -> Any:
    found: Any = "end"
    for number in range(depth):
        found = [found] if number % 2 else {"state": found}
    return found


ODD: dict[str, Any] = {
    "null": None,
    "false": False,
    "true": True,
    "zero": 0,
    "less than zero": -1,
    "a fraction": 1.5,
    "more than 32 bits": 2**31,
    "more than 64 bits": 2**70,
    "not a number": float("nan"),
    "without end": float("inf"),
    "no text": "",
    "a text": "NaN",
    "a long text": "x" * 10_000,
    "an empty list": [],
    "an empty object": {},
    "a list of lists": [[[]]],
    "a list of nulls": [None, None],
    "an object of objects": {"a": {"b": {"c": None}}},
    "a deep one": nested(400),
    "a directive": {"$patch": "delete", "$retainKeys": ["name"]},
}


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in pairs:
        yield from paths_of(inner, (*path, step))


def with_odd(value: Any, path: tuple[str | int, ...], odd: Any) -> Any:
    """Return a copy of `value` with `odd` at `path`."""
    step, *rest = path
    inner = with_odd(value[step], tuple(rest), odd) if rest else odd
    if isinstance(value, dict):
        return {**value, step: inner}
    return [inner if number == step else each for number, each in enumerate(value)]


def of_other_types() -> Iterator[tuple[str, Any]]:
    for kind, odd in ODD.items():
        yield f"status: {kind}", odd
        for path in paths_of(HONEST):
            yield f"{'.'.join(map(str, path))}: {kind}", with_odd(HONEST, path, odd)


ADDRESSES = {
    "loopback": "127.0.0.1",
    "loopback elsewhere": "127.8.9.10",
    "loopback of IPv6": "::1",
    "loopback, mapped": "::ffff:127.0.0.1",
    "loopback, mapped in hexadecimal": "::ffff:7f00:1",
    "loopback, compatible": "::127.0.0.1",
    "a metadata server": "169.254.169.254",
    "a metadata server, mapped": "::ffff:169.254.169.254",
    "link-local": "169.254.1.1",
    "link-local of IPv6": "fe80::1",
    "link-local with a zone": "fe80::1%eth0",
    "an address with a zone": "2001:db8::1%eth0",
    "multicast": "224.0.0.1",
    "multicast of IPv6": "ff02::1",
    "broadcast": "255.255.255.255",
    "anything": "0.0.0.0",
    "this network": "0.1.2.3",
    "anything of IPv6": "::",
    "mapped": "::ffff:10.0.0.1",
    "with zeros in front": "010.0.0.1",
    "in hexadecimal": "0x0a000001",
    "as a number": "167772161",
    "with a port": "10.0.0.1:80",
    "with a mask": "10.0.0.0/8",
    "with a space": " 10.0.0.1",
    "in brackets": "[2001:db8::1]",
    "a name": "localhost",
    "an escape": "10.0.0.1\n127.0.0.1",
    "a long one": "1" * 10_000,
    "of another script": "１０.0.0.1",
}
"""Addresses that must be dropped."""


def of_addresses() -> Iterator[tuple[str, Object]]:
    for name, ip in ADDRESSES.items():
        yield f"pod address: {name}", {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}
        yield f"host address: {name}", {"phase": "Running", "hostIP": ip, "hostIPs": [{"ip": ip}]}
        yield (
            f"second address: {name}",
            {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": ip}]},
        )
    many = [{"ip": f"10.0.{number // 256}.{number % 256}"} for number in range(5000)]
    yield "five thousand addresses", {"phase": "Running", "podIP": "10.0.0.0", "podIPs": many, "hostIPs": many}
    yield "one address twice", {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.1"}]}
    yield "one address in two ways", {"podIP": "2001:db8::1", "podIPs": [{"ip": "2001:DB8:0::1"}, {"ip": "10.0.0.1"}]}
    yield (
        "addresses that differ",
        {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.2"}], "hostIP": "10.1.0.1", "hostIPs": []},
    )


MOMENTS = {
    "none of Go's": "0001-01-01T00:00:00Z",
    "of another zone": "2026-01-01T02:00:00+02:00",
    "none of Go's, of another zone": "0001-01-01T02:00:00+02:00",
    "with nanoseconds": "2026-01-01T00:00:00.123456789Z",
    "a day that is not": "2026-02-30T00:00:00Z",
    "a leap second": "2016-12-31T23:59:60Z",
    "hour 24": "2026-01-01T24:00:00Z",
    "before all years": "0000-01-01T00:00:00Z",
    "after all years": "10000-01-01T00:00:00Z",
    "the last of all": "9999-12-31T23:59:59Z",
    "the last of all, of another zone": "9999-12-31T23:59:59-12:00",
    "less than zero": "-0001-01-01T00:00:00Z",
    "a week": "2026-W01-1T00:00:00Z",
    "with a space": "2026-01-01 00:00:00Z",
    "in small letters": "2026-01-01t00:00:00z",
    "without a zone": "2026-01-01T00:00:00",
    "a day alone": "2026-01-01",
    "a number": "1767225600",
    "of another script": "２０２６-01-01T00:00:00Z",
    "a word": "now",
    "a long one": "2026-01-01T00:00:00." + "0" * 100_000 + "Z",
}


def of_times() -> Iterator[tuple[str, Object]]:
    for name, moment in MOMENTS.items():
        state = {"terminated": {"exitCode": 0, "startedAt": moment, "finishedAt": moment}}
        yield (
            f"time: {name}",
            {
                "phase": "Running",
                "startTime": moment,
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": moment}],
                "containerStatuses": [{"name": "app", "state": {"running": {"startedAt": moment}}, "lastState": state}],
            },
        )


AMOUNTS = (
    *(
        "-1",
        "1e999999999",
        "0x10",
        "1.5.5",
        "Gi",
        "1GiB",
        "Infinity",
        "NaN",
        "1000m",
        "0.5",
        "1e3",
        "1024Ki",
        "1Ei",
        "9Ei",
    ),
    *(
        "0.0000000001",
        "100000000000000000000000000000000",
        "1" * 1000,
        " 1",
        "1 ",
        "１",
        "+1",
        ".5",
        "5.",
        "1k",
        "1024",
    ),
)


def of_amounts() -> Iterator[tuple[str, Object]]:
    for text in AMOUNTS:
        amounts = {"cpu": text, "memory": text, "example.com/thing": text}
        resources = {"limits": amounts, "requests": amounts, "claims": [{"name": "gpu"}]}
        container = {"name": "app", "allocatedResources": amounts, "resources": resources}
        yield f"amount {text[:40]!r}", {"phase": "Running", "containerStatuses": [container]}
    for name in ("", "/", "a/b/c", "$patch", "$retainKeys", "x" * 1000, "ⅽpu", "cpu\n", " cpu", "kubernetes.io/"):
        container = {"name": "app", "allocatedResources": {name: "1"}, "resources": {"limits": {name: "1"}}}
        yield f"amount of {name[:40]!a}", {"phase": "Running", "containerStatuses": [container]}
    many = {f"example.com/r{number}": "1" for number in range(5000)}
    yield (
        "amounts of five thousand",
        {"phase": "Running", "containerStatuses": [{"name": "app", "allocatedResources": many}]},
    )


TEXTS = {
    "a mebibyte": "x" * 2**20,
    "a mebibyte of quotes": '"' * 2**20,
    "a mebibyte of backslashes": "\\" * 2**20,
    "a mebibyte of controls": "\x01" * 2**20,
    "a mebibyte of line ends": "\n" * 2**20,
    "a mebibyte of pictures": "🙂" * 2**18,
    "cut in the middle of a character": "x" * 4095 + "é",
    "cut in the middle of a picture": "xy" + "🙂" * 2000,
    "an escape sequence": "\x1b[2J\x1b]0;owned\x07",
    "one that turns around": "safe\u202egnp.exe\u202c",
    "one that hides": "a\u2066b\u2069",
    "a NUL": "a\x00b",
    "nothing but controls": "\x00\x1b\x7f\x9b",
    "a half character": "a\ud800b",
    "a return": "ok\rforged",
}


def of_texts() -> Iterator[tuple[str, Object]]:
    for name, text in TEXTS.items():
        container = {"name": "app", "image": text, "imageID": text, "containerID": text}
        state = {"terminated": {"exitCode": 1, "reason": text, "message": text, "containerID": text}}
        yield (
            f"text: {name}",
            {
                "phase": "Failed",
                "reason": text,
                "message": text,
                "conditions": [{"type": "Ready", "status": "True", "reason": text, "message": text}],
                "containerStatuses": [
                    {**container, "state": state, "lastState": {"waiting": {"reason": text, "message": text}}}
                ],
            },
        )
        yield f"name: {name}", {"phase": "Running", "containerStatuses": [{"name": text}]}


def of_sizes() -> Iterator[tuple[str, Object]]:
    ready = {"type": "Ready", "status": "True", "message": "x" * 5000}
    every = (
        *("PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"),
        *("PodResizePending", "PodResizeInProgress", "DisruptionTarget"),
    )
    quoted = [{"type": type, "status": "False", "reason": '"' * 5000, "message": '"' * 5000} for type in every]
    ended = {"terminated": {"exitCode": 1, "reason": "r", "message": "m" * 5000}}
    yield (
        "ten thousand conditions",
        {"conditions": [{**ready, "type": f"example.com/{number}"} for number in range(10_000)]},
    )
    yield "ten thousand conditions of one type", {"conditions": [ready] * 10_000}
    yield "conditions full of quotes", {"conditions": quoted, "reason": '"' * 5000, "message": '"' * 5000}
    yield "ten thousand containers", {"containerStatuses": [{"name": f"c{number}"} for number in range(10_000)]}
    yield "one container ten thousand times", {"containerStatuses": [{"name": "app", "restartCount": 7}] * 10_000}
    yield (
        "containers full of text",
        {
            "conditions": quoted,
            "containerStatuses": [{"name": f"c{number}", "state": ended, "lastState": ended} for number in range(250)],
            "initContainerStatuses": [
                {"name": f"i{number}", "state": ended, "lastState": ended} for number in range(250)
            ],
        },
    )
    brim = [{"name": f"c{number}", "state": ended, "image": '"' * 3000} for number in range(8)]
    yield (
        "full to the brim",
        {"conditions": quoted, "reason": '"' * 5000, "message": '"' * 5000, "containerStatuses": brim},
    )
    yield "fields without end", {f"field{number}": "x" for number in range(10_000)}


def of_lies() -> Iterator[tuple[str, Object]]:
    for phase in ("Unknown", "running", "RUNNING", "Running ", "Terminating", "Completed", "Rυnning", "$patch"):
        yield f"phase {phase!a}", {"phase": phase}
    for type in (
        "tapestry.io/Mapped",
        "tapestry.io/Accepted",
        "example.com/gate",
        "ready",
        "Ready ",
        "",
        "$patch",
        "🙂",
    ):
        yield (
            f"condition {type!a}",
            {"conditions": [{"type": type, "status": "True", "message": "forged", "reason": "R"}]},
        )
    for status in ("true", "TRUE", "", "Yes", "$patch", "Trυe"):
        yield f"condition that is {status!a}", {"conditions": [{"type": "Ready", "status": status}]}
    yield (
        "a condition both true and false",
        {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Ready", "status": "False"}]},
    )
    yield (
        "directives",
        {
            "$patch": "replace",
            "$retainKeys": ["phase"],
            "$setElementOrder/conditions": [{"type": "Ready"}],
            "conditions": [
                {"$patch": "replace"},
                {"$patch": "delete", "type": "tapestry.io/Mapped"},
                {"type": "Ready"},
            ],
            "podIPs": [{"$patch": "delete", "ip": "10.0.0.1"}],
            "containerStatuses": [{"$patch": "replace", "name": "app"}, {"$patch": "delete"}],
        },
    )
    metadata = {"labels": {"app": "forged"}, "annotations": {"tapestry.io/physical-pod-uid": "forged"}}
    yield "metadata in the status", {"metadata": metadata, "labels": metadata["labels"], "phase": "Running"}
    yield "a spec in the status", {"spec": {"nodeName": "other"}, "status": {"phase": "Failed"}, "phase": "Running"}
    yield "a node to move to", {"nominatedNodeName": "other", "qosClass": "Guaranteed", "resize": "Deferred"}
    for name in ("other", "", "app ", "APP", "../app", "kube-system/app", "аpp", "0" * 300):
        yield (
            f"a container called {name[:20]!a}",
            {"containerStatuses": [{"name": name, "ready": True, "restartCount": 1}]},
        )
    for count in (-1, -(2**31), 2**31 - 1, 2**31, 2**63, 10**30, 1.0, "1", True):
        yield f"{count!r} restarts", {"containerStatuses": [{"name": "app", "restartCount": count}]}
        state = {"terminated": {"exitCode": count, "signal": count}}
        yield f"exit code {count!r}", {"containerStatuses": [{"name": "app", "state": state}]}
    state = {"waiting": {"reason": "W"}, "running": {"startedAt": TIME}, "terminated": {"exitCode": 0}}
    yield "all states at once", {"containerStatuses": [{"name": "app", "state": state, "lastState": state}]}
    yield (
        "a state that is not there yet",
        {"containerStatuses": [{"name": "app", "state": {"frozen": {"since": TIME}}}]},
    )
    yield (
        "states without content",
        {"containerStatuses": [{"name": "app", "state": {"running": {}}, "lastState": {"waiting": {}}}]},
    )


FAMILIES = (of_other_types, of_addresses, of_times, of_amounts, of_texts, of_sizes, of_lies)
STATUSES: dict[str, Any] = {name: status for family in FAMILIES for name, status in family()}
