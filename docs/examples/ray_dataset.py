"""Answers to questions of a Parquet file, on a Ray cluster: `python ray_dataset.py questions.parquet answers MODEL`.

The file has the columns `id` and `question`; the folder `answers` gets them back with those of results.
"""

from __future__ import annotations

import sys

from batchgen.integrations.ray import run

__all__ = ["main"]


def main(source: str, target: str, model: str) -> None:
    """Read, answer, write."""
    answered = run(
        source,
        model=model,
        num_workers=2,
        prompt_column="question",
        id_column="id",
        sampling={"max_tokens": 16, "temperature": 0.7},
    )
    answered.write_parquet(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
