"""Peak memory of whole runs over inputs of different sizes: `python -m tests.memory 10000 2000000 --long-line 30`.

Each run is a process of its own over a tiny model, with a small window, so that every input is larger than it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.tiny_model import make_tiny_model

__all__ = ["peak_mib"]

PROGRAM = "from batchgen.cli.main import main; main()"
SETTINGS = "--max-model-len 64 --kv-cache-memory 4MiB --threads 1 --max-num-seqs 64 --window 1024 --rows-per-shard 5000"


def write_input(path: Path, rows: int, long_line_bytes: int) -> None:
    """Short lines, and in their middle one that is long."""
    with path.open("w") as file:
        for number in range(rows):
            text = "the sea " * (long_line_bytes // 8) if long_line_bytes and number == rows // 2 else f"sea {number}"
            body = {"prompt": text, "max_tokens": 1, "temperature": 0}
            line = {"custom_id": f"request-{number:08d}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")


def peak_mib(rows: int, long_line_bytes: int = 0) -> float:
    """Run that many rows in a new process; the most memory it held, mapped files included."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_tiny_model(folder / "tiny")
        write_input(folder / "in.jsonl", rows, long_line_bytes)
        given = ["run-batch", str(folder / "in.jsonl"), "-o", str(folder / "out"), "--model", str(folder / "tiny")]
        command = [sys.executable, "-c", f"{MEASURED}{PROGRAM}", *given, *SETTINGS.split(), "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        counts = json.loads(done.stdout.splitlines()[-1])["request_counts"]
        assert counts["total"] == rows, counts
        assert counts["failed"] == bool(long_line_bytes), counts
        return int(done.stderr.splitlines()[-1].removeprefix("peak ")) / 1024


MEASURED = (
    "import atexit, resource, sys\n"
    "atexit.register(lambda: print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr))\n"
)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=int, nargs="+")
    parser.add_argument("--long-line", type=int, default=0, metavar="MB", help="of one more run of the first size")
    given = parser.parse_args()
    print("| rows | longest line | peak memory, MiB | seconds |\n|---|---|---|---|")
    runs = [(rows, 0) for rows in given.rows]
    if given.long_line:
        runs.append((given.rows[0], given.long_line))
    for rows, long_line in runs:
        began = time.monotonic()
        peak = peak_mib(rows, long_line * 1_000_000)
        longest = f"{long_line} MB" if long_line else "short"
        print(f"| {rows:,} | {longest} | {peak:.0f} | {time.monotonic() - began:.0f} |")


if __name__ == "__main__":
    main()
