"""The library's model: the chapter's figures, and the properties that the engine relies on."""

import torch

from ai_playground.inference import generate
from ai_playground.models import Transformer, TransformerConfig

TOY = TransformerConfig(
    vocab_size=256, dim=128, n_layers=4, n_heads=8, n_kv_heads=4, head_dim=16, hidden_dim=256, max_seq_len=512
)


def test_the_chapters_toy_model_has_the_printed_figures() -> None:
    torch.manual_seed(0)
    model = Transformer(TOY).eval()
    prompt = torch.randint(0, 256, (11,)).tolist()
    assert sum(p.numel() for p in model.parameters()) == 656_512
    assert TOY.kv_values_per_token * 4 == 2_048
    assert list(generate(model, prompt, 8)) == [241, 43, 37, 163, 174, 3, 232, 7]
