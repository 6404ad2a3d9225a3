"""Planning beside generation, as a whole run shows it: `python -m tests.planning --rows 100000`.

Prompts of about 500 tokens, of which the last ones are each row's own, and one token of answer.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.memory import MEASURED, PROGRAM

WORDS = ("the", "sea", "is", "calm", "and", "ships", "lie", "at", "anchor", "near", "a", "white", "stone", "harbour")


def write_input(path: Path, rows: int, shared: int, own: int) -> None:
    """A word is a token or two."""
    rng = random.Random(0)
    beginning = " ".join(rng.choices(WORDS, k=shared))
    with path.open("w") as file:
        for number in range(rows):
            body = {"prompt": f"{beginning} {number} {' '.join(rng.choices(WORDS, k=own))}", "max_tokens": 1}
            file.write(json.dumps({"custom_id": str(number), "url": "/v1/completions", "body": body}) + "\n")


def run(source: Path, target: Path, options: list[str]) -> tuple[dict[str, Any], float]:
    """The summary of a run in a new process, and its peak memory in MiB, mapped files included."""
    given = ["run-batch", str(source), "-o", str(target), "--ignore-request-model", "--quiet", *options]
    command = [sys.executable, "-c", f"{MEASURED}{PROGRAM}", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak = int(done.stderr.splitlines()[-1].removeprefix("peak "))
    return json.loads(done.stdout.splitlines()[-1]), peak / 1024


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--shared", type=int, default=470, help="words that all prompts begin with")
    parser.add_argument("--own", type=int, default=20, help="words of each row's own")
    given, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "in.jsonl"
        write_input(source, given.rows, given.shared, given.own)
        summary, peak = run(source, Path(place) / "out", options)
    spent, usage = summary["time"], summary["usage"]
    print(f"{given.rows:,} rows, {usage['prompt_tokens']:,} prompt tokens, {usage['computed_tokens']:,} computed")
    begin_s = summary["elapsed_s"] - summary["generation_s"] + spent["first_step_s"]
    print(f"first step      after {begin_s:.1f} s, {spent['first_step_s']:.1f} s of them after the model was there")
    print(f"generation      {summary['generation_s']:.1f} s, {spent['kernels_s']:.1f} s of them in kernels")
    print(
        f"planning        {spent['hidden_scheduling_s']:.1f} s beside steps, {spent['scheduling_s']:.1f} s between them"
    )
    print(f"peak memory     {peak:,.0f} MiB, model and cache included")


if __name__ == "__main__":
    main()
