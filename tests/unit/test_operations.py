"""The examples of docs/operations.md, as far as this machine can try them."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
PROGRAM = f"""#!{sys.executable}
import sys, types

class Summary:
    exit_code = 0
    too_many_failed = False
    def to_json(self):
        return {{"status": "completed"}}

def run_job(config, home, reporter, crew):
    files = config.input.input_file, config.output.output_file
    print(repr((*files, config.model.model, config.stall_timeout, str(home))))
    return Summary()

sys.path[:0] = {sys.path!r}
sys.modules["batchgen.job"] = types.SimpleNamespace(run_job=run_job)
from batchgen.cli.main import main
main()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Stands for / in the examples: has the program, with a stub for the work, and the folders that they name."""
    for folder in ("opt/batchgen/bin", "srv", "etc/batchgen", "var/log", "var/lib/batchgen"):
        (tmp_path / folder).mkdir(parents=True)
    program = tmp_path / "opt/batchgen/bin/batchgen"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    (tmp_path / "etc/batchgen/nightly.yaml").write_text(example("nightly.yaml", tmp_path))
    return tmp_path


def example(name: str, root: Path) -> str:
    """An example whose absolute paths are below `root`."""
    return re.sub(r"(?<![\w.])/(opt|srv|etc/batchgen|var)/", rf"{root}/\1/", (EXAMPLES / name).read_text())


def test_the_line_of_cron_runs_in_an_environment_as_bare_as_crons(root: Path) -> None:
    lines = [text for text in example("crontab", root).splitlines() if text and not text.startswith("#")]
    *settings, entry = lines
    assert all(re.fullmatch(r"[A-Z_]+=\S+", setting) for setting in settings)
    minute, hour, *days, command = entry.split(maxsplit=5)
    assert (minute, hour, days) == ("0", "2", ["*", "*", "*"])
    assert "%" not in command  # cron would make it a line end
    bare = ["env", "-i", f"HOME={root}", "PATH=/usr/bin:/bin", "LOGNAME=nobody", *settings]
    done = subprocess.run([*bare, "/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    said, summary = (root / "var/log/batchgen.jsonl").read_text().splitlines()
    expected = (f"{root}/srv/requests.jsonl", f"{root}/srv/answers", "smollm2-135m-instruct", 1800.0)
    assert said == repr((*expected, f"{root}/var/lib/batchgen"))
    assert (root / "srv/answers.summary.json").read_text() == f"{summary}\n"
    assert "batchgen_exit_code" in (root / "srv/answers.prom").read_text()


def test_the_unit_runs_its_command_and_is_one_for_systemd(root: Path) -> None:
    for name in ("batchgen.service", "batchgen.timer"):
        (root / name).write_text(example(name, root))
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(root / "batchgen.service")
    done = subprocess.run(shlex.split(unit["Service"]["ExecStart"]), capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert {"2", "3", "4"} == set(unit["Service"]["RestartPreventExitStatus"].split())
    if (analyze := shutil.which("systemd-analyze")) is not None:
        units = [str(root / name) for name in ("batchgen.service", "batchgen.timer")]
        verified = subprocess.run([analyze, "verify", *units], capture_output=True, text=True, check=False)
        assert str(root) not in verified.stderr, verified.stderr


@pytest.mark.parametrize(("task", "index"), [("0", 0), ("7", 7)])
def test_each_task_of_the_slurm_array_has_its_shard(root: Path, task: str, index: int) -> None:
    array = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_COUNT": "8", "SLURM_ARRAY_TASK_MIN": "0"}
    path = f"{root}/opt/batchgen/bin:{os.environ['PATH']}"
    command = ["bash", str(EXAMPLES / "slurm.sh"), "requests.jsonl", "answers.jsonl"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=array | {"PATH": path, "HOME": str(root)}
    )
    assert done.returncode == 0, done.stderr
    assert f"'answers.jsonl.shard-{index:05d}-of-00008'" in done.stdout
    assert "1800.0" in done.stdout


def test_the_pods_of_the_indexed_job_have_a_shard_each(root: Path) -> None:
    job = yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text())
    spec = job["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert container["args"][-2:] == ["--num-shards", str(spec["completions"])]
    volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    env = {entry["name"]: entry["value"] for entry in container["env"]} | {"JOB_COMPLETION_INDEX": "3"}
    program = [str(root / "opt/batchgen/bin/batchgen"), *container["args"]]
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert "'/data/answers.jsonl.shard-00003-of-00008'" in done.stdout


def test_the_files_that_the_document_names_are_there() -> None:
    for file in re.findall(r"`([\w.]+)`(?=[,)])", (EXAMPLES.parent / "operations.md").read_text()):
        assert not file.endswith((".py", ".sh", ".yaml", ".service", ".timer")) or (EXAMPLES / file).is_file(), file
