"""Small models on disk, as the importer's tests need them: Hugging Face folders and GGUF files of every family."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from ai_playground.models import Transformer, TransformerConfig
from ai_playground.tokenizer import Tokenizer
from checking.reference import random_model

TEXTS = ["Once upon a time there was a fox who had 12 red balls."] * 3
SHAPE = TransformerConfig(
    vocab_size=280, dim=32, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=6, hidden_dim=64, max_seq_len=64
)
GGUF_LAYER = {
    "attn_norm": "attn_norm",
    "attn.wq": "attn_q",
    "attn.wk": "attn_k",
    "attn.wv": "attn_v",
    "attn.wo": "attn_output",
    "attn.wq.norm": "attn_q_norm",
    "attn.wk.norm": "attn_k_norm",
    "ffn_norm": "ffn_norm",
    "ffn.gate": "ffn_gate",
    "ffn.up": "ffn_up",
    "ffn.down": "ffn_down",
}
HF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn.wq": "self_attn.q_proj",
    "attn.wk": "self_attn.k_proj",
    "attn.wv": "self_attn.v_proj",
    "attn.wo": "self_attn.o_proj",
    "attn.wq.norm": "self_attn.q_norm",
    "attn.wk.norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}


def model(**changes: Any) -> Transformer:
    values = SHAPE.to_dict() | {"rope_theta": 500.0, "norm_eps": 1e-3, "eos_id": 1} | changes
    return random_model(TransformerConfig(**values), 3)


def halves(weight: Tensor, head_dim: int) -> Tensor:
    """A projection in rotate-half order: first the even rows of each head, then the odd ones."""
    heads = weight.unflatten(0, (-1, head_dim))
    return torch.cat((heads[:, 0::2], heads[:, 1::2]), dim=1).flatten(0, 1).contiguous()


def hugging_face_folder(folder: Path, source: Transformer, **changes: Any) -> Path:
    config, state = source.config, source.state_dict()
    tensors = {"model.embed_tokens.weight": state["embedding.weight"], "model.norm.weight": state["norm.weight"]}
    if not config.tie_embeddings:
        tensors["lm_head.weight"] = state["head.weight"]
    for index in range(config.n_layers):
        for ours, theirs in HF_LAYER.items():
            for kind in ("weight", "bias"):
                tensor = state.get(f"layers.{index}.{ours}.{kind}")
                if tensor is not None:
                    tensor = halves(tensor, config.head_dim) if ".wq" in ours or ".wk" in ours else tensor
                    tensors[f"model.layers.{index}.{theirs}.{kind}"] = tensor
    values = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.hidden_dim,
        "max_position_embeddings": config.max_seq_len,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "hidden_act": "silu",
        "eos_token_id": [config.eos_id, 5],
    }
    drop = changes.pop("drop", None)
    extra = changes.pop("extra", {})
    tensors = {name: tensor for name, tensor in (tensors | extra).items() if name != drop}
    dtype = changes.pop("dtype", torch.float32)
    names = sorted(tensors)
    for part in range(2):  # large models come in several files
        shard = {name: tensors[name].to(dtype).contiguous() for name in names[part::2]}
        save_file(shard, folder / f"model-{part}.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(values | changes))
    Tokenizer.train(TEXTS, config.vocab_size).save(folder / "tokenizer.json")
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


def gguf_file(path: Path, source: Transformer, quantised: bool = False, **changes: Any) -> Path:
    config, state = source.config, source.state_dict()
    trained = Tokenizer.train(changes.get("texts", TEXTS), config.vocab_size)
    backend = json.loads(trained.backend.to_str())["model"]
    tokens = sorted(backend["vocab"], key=backend["vocab"].get)
    for token, name in changes.get("rename", {}).items():
        tokens[token] = name
    kinds = [3, 3] + [1] * (len(tokens) - 2)
    for token, kind in changes.get("kinds", {}).items():
        kinds[token] = kind
    if "vocabulary" in changes:  # SentencePiece's
        tokens, kinds = changes["vocabulary"]["tokens"], changes["vocabulary"]["kinds"]
    architecture = changes.get("architecture", "llama")
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.n_layers)
    writer.add_context_length(config.max_seq_len)
    writer.add_embedding_length(config.dim)
    writer.add_feed_forward_length(config.hidden_dim)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    if "scaling" in changes:
        writer.add_rope_scaling_type(changes["scaling"])
    writer.add_tokenizer_model(changes.get("tokenizer", "gpt2"))
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if "vocabulary" in changes:
        writer.add_token_scores(changes["vocabulary"]["scores"])
    for name, value in changes.get("fields", {}).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](name, value)
    writer.add_token_merges([" ".join(merge) for merge in backend["merges"]])
    writer.add_eos_token_id(config.eos_id)
    tensors = {"token_embd.weight": state["embedding.weight"], "output_norm.weight": state["norm.weight"]}
    if not config.tie_embeddings:
        tensors["output.weight"] = state["head.weight"]
    for index in range(config.n_layers):
        for ours, theirs in GGUF_LAYER.items():
            for kind in ("weight", "bias"):
                tensor = state.get(f"layers.{index}.{ours}.{kind}")
                if tensor is not None:
                    turned = architecture != "llama" and (".wq" in ours or ".wk" in ours)
                    tensor = halves(tensor, config.head_dim) if turned else tensor
                    tensors[f"blk.{index}.{theirs}.{kind}"] = tensor
    tensors |= changes.get("extra", {})
    for name, tensor in tensors.items():
        if not changes.get("keep", bool)(name):
            continue
        values = tensor.numpy().astype(np.float32)
        if quantised and values.ndim == 2 and values.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
