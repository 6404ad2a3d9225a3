"""`batchgen run-batch`: what its options become, and what it prints."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from batchgen.cli.flags import FLAGS
from batchgen.cli.run import default_output
from batchgen.config import DistributedConfig, EngineConfig, InputConfig, JobConfig, ModelConfig, OutputConfig
from batchgen.errors import UsageError
from tests.cli.conftest import Invoke, StubJob

NESTED = frozenset({"model", "engine", "input", "output"})


def test_every_setting_has_a_flag() -> None:
    for config in (ModelConfig, EngineConfig, InputConfig, OutputConfig, DistributedConfig):
        assert FLAGS[config].keys() == {field.name for field in fields(config)}
    assert FLAGS[JobConfig].keys() == {field.name for field in fields(JobConfig)} - NESTED


def test_defaults_are_those_of_the_configuration(job: StubJob, invoke: Invoke) -> None:
    assert invoke("run-batch", "in/requests.jsonl").exit_code == 0
    assert job.calls == [
        (
            JobConfig(
                model=ModelConfig(),
                engine=EngineConfig(),
                input=InputConfig(input_file="in/requests.jsonl"),
                output=OutputConfig(output_file="requests.out"),
            ),
            Path("/nowhere/home"),
        )
    ]


def test_every_flag_arrives(job: StubJob, invoke: Invoke) -> None:
    command = """
        run-batch -i s3://b/x.parquet -o out.jsonl --model m --tokenizer t --revision r --chat-template c
        --generation-config none --load-format dummy --dtype float32 --quantization int8 --max-model-len 100
        --max-num-seqs 3 --max-num-batched-tokens 7 --block-size 4 --kv-cache-memory 1.5GiB
        --no-enable-prefix-caching --seed -1 --threads 2 --kernels torch --device cpu --gpu-memory-utilization 0.5 -tp 2
        --messages-column mc --prompt-column pc
        --prompt-template pt --system-prompt sp --id-column ic --lenient --ignore-request-model --window 9
        --error-file e.jsonl --compat vllm --order completion --response-as string --overwrite --resume-anyway
        --no-retry-failed --rows-per-shard 5 --sampling {"n":2}
        --seconds-per-shard 0.5 --max-failed 2.5% --strict --stall-timeout 1.5 --log-requests
        --skip-exit-code 99"""
    assert invoke(*command.split()).exit_code == 0
    assert job.config == JobConfig(
        model=ModelConfig(
            model="m", tokenizer="t", revision="r", chat_template="c", generation_config="none", load_format="dummy"
        ),
        engine=EngineConfig(
            dtype="float32",
            quantization="int8",
            max_model_len=100,
            max_num_seqs=3,
            max_num_batched_tokens=7,
            block_size=4,
            kv_cache_memory=3 << 29,
            enable_prefix_caching=False,
            seed=-1,
            threads=2,
            kernels="torch",
            device="cpu",
            gpu_memory_utilization=0.5,
            tensor_parallel_size=2,
        ),
        input=InputConfig(
            input_file="s3://b/x.parquet",
            messages_column="mc",
            prompt_column="pc",
            prompt_template="pt",
            system_prompt="sp",
            id_column="ic",
            sampling={"n": 2},
            lenient=True,
            ignore_request_model=True,
            window=9,
        ),
        output=OutputConfig(
            output_file="out.jsonl",
            error_file=Path("e.jsonl"),
            line_format="vllm",
            order="completion",
            response_as="string",
            overwrite=True,
            resume_anyway=True,
            retry_failed=False,
            rows_per_shard=5,
            seconds_per_shard=0.5,
        ),
        max_failed="2.5%",
        strict=True,
        stall_timeout=1.5,
        log_requests=True,
        skip_exit_code=99,
    )


def test_command_line_over_environment_over_file(job: StubJob, invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "max-num-seqs: 1\nmax_num_batched_tokens: 1\nblock-size: 1\nkv-cache-memory: 2MiB\nlenient: true\n"
        "enable-prefix-caching: false\nmax-failed: 3\ninput-file: from-file.jsonl\n"
    )
    environment = {
        "BATCHGEN_MAX_NUM_SEQS": "2",
        "BATCHGEN_MAX_NUM_BATCHED_TOKENS": "2",
        "BATCHGEN_ENABLE_PREFIX_CACHING": "yes",
    }
    result = invoke("run-batch", "--config", file, "--max-num-seqs", "3", env=environment)
    assert result.exit_code == 0
    assert job.config.engine == EngineConfig(
        max_num_seqs=3, max_num_batched_tokens=2, block_size=1, kv_cache_memory=2 << 20, enable_prefix_caching=True
    )
    assert job.config.input == InputConfig(input_file="from-file.jsonl", lenient=True)
    assert job.config.max_failed == "3"


def test_the_config_file_can_come_from_the_environment(job: StubJob, invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("seed: 5\nsampling: {top_p: 0.5}\n")
    assert invoke("run-batch", "x.jsonl", env={"BATCHGEN_CONFIG": str(file)}).exit_code == 0
    assert job.config.engine.seed == 5
    assert job.config.input.sampling == {"top_p": 0.5}


@pytest.mark.parametrize("text", ["[1]", "temperature=0", ""])
def test_sampling_is_a_json_object(invoke: Invoke, text: str) -> None:
    result = invoke("run-batch", "x.jsonl", "--sampling", text)
    assert result.exit_code == 2
    assert "JSON" in result.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-seqs: 3\nseed: 1\ntop: 2", ["no such option: max_seqs, top", "max_num_seqs"]),
        ("- 1", ["option: value", "list"]),
        ("a: [", ["cannot be read as YAML"]),
        ("config: other.yaml", ["no such option: config"]),
    ],
)
def test_a_faulty_config_file_is_named(
    invoke: Invoke, job: StubJob, tmp_path: Path, text: str, words: list[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    result = invoke("run-batch", "x.jsonl", "--config", file)
    assert isinstance(result.exception, UsageError)
    assert all(word in str(result.exception) for word in [str(file), *words])
    assert not job.calls


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("--max-num-seqs 0", "--max-num-seqs"),
        ("--kv-cache-memory lots", "4GiB"),
        ("--max-failed some", "5%"),
        ("--quantization int4", "int8"),
        ("--summary-file /nowhere/at/all.json", "no folder /nowhere/at"),
        ("--metrics-file /nowhere/at/all.prom", "no folder /nowhere/at"),
        ("--stall-timeout 0", "--stall-timeout"),
        ("--skip-exit-code 256", "exit code"),
        ("--num-shards 0", "number of shards"),
        ("--num-shards auto", "no task of a Slurm array"),
        ("--num-shards 3", "Give --shard-index"),
        ("--num-shards 3 --shard-index 3", "from 0 to 2"),
        ("--shard-index 1", "from 0 to 0"),
        ("--num-shards 2 --shard-index 0 --error-file e.jsonl", "merge"),
        ("--num-shards 2 --shard-index 0 -o -", "merge"),
        ("--no-such-option", "--no-such-option"),
    ],
)
def test_a_faulty_value_is_a_usage_error(invoke: Invoke, job: StubJob, arguments: str, word: str) -> None:
    result = invoke("run-batch", "x.jsonl", *arguments.split())
    refused_late = isinstance(result.exception, UsageError)
    assert refused_late or result.exit_code == 2
    assert word in (str(result.exception) if refused_late else result.stderr)
    assert not job.calls


K8S = {"JOB_COMPLETION_INDEX": "2"}
SLURM = {"SLURM_ARRAY_TASK_ID": "30", "SLURM_ARRAY_TASK_MIN": "10", "SLURM_ARRAY_TASK_STEP": "10"}


@pytest.mark.parametrize(
    ("arguments", "environment", "shard"),
    [
        ("--num-shards 5 --shard-index 2", {}, (2, 5)),
        ("--num-shards 5", K8S, (2, 5)),
        ("--num-shards 5", SLURM, (2, 5)),
        ("--num-shards auto", SLURM | {"SLURM_ARRAY_TASK_COUNT": "4"}, (2, 4)),
        ("", {"BATCHGEN_NUM_SHARDS": "5", "BATCHGEN_SHARD_INDEX": "2"}, (2, 5)),
        ("--num-shards 5 --shard-index 0", K8S, (0, 5)),
        ("", K8S | SLURM | {"SLURM_ARRAY_TASK_COUNT": "4"}, (0, 1)),  # tasks may have files of their own
    ],
)
def test_which_shard_this_is(
    invoke: Invoke, job: StubJob, arguments: str, environment: dict[str, str], shard: tuple[int, int]
) -> None:
    assert invoke("run-batch", "x.jsonl", "-o", "y.jsonl", *arguments.split(), env=environment).exit_code == 0
    index, number = shard
    assert (job.config.shard_index, job.config.num_shards) == shard
    named = f"y.jsonl.shard-{index:05d}-of-{number:05d}" if number > 1 else "y.jsonl"
    assert job.config.output.output_file == named


def test_who_computes(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = StubJob()
    monkeypatch.setattr("batchgen.job.run_job", stub.run_job, raising=False)
    assert invoke("run-batch", "x.jsonl").exit_code == 0
    assert invoke("run-batch", "x.jsonl", "--distributed", "ray", "--num-workers", "3").exit_code == 0
    assert [crew is None for crew in stub.crews] == [True, False]
    refused = invoke("run-batch", "x.jsonl", "--num-workers", "3")
    assert isinstance(refused.exception, UsageError)
    assert "--distributed ray" in str(refused.exception)
    monkeypatch.setitem(sys.modules, "ray", None)
    without = invoke("run-batch", "x.jsonl", "--distributed", "ray")
    assert isinstance(without.exception, UsageError)
    assert without.exception.exit_code == 2
    assert "pip install 'batchgen[ray]'" in str(without.exception)


def test_the_input_is_given_once(invoke: Invoke, job: StubJob) -> None:
    assert isinstance(invoke("run-batch").exception, UsageError)
    assert isinstance(invoke("run-batch", "a.jsonl", "-i", "b.jsonl").exception, UsageError)
    assert not job.calls
    assert invoke("run-batch", "a.jsonl", env={"BATCHGEN_INPUT_FILE": "b.jsonl"}).exit_code == 0
    assert job.config.input.input_file == "a.jsonl"


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("requests.jsonl", "requests.out"),
        ("/data/requests.v2.jsonl.gz", "requests.v2.out"),
        ("s3://bucket/x.parquet", "x.out"),
        ("hf://datasets/org/name/", "name.out"),
        ("/data/reviews/**/part-*.parquet", "reviews.out"),
        ("*.parquet", "input.out"),
        ("-", "stdin.out"),
    ],
)
def test_default_output(source: str, output: str) -> None:
    assert default_output(source) == output


@pytest.mark.usefixtures("job")
def test_the_summary_is_the_last_line_and_in_the_summary_file(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("run-batch", "x.jsonl", "--summary-file", tmp_path / "s.json")
    assert result.exit_code == 0
    assert json.loads(result.stdout.splitlines()[-1]) == {"status": "completed", "größe": 1, "exit_code": 0}
    assert (tmp_path / "s.json").read_text(encoding="utf-8") == result.stdout


@pytest.mark.usefixtures("job")
def test_the_summary_file_may_be_a_pipe(invoke: Invoke, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    result = invoke("run-batch", "x.jsonl", "--summary-file", tmp_path / "pipe")
    assert os.read(reader, 4096).decode() == result.stdout
    os.close(reader)


def test_the_files_come_from_the_environment_and_the_config_file(job: StubJob, invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"metrics-file: {tmp_path / 'm.prom'}\nstall-timeout: 5\nlog-requests: true\n")
    env = {"BATCHGEN_SUMMARY_FILE": str(tmp_path / "s.json")}
    assert invoke("run-batch", "x.jsonl", "--config", file, env=env).exit_code == 0
    assert 'batchgen_exit_code{output="x.out"} 0.0' in (tmp_path / "m.prom").read_text()
    assert json.loads((tmp_path / "s.json").read_text())["exit_code"] == 0
    assert (job.config.stall_timeout, job.config.log_requests) == (5.0, True)


def test_a_metrics_file_of_another_kind_is_refused(job: StubJob, invoke: Invoke, tmp_path: Path) -> None:
    refused = invoke("run-batch", "x.jsonl", "--metrics-file", tmp_path / "m.txt").exception
    assert isinstance(refused, UsageError)
    assert not job.calls


@pytest.mark.usefixtures("job")
def test_results_on_standard_output_stay_alone_there(invoke: Invoke) -> None:
    result = invoke("run-batch", "-", "-o", "-")
    assert result.stdout == ""
    assert json.loads(result.stderr.splitlines()[-1])["status"] == "completed"


@pytest.mark.usefixtures("job")
def test_log_lines_off_a_terminal(invoke: Invoke) -> None:
    lines = invoke("run-batch", "x.jsonl", "--trust-remote-code").stderr.splitlines()
    assert "warning: --trust-remote-code has no effect" in lines[0]
    assert lines[1].endswith("generating")
    assert "2/2 rows (100%)" in lines[2]
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("model", ["org/name", "org/name@main", "org/name@0123abc"])
def test_code_is_trusted_for_one_commit_alone(invoke: Invoke, job: StubJob, model: str) -> None:
    result = invoke("run-batch", "x.jsonl", "--trust-remote-code", "--model", model)
    assert result.exit_code == 2
    assert "org/name@COMMIT" in result.stderr
    assert not job.calls
    commit = "0123456789" * 4
    pinned = ("--model", f"org/name@{commit}"), ("--model", "org/name", "--revision", commit)
    for arguments in (*pinned, ("--model", "smollm2-135m-instruct"), ("--model", "/")):
        assert invoke("run-batch", "x.jsonl", "--trust-remote-code", *arguments).exit_code == 0


@pytest.mark.usefixtures("job")
def test_json_log_lines(invoke: Invoke) -> None:
    lines = invoke("run-batch", "x.jsonl", "--log-format", "json").stderr.splitlines()
    entries = [json.loads(line) for line in lines]
    assert [entry["level"] for entry in entries] == ["info", "info"]
    assert entries[1]["progress"]["rows_done"] == 2


@pytest.mark.usefixtures("job")
def test_quiet(invoke: Invoke) -> None:
    result = invoke("run-batch", "x.jsonl", "--quiet", "--trust-remote-code")
    assert result.stderr == ""
    assert json.loads(result.stdout)
