"""Run all benchmarks and print a table of the results. Exit with 1 if a bar is missed."""

import argparse
import json
import sys
from pathlib import Path

from benchmarks import cached_pods, controllers, events, leases, list_decode, overhead, placing
from benchmarks.table import table

QUESTIONS = {
    "list_decode": list_decode,
    "cached_pods": cached_pods,
    "events": events,
    "leases": leases,
    "overhead": overhead,
    "placing": placing,
    "controllers": controllers,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Tapestry and print a table.")
    parser.add_argument(
        "--only", choices=QUESTIONS, action="append", help="run only this benchmark; may be given several times"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file as JSON")
    arguments = parser.parse_args()
    rows = [row for name in arguments.only or QUESTIONS for row in QUESTIONS[name].rows()]
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps([row.as_json() for row in rows], indent=2) + "\n")
    return int(any(row.verdict == "MISS" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
