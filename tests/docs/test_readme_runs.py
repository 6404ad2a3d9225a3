"""The readme's jobs, run as they are printed, with a small model in place of the embedded one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.docs.pages import ROOT, Page

README = Page(ROOT / "README.md", (ROOT / "README.md").read_text(encoding="utf-8"))
PROGRAM = "from batchgen.cli.main import main; main()"


def python(code: str, *words: str, folder: Path, **environment: str) -> str:
    """What a program prints."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_job_over_a_column_and_what_reads_its_results(tiny_model: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"review": ["Warm bread.", "Cold soup."]}), tmp_path / "reviews.parquet")
    (words,) = (words for words in README.commands() if "sums" in words)
    settings = {"BATCHGEN_MODEL": str(tiny_model), "BATCHGEN_KV_CACHE_MEMORY": "16MB"}
    python(PROGRAM, *words, folder=tmp_path, **settings)
    (snippet,) = (code for code in README.snippets("python") if '"sums"' in code)
    shown = python(snippet, folder=tmp_path, HF_HOME=str(tmp_path / "hub"))
    assert shown.startswith("Warm bread. ")
    assert len(shown) > len("Warm bread. \n")
