"""A model in a Hugging Face folder: config.json, safetensors and a tokenizer."""

from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from ai_playground.importing.chat import one_template
from ai_playground.importing.families import ARCHITECTURES, FOLDER, family_of, pieces_of
from ai_playground.importing.refusals import ImportRefused, few, make_config, one_or_several, read_json, refuse_pointer
from ai_playground.importing.rope_scaling import rope_factors
from ai_playground.importing.safetensors_file import Stored, read_safetensors
from ai_playground.importing.source import Source
from ai_playground.importing.vocabularies import sentencepiece_tokenizer
from ai_playground.tokenizer import Tokenizer

_UNSERVED = {  # what else a config.json may ask for, and the only value that the course's model has
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "num_local_experts": None,
    "num_experts": None,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "partial_rotary_factor": 1.0,
}
_CALLED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_hugging_face(folder: Path) -> Source:
    """A folder with config.json, tokenizer.json or tokenizer.model, and `*.safetensors`.

    Raises:
        ImportRefused: a missing file, another architecture, or a feature that the course's model lacks.
    """
    values = read_json(folder / "config.json")
    architecture = next(iter(values.get("architectures") or ["none"]))
    if values.get("quantization_config"):
        method = values["quantization_config"]
        method = method.get("quant_method") if isinstance(method, dict) else method
        raise ImportRefused(f"{folder}: it is quantised with {method}: get the unquantised model, or a GGUF of it")
    family = family_of(architecture, ARCHITECTURES, folder)
    for key, wanted in _UNSERVED.items():
        if (values.get(key) or wanted) != wanted:
            raise ImportRefused(f"{folder}: {key} = {values[key]!r} is not supported, only {wanted!r}")
    found = _tensors(folder)
    rope = values.get("rope_parameters") or {}  # newer files put theta and the scaling together here
    rope = rope | (values.get("rope_scaling") or {})
    theta = _number(values.get("rope_theta") or rope.get("rope_theta") or 10_000.0, "rope_theta", folder)
    settings, template, tokens = _tokenizer_settings(folder)
    tokenizer = _tokenizer(folder, settings)
    config = make_config(
        folder,
        len(found),
        vocab_size=values.get("vocab_size"),
        dim=values.get("hidden_size"),
        n_layers=values.get("num_hidden_layers"),
        n_heads=values.get("num_attention_heads"),
        n_kv_heads=values.get("num_key_value_heads"),
        head_dim=values.get("head_dim") or (128 if family.qk_norm else None),  # Qwen3's default
        hidden_dim=values.get("intermediate_size"),
        max_seq_len=values.get("max_position_embeddings"),
        rope_theta=theta,
        norm_eps=_number(values.get("rms_norm_eps", 1e-6), "rms_norm_eps", folder),
        tie_embeddings=bool(values.get("tie_word_embeddings", False)),
        eos_id=_ends(folder, values, tokenizer, tokens.get("eos_token")),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
    )
    _refuse_window(values, config.max_seq_len, folder)
    factors, scale = rope_factors(rope, config.head_dim, config.rope_theta, config.max_seq_len, folder)
    config = replace(config, rope_factors=factors, rope_scale=scale)
    pieces = pieces_of(config, family, found, FOLDER, folder)
    return Source(folder, config, pieces, tokenizer, template, tokens)


def _number(value: Any, name: str, path: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ImportRefused(f"{path}: its configuration cannot be served: {name} = {value!r}")
    return float(value)


def _refuse_window(values: dict[str, Any], context: int, folder: Path) -> None:
    """A window that is at least the context is none."""
    window = values.get("sliding_window")
    if window is None or values.get("use_sliding_window") is False or (isinstance(window, int) and window >= context):
        return
    raise ImportRefused(f"{folder}: sliding_window = {window!r} is not supported: each token must see all before it")


def _tensors(folder: Path) -> dict[str, Stored]:
    """Those of the files that the index names, or of all files where there is none."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
            raise ImportRefused(f"{index}: expected a weight_map, names of tensors to names of files")
        names = sorted(set(places.values()))
        outside = [name for name in names if PurePosixPath(name).name != name or "\\" in name or name in (".", "..")]
        if outside:
            raise ImportRefused(f"{index} names files outside its folder: {few(outside)}")
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ImportRefused(f"{folder}: its index names files that it lacks: {few(missing)}; download them")
        files = [folder / name for name in names]
    elif (folder / "model.safetensors").is_file():
        files = [folder / "model.safetensors"]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ImportRefused(f"{folder}: expected *.safetensors files, found none")
    tensors: dict[str, Stored] = {}
    for file in files:
        more = read_safetensors(file)
        twice = sorted(set(tensors) & set(more))
        if twice:
            raise ImportRefused(f"{file}: {twice[0]} is in another file too")
        tensors |= more
    return tensors


def _tokenizer(folder: Path, settings: dict[str, Any]) -> Tokenizer:
    path = folder / "tokenizer.json"
    if path.is_file():
        refuse_pointer(path)
        try:
            return Tokenizer.from_file(path)
        except ValueError as error:
            raise ImportRefused(str(error)) from None
    if (folder / "tokenizer.model").is_file():
        return sentencepiece_tokenizer(folder, settings)
    raise ImportRefused(
        f"{folder} has neither tokenizer.json nor tokenizer.model. If it has another tokenizer, transformers converts "
        "it: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    )


def _tokenizer_settings(folder: Path) -> tuple[dict[str, Any], str | None, dict[str, str]]:
    """tokenizer_config.json, the chat template, and the special tokens by their names."""
    path = folder / "tokenizer_config.json"
    settings = read_json(path) if path.is_file() else {}
    named = {}
    if (folder / "special_tokens_map.json").is_file():
        named = read_json(folder / "special_tokens_map.json")
    tokens = {}
    for name in _CALLED:
        token = settings.get(name) or named.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            tokens[name] = token
    template = one_template(settings.get("chat_template"), path)
    if (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    return settings, template, tokens


def _ends(folder: Path, values: dict[str, Any], tokenizer: Tokenizer, eos: str | None) -> int | tuple[int, ...] | None:
    """Every token that ends a text: the model's, those of generation_config.json, and the tokenizer's own."""
    generation = folder / "generation_config.json"
    stated = [values.get("eos_token_id"), read_json(generation).get("eos_token_id") if generation.is_file() else None]
    stated.append(tokenizer.token_id(eos) if eos else None)
    ends: list[Any] = []
    for value in stated:
        ends += value if isinstance(value, list) else [value] if value is not None else []
    return one_or_several(ends)
