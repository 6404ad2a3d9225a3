"""`batchgen bench`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from batchgen.bench.quality import PRECISIONS, QualityConfig, perplexity_of, windows_of
from batchgen.cli import throughput
from batchgen.cli.environment import home
from batchgen.cli.flags import CalibrateConfig, StreamConfig
from batchgen.cli.options import EPILOG, Chosen, file_to_write, options
from batchgen.cli.streams import open_streams, write_file
from batchgen.config import EngineConfig, ModelConfig
from batchgen.errors import UsageError

__all__ = ["app"]

app = typer.Typer(help="Measure speed and quality.", no_args_is_help=True)


app.command("throughput", epilog=EPILOG)(throughput.throughput)
app.command("compare", epilog=EPILOG)(throughput.compare)


@app.command("calibrate", epilog=EPILOG)
@options(CalibrateConfig, StreamConfig)
def calibrate(chosen: Chosen) -> None:
    """Measure what this machine reaches with the kernels of a run, and keep it for the time that `plan` tells and the
    efficiency that a run reports.

    Takes some ten seconds. The machine should have nothing else to do.
    """
    config = chosen.make(CalibrateConfig)
    with open_streams(chosen.make(StreamConfig)) as reporter:
        from batchgen.job.calibration import calibrate

        reporter.stage("measuring")
        for line in calibrate(
            EngineConfig(threads=config.threads, kernels=config.kernels, device=config.device), home()
        ):
            typer.echo(line)


@app.command("quality", epilog=EPILOG)
@options(QualityConfig, ModelConfig, EngineConfig, StreamConfig)
def quality(
    chosen: Chosen,
    output_json: Annotated[Path | None, file_to_write("output_json", "Write the figures there.")] = None,
) -> None:
    """Measure what int8 costs: the perplexity of a text in float32, with int8 linears, and with an int8 KV cache too.

    The text is cut into windows; each token is predicted from those of its window before it.
    """
    config = chosen.make(QualityConfig)
    try:
        text = config.text_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--text-file {config.text_file}: {error}") from error
    figures: list[dict[str, Any]] = []
    with open_streams(chosen.make(StreamConfig)) as reporter:
        from batchgen.job import open_engine

        for precision in PRECISIONS:
            reporter.stage(f"linears {precision.quantization}, KV cache {precision.kv_cache_dtype}")
            settings = replace(
                chosen.make(EngineConfig),
                quantization=precision.quantization,
                kv_cache_dtype=precision.kv_cache_dtype,
            )
            engine = open_engine(chosen.make(ModelConfig), settings, home())
            try:
                if engine.tokenizer is None:
                    raise UsageError("the model has no tokenizer; name one with --tokenizer")
                tokens = engine.tokenizer.encode(text)
                windows = windows_of(tokens, config.window_len, engine.tokenizer.added_bos)
                result = perplexity_of(engine, windows)
            finally:
                engine.close()
            figures.append(
                {
                    "linears": engine.runner.precision,
                    "kv_cache": engine.runner.kv_precision,
                    "tokens": result.tokens,
                    "perplexity": result.value,
                    "change": result.value / (figures[0]["perplexity"] if figures else result.value) - 1,
                }
            )
    for row in figures:
        typer.echo(
            f"linears {row['linears']}, KV cache {row['kv_cache']}: perplexity {row['perplexity']:.4f} "
            f"({row['change']:+.2%}), {row['tokens']} tokens"
        )
    if output_json is not None:
        write_file("--output-json", output_json, json.dumps(figures, indent=4) + "\n")
