"""Embeddings: whole jobs on a tiny model, against transformers' hidden states."""

from __future__ import annotations

import base64
import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from openai.types import CreateEmbeddingResponse
from tokenizers import Tokenizer as Backend

from batchgen.checkpoint.pooling import read_pooling
from batchgen.errors import ModelNotFoundError
from tests.golden.models import make_model
from tests.unit.test_job import line
from tests.unit.test_scoring import job

IDS = [5, 9, 40, 41, 200, 7, 7, 63, 150, 22, 31, 80, 81, 99, 120, 5, 9, 40, 300, 11]


def embed(custom_id: str, value: Any, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "url": "/v1/embeddings", "body": {"input": value, **body}}


LINES = [
    embed("text", "the sea"),
    embed("texts", ["the sea", "the cat"]),
    embed("ids", IDS),
    embed("lists", [IDS, IDS[:5], IDS]),
    embed("short", IDS, dimensions=10),
    embed("packed", IDS, encoding_format="base64", dimensions=10),
    line("beside", prompt=IDS, temperature=0, max_tokens=3),
]
BAD = [embed("wide", IDS, dimensions=65), embed("empty", ""), embed("outside", [307]), embed("none", None)]


def modules(folder: Path, mode: str | None, *kinds: str) -> None:
    """What sentence-transformers would write."""
    listed = [{"type": f"sentence_transformers.models.{kind}", "path": f"1_{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(listed), encoding="utf-8")
    (folder / "1_Pooling").mkdir(exist_ok=True)
    config = {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, f"pooling_mode_{mode}": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.fixture(scope="module")
def mean_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, pooled by the mean."""
    folder = tmp_path_factory.mktemp("pooled") / "tiny"
    shutil.copytree(tiny_model, folder)
    modules(folder, "mean_tokens", "Transformer", "Pooling", "Normalize")
    return folder


@pytest.fixture(scope="module")
def hidden() -> Any:
    """Hidden states of the tiny model after its final norm."""
    model = make_model("llama")

    def states(ids: list[int]) -> npt.NDArray[np.float64]:
        with torch.inference_mode():
            return np.asarray(model.model(torch.tensor([ids])).last_hidden_state[0].double())

    return states


def unit(vector: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(vector / np.linalg.norm(vector))


def vectors(body: Mapping[str, Any]) -> list[list[float]]:
    parsed = CreateEmbeddingResponse.model_validate(body, strict=True)
    assert parsed.to_dict() == body, "nothing is added, nothing missing"
    assert [entry.index for entry in parsed.data] == list(range(len(parsed.data)))
    return [entry.embedding for entry in parsed.data]


@pytest.mark.parametrize("mean", [False, True])
def test_embeddings_are_transformers_hidden_states(
    mean: bool, tiny_model: Path, mean_model: Path, hidden: Any, tmp_path: Path
) -> None:
    model = mean_model if mean else tiny_model

    def expected(ids: list[int], dimensions: int | None = None) -> npt.NDArray[np.float64]:
        states = hidden(ids)
        return unit((states.mean(axis=0) if mean else states[-1])[:dimensions])

    bodies = job(model, tmp_path / "run", [*LINES, *BAD])
    backend = Backend.from_file(str(model / "tokenizer.json"))
    sea, cat = backend.encode("the sea").ids, backend.encode("the cat").ids
    for name, prompts in {"text": [sea], "texts": [sea, cat], "ids": [IDS], "lists": [IDS, IDS[:5], IDS]}.items():
        got = vectors(bodies[name])
        np.testing.assert_allclose(got, [expected(ids) for ids in prompts], atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1.0, atol=1e-6)
        assert bodies[name]["usage"]["prompt_tokens"] == sum(map(len, prompts))
    (short,) = vectors(bodies["short"])
    np.testing.assert_allclose(short, expected(IDS, 10), atol=1e-5)
    packed = base64.b64decode(bodies["packed"]["data"][0]["embedding"])
    np.testing.assert_array_equal(np.frombuffer(packed, "<f4"), np.array(short, np.float32))
    assert bodies["wide"]["error"]["param"] == "body.dimensions"
    assert bodies["empty"]["error"]["param"] == bodies["outside"]["error"]["param"] == "body.input"
    assert bodies["none"]["error"]["code"] == "missing_required_field"


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_bits_do_not_depend_on_the_batch(
    mean: bool, kernels: str, tiny_model: Path, mean_model: Path, tmp_path: Path
) -> None:
    model = mean_model if mean else tiny_model
    whole = job(model, tmp_path / "whole", LINES)
    lines = random.Random(1).sample(LINES, len(LINES))
    pieces = job(
        model, tmp_path / "pieces", lines, max_num_seqs=3, max_num_batched_tokens=7, block_size=4, kernels=kernels
    )
    for name, body in pieces.items():
        if kernels == "auto":
            assert body.get("data", body.get("choices")) == whole[name].get("data", whole[name].get("choices"))
        elif name == "lists":
            np.testing.assert_allclose(vectors(body), vectors(whole[name]), atol=1e-5)


def test_how_a_model_pools(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) == "last"
    modules(tmp_path, "mean_tokens", "Transformer", "Pooling")
    assert read_pooling(tmp_path) == "mean"
    modules(tmp_path, "lasttoken", "Transformer", "Pooling", "Normalize")
    assert read_pooling(tmp_path) == "last"
    modules(tmp_path, "max_tokens", "Transformer", "Pooling")
    assert read_pooling(tmp_path) == "max_tokens"
    modules(tmp_path, "mean_tokens", "Transformer", "Pooling", "Dense")
    assert read_pooling(tmp_path) == "Dense"
    (tmp_path / "modules.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(ModelNotFoundError, match=r"modules\.json"):
        read_pooling(tmp_path)


def test_a_way_of_pooling_that_is_not_ours_is_refused(mean_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(mean_model, model)
    modules(model, "max_tokens", "Transformer", "Pooling")
    bodies = job(model, tmp_path / "run", [LINES[0], LINES[-1]])
    assert "max_tokens" in bodies["text"]["error"]["message"]
    assert bodies["beside"]["usage"]["completion_tokens"] == 3
