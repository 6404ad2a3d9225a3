"""Our engine and its peers in turn, on the same requests of the same hour: seconds of generation, and ratios.

    python tests/peers/compare.py --tools DIR --environments DIR --workloads DIR [--rounds N] [--only NAME ...]

`--tools` holds `peers.py` and `vllm-env.sh`, `--environments` what its `setup.sh` built, `--workloads` the request
files. Everything is greedy; loading is not timed, for anybody. Ours counts tokenisation and writing of the results
beside generation, the peers' does not. Leave the machine alone while it runs.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

W1 = "w1"
"""64 requests of 256 random tokens, 128 tokens of answer."""
FILES = ("chat-mixed-332.jsonl", "gsm8k-8shot-256.jsonl")
OURS = {"float32": "none", "int8": "int8"}
"""Name -> `--quantization`."""


@dataclass(frozen=True)
class Peer:
    """One other engine in one setting."""

    engine: str
    environment: str
    model: str
    properties: str = "{}"


PEERS = {
    "vLLM float32": Peer("vllm", "vllm", "smol-hf"),
    "OpenVINO float32": Peer("openvino", "openvino", "smol-ov-f32", '{"INFERENCE_PRECISION_HINT": "f32"}'),
    "OpenVINO as installed": Peer("openvino", "openvino", "smol-ov-f32"),
    "OpenVINO int8": Peer("openvino", "openvino", "smol-ov-i8", '{"DYNAMIC_QUANTIZATION_GROUP_SIZE": 192}'),
    "transformers float32": Peer("hf", "openvino", "smol-hf"),
}


def seconds_of_ours(quantization: str, workload: str, folder: Path) -> float:
    """One run of ours."""
    command = [str(Path(sys.executable).with_name("batchgen"))]
    own = ["--quantization", quantization, "--quiet"]
    if workload == W1:
        figures = folder / "figures.json"
        given = "--dataset-name random --input-len 256 --output-len 128 --num-prompts 64 --output-json"
        _output([*command, "bench", "throughput", *given.split(), str(figures), *own])
        return float(json.loads(figures.read_text())["elapsed_time"])
    ended = _output([*command, "run-batch", workload, "-o", str(folder / "out.jsonl"), "--overwrite", *own])
    return float(json.loads(ended.splitlines()[-1])["generation_s"])


def seconds_of_peer(peer: Peer, workload: str, tools: Path, environments: Path) -> float:
    """One run of a peer."""
    python = environments / peer.environment / "bin" / "python"
    command = shlex.join(
        [str(python), str(tools / "peers.py"), peer.engine, str(environments / peer.model), workload, peer.properties]
    )
    if peer.engine == "vllm":
        command = f"source {shlex.quote(str(tools / 'vllm-env.sh'))} {shlex.quote(str(environments))}; {command}"
    answers = [line for line in _output(["bash", "-c", command]).splitlines() if line.startswith('{"engine"')]
    return float(json.loads(answers[-1])["seconds"])


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def measured(arguments: argparse.Namespace) -> Iterator[tuple[str, str, float]]:
    """(who, workload, seconds), round after round."""
    wanted = arguments.only or [*(f"batchgen {name}" for name in OURS), *PEERS]
    workloads = [W1, *(str(arguments.workloads / name) for name in FILES)]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):
            for workload in workloads:
                for name in wanted:
                    try:
                        if name in PEERS:
                            spent = seconds_of_peer(PEERS[name], workload, arguments.tools, arguments.environments)
                        else:
                            spent = seconds_of_ours(OURS[name.removeprefix("batchgen ")], workload, Path(folder))
                    except subprocess.CalledProcessError as error:
                        print(f"{shlex.join(map(str, error.cmd))} failed:\n{error.stderr[-2000:]}", file=sys.stderr)
                        continue
                    yield name, Path(workload).name, spent


def main() -> None:
    """Measure, and print the best seconds of each and how many times ours they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("tools", "environments", "workloads"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=[*(f"batchgen {name}" for name in OURS), *PEERS])
    best: dict[str, dict[str, float]] = {}
    for name, workload, spent in measured(parser.parse_args()):
        print(f"{name} {workload} {spent:.2f} s", file=sys.stderr, flush=True)
        of_name = best.setdefault(name, {})
        of_name[workload] = min(spent, of_name.get(workload, spent))
    table = Table("", *(column for name in (W1, *FILES) for column in (name, "/ float32", "/ int8")))
    for name, figures in best.items():
        cells = []
        for workload in (W1, *FILES):
            best_s = figures.get(workload)
            ours = [best.get(f"batchgen {precision}", {}).get(workload) for precision in OURS]
            cells.append("failed" if best_s is None else f"{best_s:.1f} s")
            cells += [f"{best_s / own:.2f}" if own and best_s else "" for own in ours]
        table.add_row(name, *cells)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
