"""Tokenizers from the vocabularies of GGUF files and of SentencePiece's `tokenizer.model`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from ai_playground.importing.refusals import ImportRefused, extra, few, refuse_pointer
from ai_playground.tokenizer import Tokenizer

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # kinds of token, the same numbers in both formats
_WORDS = r"[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?" + _WORDS
_QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?" + _WORDS
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*|\p{{N}}| ?"
    r"[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


@dataclass(frozen=True)
class _Cut:
    """How text is cut before byte-level BPE, and what else llama.cpp ties to the name of it."""

    pre_tokenizer: pre_tokenizers.PreTokenizer
    whole_words: bool = False  # a word that is a token is one, whatever the merges make of it
    add_bos: bool = False
    normalizer: normalizers.Normalizer | None = None


_GPT2 = _Cut(pre_tokenizers.ByteLevel(add_prefix_space=False))
_DIGITS = _Cut(
    pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)])
)
_CUTS = {
    "gpt-2": _GPT2,
    "default": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "llama-bpe": _Cut(_split(_LLAMA3), whole_words=True, add_bos=True),
    "smaug-bpe": _Cut(_split(_LLAMA3)),
    "qwen2": _Cut(_split(_QWEN2), normalizer=normalizers.NFC()),
    "deepseek-r1-qwen": _Cut(_split(_QWEN2), normalizer=normalizers.NFC()),
    "tekken": _Cut(_split(_TEKKEN), whole_words=True, add_bos=True),
}


def gguf_tokenizer(fields: dict[str, Any], path: Path) -> Tokenizer:
    """The tokenizer inside a GGUF file: byte-level BPE (`gpt2`) or SentencePiece's BPE (`llama`).

    Raises:
        ImportRefused: another kind, a way of cutting text that is not known, lists that do not fit each other.
    """
    kind, cut = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "default")
    tokens = fields.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise ImportRefused(f"{path}: it has no list of tokens, so text cannot be put to it")
    kinds = fields.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    scores = fields.get("tokenizer.ggml.scores") or [0.0] * len(tokens)
    for name, values in (("token_type", kinds), ("scores", scores)):
        if not isinstance(values, list) or len(values) != len(tokens):
            raise ImportRefused(
                f"{path}: tokenizer.ggml.{name} does not have one value for each of {len(tokens)} tokens"
            )
    if kind == "llama":
        prefix = bool(fields.get("tokenizer.ggml.add_space_prefix", True))
        backend = sentencepiece_bpe(tokens, scores, kinds, prefix, path)
        add_bos = True
    elif kind == "gpt2":
        if not isinstance(cut, str) or cut not in _CUTS:
            raise ImportRefused(f"{path}: the pre-tokenizer {cut!r} is not known; known are {', '.join(_CUTS)}")
        backend = _byte_level_bpe(tokens, fields.get("tokenizer.ggml.merges"), _CUTS[cut], path)
        add_bos = _CUTS[cut].add_bos
    else:
        raise ImportRefused(f"{path}: the tokenizer {kind!r} is not known; known are gpt2 (byte-level BPE) and llama")
    _add_special(backend, tokens, kinds)
    ends = {
        "bos": fields.get("tokenizer.ggml.add_bos_token", add_bos),
        "eos": fields.get("tokenizer.ggml.add_eos_token", False),
    }
    wanted = {name: fields.get(f"tokenizer.ggml.{name}_token_id") for name, add in ends.items() if add}
    for name, token in wanted.items():
        if token is not None and (type(token) is not int or not 0 <= token < len(tokens)):
            raise ImportRefused(f"{path}: {name}_token_id is {token}, the vocabulary has {len(tokens)} tokens")
    add_around(backend, wanted.get("bos"), wanted.get("eos"))
    return Tokenizer(backend)


def add_around(backend: tokenizers.Tokenizer, bos: int | None, eos: int | None) -> None:
    """Let `encode` put a token before a text, behind it, or both."""
    before, behind = ([f"{backend.id_to_token(token)}"] if token is not None else [] for token in (bos, eos))
    if before or behind:
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *behind],
            special_tokens=[(token, backend.token_to_id(token)) for token in {*before, *behind}],
        )


def _byte_level_bpe(tokens: list[str], merges: Any, cut: _Cut, path: Path) -> tokenizers.Tokenizer:
    if not isinstance(merges, list) or not all(isinstance(merge, str) and " " in merge[1:] for merge in merges):
        raise ImportRefused(f"{path}: it has no list of merges, two tokens each")
    # A token may hold a space in no byte-level vocabulary, but for the first character of a merge.
    pairs = [(merge[: merge.index(" ", 1)], merge[merge.index(" ", 1) + 1 :]) for merge in merges]
    backend = _bpe(path, tokens, pairs, ignore_merges=cut.whole_words)
    backend.pre_tokenizer = cut.pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    if cut.normalizer is not None:
        backend.normalizer = cut.normalizer
    return backend


def sentencepiece_bpe(
    tokens: list[str], scores: list[float], kinds: list[int], prefix: bool, path: Path
) -> tokenizers.Tokenizer:
    """SentencePiece's BPE (Kudo & Richardson, 2018): of all pairs that are tokens, the best score is merged first.

    Args:
        tokens: pieces, with `▁` for a space and `<0x0A>` for bytes.
        scores: one a piece, the higher the earlier it is merged.
        kinds: one a piece: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
        prefix: whether a space is put in front of a text.
    """
    vocabulary = {token: index for index, token in enumerate(tokens)}
    ranked = []
    for token, score, kind in zip(tokens, scores, kinds, strict=True):
        if kind != 1 or len(token) > 256:  # pieces of text have 16 characters at most, by default
            continue
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-score, vocabulary[left], vocabulary[right], left, right))
    merges = [(left, right) for *_, left, right in sorted(ranked)]
    unknown = next((token for token, kind in zip(tokens, kinds, strict=True) if kind == _UNKNOWN), None)
    backend = _bpe(path, tokens, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    replace = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace] if prefix else [replace])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend


def sentencepiece_tokenizer(folder: Path, settings: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a folder that has SentencePiece's `tokenizer.model` and no `tokenizer.json`.

    Args:
        folder: may have an `added_tokens.json` too.
        settings: its `tokenizer_config.json`.

    Raises:
        ImportRefused: it is not SentencePiece's BPE.
    """
    path = folder / "tokenizer.model"
    refuse_pointer(path)
    proto = extra("sentencepiece.sentencepiece_model_pb2").ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except Exception as error:  # protobuf's DecodeError, which is no ValueError
        raise ImportRefused(f"{path} is not a SentencePiece model ({error})") from None
    if proto.trainer_spec.model_type != proto.trainer_spec.BPE or not proto.pieces:
        raise ImportRefused(
            f"{path} is not SentencePiece's BPE. Write a tokenizer.json beside it with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    tokens = [piece.piece for piece in proto.pieces]
    kinds = [piece.type for piece in proto.pieces]
    prefix = proto.normalizer_spec.add_dummy_prefix
    backend = sentencepiece_bpe(tokens, [piece.score for piece in proto.pieces], kinds, prefix, path)
    _add_special(backend, tokens, kinds)
    added = {int(index): entry for index, entry in (settings.get("added_tokens_decoder") or {}).items()}
    for index in sorted(index for index in added if index >= len(tokens)):
        entry = added[index]
        backend.add_tokens([AddedToken(entry["content"], special=bool(entry.get("special")), normalized=False)])
        if backend.token_to_id(entry["content"]) != index:
            raise ImportRefused(f"{folder}: the added token {entry['content']!r} cannot have the id {index}")
    bos, eos = (backend.token_to_id(proto.trainer_spec.bos_piece), backend.token_to_id(proto.trainer_spec.eos_piece))
    add_around(
        backend, bos if settings.get("add_bos_token", True) else None, eos if settings.get("add_eos_token") else None
    )
    return Tokenizer(backend)


def _bpe(path: Path, tokens: list[str], merges: list[tuple[str, str]], **settings: Any) -> tokenizers.Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        twice = {token for token in tokens if tokens.count(token) > 1} if len(tokens) < 2**12 else set()
        raise ImportRefused(f"{path}: tokens come twice in its vocabulary: {few(sorted(twice))}")
    try:
        return tokenizers.Tokenizer(models.BPE(vocabulary, merges, **settings))
    except Exception as error:  # the backend raises bare Exception
        raise ImportRefused(f"{path}: its vocabulary and merges do not fit each other: {error}") from None


def _add_special(backend: tokenizers.Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Control tokens are left out of decoded text; those that a user defined are not. Neither is ever cut."""
    backend.add_tokens(
        [
            AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (_CONTROL, _USER_DEFINED) and token
        ]
    )
