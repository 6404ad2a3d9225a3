"""Small real tokenizers of the two kinds that the supported models have, built without a download."""

from __future__ import annotations

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

__all__ = ["SPECIAL", "byte_fallback", "byte_level"]

SPECIAL = ("<unk>", "<s>", "</s>", "<|user|>")
"""Special tokens of both; ids [0, 4)."""

_CORPUS = [
    "the cat sat on the mat, the end.",
    "héllo wörld 日本語 🙂🙂",
    "stop here STOP there",
    "def f(x):\n    return x\n",
]


def byte_level(vocab_size: int = 320) -> Backend:
    """Byte-level BPE without a BOS, as Llama 3, Qwen and SmolLM have it."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_CORPUS, trainer)
    return backend


def byte_fallback() -> Backend:
    """BPE in SentencePiece's manner with byte tokens and a BOS, as Llama 2, Mistral and Gemma have it."""
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("a", "t"), ("▁", "s"), ("o", "p"), ("▁s", "t"), ("▁", "▁")]
    letters = sorted({*"▁abcdefghijklmnopqrstuvwxyz.,", "é", "日", "\n"})
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*SPECIAL, *bytes_, *letters, *("".join(pair) for pair in merges)]
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    return backend
