"""References lead to checkpoints, or to advice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from batchgen.checkpoint.resolve import resolve
from batchgen.checkpoint.types import NoWeights, SafetensorsWeights
from batchgen.errors import ModelNotFoundError, UnsupportedModelError, UsageError
from batchgen.text.tokenizer import load_tokenizer
from tests.tiny_tokenizers import byte_fallback, byte_level

MakeFolder = Callable[..., Path]
CONFIG = {"model_type": "llama", "vocab_size": 300}


def write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path) -> MakeFolder:
    """Makes a model folder with weights and tokenizer."""

    def make(name: str = "model", value: float = 1.0) -> Path:
        path = tmp_path / name
        path.mkdir()
        write(path / "config.json", CONFIG)
        weight = np.full((64, 64), 0.5, dtype=np.float32)
        weight[32, 32] = value
        save_file({"a.weight": np.zeros(3, dtype=np.float32), "b.weight": weight}, path / "model.safetensors")
        byte_level().save(str(path / "tokenizer.json"))
        return path

    return make


def test_a_folder(folder: MakeFolder, home: Path) -> None:
    path = folder()
    write(path / "generation_config.json", {"temperature": 0.5})
    write(path / "tokenizer_config.json", {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": None})
    write(path / "special_tokens_map.json", {"pad_token": "<unk>", "bos_token": "</s>"})
    found = resolve(str(path), home=home)
    assert found.name == "model"
    assert found.config == CONFIG
    assert found.generation_config == {"temperature": 0.5}
    assert found.tokenizer_config == {"bos_token": "<s>", "eos_token": None, "pad_token": "<unk>"}
    assert found.tokenizer_file == path / "tokenizer.json"
    assert found.weights == SafetensorsWeights((path / "model.safetensors",))
    assert found.chat_template is None


def test_shards_come_from_the_index(folder: MakeFolder, home: Path) -> None:
    path = folder()
    (path / "model.safetensors").rename(path / "model-00002-of-00002.safetensors")
    save_file({"c": np.zeros(2)}, path / "model-00001-of-00002.safetensors")
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    write(path / "model.safetensors.index.json", {"weight_map": {"a.weight": names[1], "b": names[1], "c": names[0]}})
    assert resolve(str(path), home=home).weights == SafetensorsWeights(tuple(path / name for name in names))
    (path / names[0]).unlink()
    with pytest.raises(ModelNotFoundError, match=f"lacks {names[0]}"):
        resolve(str(path), home=home)


def test_pickles_are_refused_with_the_reason(folder: MakeFolder, home: Path) -> None:
    path = folder()
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match=r"pytorch_model\.bin only.*run any code.*safetensors"):
        resolve(str(path), home=home)


def test_no_weights_are_fine_for_dummy_weights_alone(folder: MakeFolder, home: Path) -> None:
    path = folder()
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match="--load-format dummy"):
        resolve(str(path), home=home)
    (path / "tokenizer.json").unlink()
    found = resolve(str(path), home=home, load_format="dummy")
    assert (found.weights, found.tokenizer_file) == (NoWeights(), None)


def test_chat_templates_in_order(folder: MakeFolder, home: Path, tmp_path: Path) -> None:
    path = folder()

    def template(given: str | None = None) -> str | None:
        return resolve(str(path), home=home, chat_template=given).chat_template

    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    write(path / "tokenizer_config.json", {"chat_template": named})
    assert template() == "D"
    write(path / "tokenizer_config.json", {"chat_template": "C"})
    assert template() == "C"
    (path / "chat_template.jinja").write_text("J")
    assert template() == "J"
    (tmp_path / "mine.jinja").write_text("F")
    assert template(str(tmp_path / "mine.jinja")) == "F"
    assert template("{{ messages }}") == "{{ messages }}"
    with pytest.raises(UsageError, match="no such file"):
        template("absent.jinja")


def test_generation_configs(folder: MakeFolder, home: Path, tmp_path: Path) -> None:
    path, other = folder(), tmp_path / "other"
    other.mkdir()
    write(path / "generation_config.json", {"top_k": 1})
    write(other / "generation_config.json", {"top_k": 2})
    choices: dict[str, Any] = {"auto": {"top_k": 1}, "none": {}, str(other): {"top_k": 2}}
    for choice, expected in choices.items():
        assert resolve(str(path), home=home, generation_config=choice).generation_config == expected
    with pytest.raises(UsageError, match="auto, none, or a folder"):
        resolve(str(path), home=home, generation_config="absent")


def test_a_tokenizer_from_elsewhere(folder: MakeFolder, home: Path) -> None:
    path, other = folder(), folder("other")
    (other / "model.safetensors").unlink()
    byte_fallback().save(str(other / "tokenizer.json"))
    (other / "chat_template.jinja").write_text("O")
    found = resolve(str(path), home=home, tokenizer=str(other))
    assert (found.tokenizer_file, found.chat_template) == (other / "tokenizer.json", "O")
    assert found.fingerprint != resolve(str(path), home=home).fingerprint
    (other / "tokenizer.json").unlink()
    with pytest.raises(ModelNotFoundError, match="holds no tokenizer"):
        resolve(str(path), home=home, tokenizer=str(other))


def test_a_slow_tokenizer_is_converted_once(folder: MakeFolder, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder()
    model = json.loads((path / "tokenizer.json").read_text())["model"]
    (path / "tokenizer.json").unlink()
    write(path / "vocab.json", model["vocab"])
    (path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]))
    write(path / "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer", "unk_token": "<unk>"})
    found = resolve(str(path), home=home)
    tokenizer = load_tokenizer(found)
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer.encode("the cat 日本")) == "the cat 日本"
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert resolve(str(path), home=home) == found


def test_fingerprints_tell_weights_and_tokenizers_apart(folder: MakeFolder, home: Path, tmp_path: Path) -> None:
    path = folder()
    first = resolve(str(path), home=home).fingerprint
    moved = path.rename(tmp_path / "moved")
    assert resolve(str(moved), home=home).fingerprint == first
    tuned = folder("tuned", value=2.0)
    assert resolve(str(tuned), home=home).fingerprint != first
    byte_fallback().save(str(moved / "tokenizer.json"))
    assert resolve(str(moved), home=home).fingerprint != first


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("smollm2-135m-instruct", "batchgen models pull smollm2-135m-instruct"),
        ("./absent", "no such file or folder: ./absent; embedded models: "),
        ("absent.gguf", "no such file or folder"),
        ("smollm2-135m", "embedded models: smollm2-135m-instruct$"),
        ("owner/absent@main", "owner/absent is neither an alias"),
        ("a/b/c", "no such file or folder"),
    ],
)
def test_what_is_not_there(reference: str, said: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError, match=said):
        resolve(reference, home=home)


def test_what_cannot_be_read(folder: MakeFolder, home: Path) -> None:
    path = folder()
    (path / "config.json").write_text("{")
    with pytest.raises(ModelNotFoundError, match=r"config\.json cannot be read as JSON"):
        resolve(str(path), home=home)
    (path / "config.json").write_text("[]")
    with pytest.raises(ModelNotFoundError, match="must hold a JSON object, found list"):
        resolve(str(path), home=home)
    (path / "config.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"no config\.json and no GGUF file"):
        resolve(str(path), home=home)
    with pytest.raises(ModelNotFoundError, match="not a GGUF file"):
        resolve(str(path / "tokenizer.json"), home=home)
    write(path / "config.json", CONFIG)
    (path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(ModelNotFoundError, match="not a safetensors file"):
        resolve(str(path), home=home)


def test_revisions_are_for_the_hub(folder: MakeFolder, home: Path) -> None:
    with pytest.raises(UsageError, match="--revision main is for hub ids"):
        resolve(str(folder()), home=home, revision="main")
    with pytest.raises(UsageError, match="two revisions"):
        resolve("owner/name@v1", home=home, revision="v2")


def test_a_hub_id_is_taken_from_the_hubs_cache(
    folder: MakeFolder, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789" * 4
    repository = tmp_path / "hub" / "models--owner--name"
    (repository / "snapshots").mkdir(parents=True)
    folder().rename(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for reference in ("owner/name", "owner/name@main", f"owner/name@{commit}"):
        found = resolve(reference, home=home)
        assert (found.name, found.fingerprint) == ("owner/name", f"owner/name@{commit}")
    assert resolve("owner/name", home=home, revision="main") == resolve("owner/name", home=home)


def test_a_folder_with_one_gguf_file(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "models"
    path.mkdir()
    (path / "a.gguf").write_bytes(b"no")
    with pytest.raises(ModelNotFoundError, match=r"a\.gguf is not a GGUF file"):
        resolve(str(path), home=home)
    (path / "b.gguf").touch()
    with pytest.raises(ModelNotFoundError, match="2 GGUF files; name one"):
        resolve(str(path), home=home)


@pytest.mark.slow
def test_a_converted_model_is_resolved_without_heavy_imports(smollm2: Any, model_home: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path; from batchgen.checkpoint.resolve import resolve\n"
        "from batchgen.text.tokenizer import load_tokenizer; from batchgen.text.template import load_template\n"
        f"model = resolve(None, home=Path({str(model_home)!r})); load_tokenizer(model); load_template(model)\n"
        "print(model.fingerprint, *{'torch', 'transformers', 'gguf'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    fingerprint, *heavy = done.stdout.split()
    assert fingerprint == smollm2.fingerprint
    assert heavy == []
