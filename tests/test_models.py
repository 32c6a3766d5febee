"""The library's model: the chapter's figures, and the properties that the engine relies on."""

import pytest
import torch
import torch.nn.functional as F

from ai_playground.inference import generate, sample_top_p
from ai_playground.models import Transformer, TransformerConfig
from ai_playground.models.layers import RMSNorm, SwiGLU, apply_rope, precompute_rope_frequencies
from checking.reference import greedy, random_model, token_pass_flops
from checking.shapes import SHAPES, TOY


def test_the_chapters_toy_model_has_the_printed_figures() -> None:
    torch.manual_seed(0)
    config = TransformerConfig(**TOY)
    model = Transformer(config).eval()
    prompt = torch.randint(0, 256, (11,)).tolist()
    assert sum(p.numel() for p in model.parameters()) == 656_512
    assert config.kv_values_per_token * 4 == 2_048
    assert round(config.kv_values_per_token * 4 * 512 / 1_000) == 1_049
    assert list(generate(model, prompt, 8)) == [241, 43, 37, 163, 174, 3, 232, 7]
    assert greedy(model, prompt, 8) == [241, 43, 37, 163, 174, 3, 232, 7]


def test_the_chapters_model_can_be_written_with_the_layers_alone() -> None:
    """RMSNorm, SwiGLU and RoPE put together by hand, in the chapter's order, give the same eight tokens."""
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(256, 128)
    linear = lambda rows, columns: torch.nn.Linear(rows, columns, bias=False)  # noqa: E731
    layers = []
    for _ in range(4):
        norm, wq, wk, wv, wo = RMSNorm(128), linear(128, 128), linear(128, 64), linear(128, 64), linear(128, 128)
        layers.append((norm, wq, wk, wv, wo, RMSNorm(128), SwiGLU(128, 256)))
    norm, head = RMSNorm(128), linear(128, 256)
    tokens = torch.randint(0, 256, (11,))
    freqs = precompute_rope_frequencies(16, 512, 10_000.0)
    with torch.no_grad():
        for _ in range(8):
            x, length = embedding(tokens)[None], len(tokens)
            for attn_norm, wq, wk, wv, wo, ffn_norm, ffn in layers:
                h = attn_norm(x)
                q, k = apply_rope(wq(h).view(1, length, 8, 16), wk(h).view(1, length, 4, 16), freqs[:length])
                k = k.repeat_interleave(2, dim=2)
                v = wv(h).view(1, length, 4, 16).repeat_interleave(2, dim=2)
                q, k, v = (t.transpose(1, 2) for t in (q, k, v))
                x = x + wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
                x = x + ffn(ffn_norm(x))
            tokens = torch.cat((tokens, head(norm(x))[0, -1:].argmax(dim=-1)))
    assert tokens[11:].tolist() == [241, 43, 37, 163, 174, 3, 232, 7]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_contiguous_cache_changes_no_token(shape: str) -> None:
    config = TransformerConfig(**SHAPES[shape])
    model = random_model(config, 1)
    for length in (1, 5, 40):
        prompt = [(7 * i + length) % config.vocab_size for i in range(length)]
        assert list(generate(model, prompt, 30)) == greedy(model, prompt, 30)


def test_rope_turns_pairs_by_position_and_attention_sees_only_distances() -> None:
    freqs = precompute_rope_frequencies(8, 64, 100.0)
    assert freqs.shape == (64, 4, 2)
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 3, 8)

    def score(at_q: int, at_k: int) -> torch.Tensor:
        return (apply_rope(q, q, freqs[[at_q]])[0] * apply_rope(k, k, freqs[[at_k]])[0]).sum(-1)

    torch.testing.assert_close(score(9, 4), score(50, 45))
    assert not torch.allclose(score(9, 4), score(9, 5))
    torch.testing.assert_close(apply_rope(q, k, freqs[[0]])[0], q)
    # Position 1 turns the first pair by one radian.
    unit = torch.zeros(1, 1, 1, 8)
    unit[..., 0] = 1.0
    turned = apply_rope(unit, unit, freqs[[1]])[0].flatten()
    torch.testing.assert_close(turned[:2], torch.tensor([1.0, 1.0]).mul(torch.tensor([0.5403023, 0.8414710])))
    with pytest.raises(ValueError, match="even"):
        precompute_rope_frequencies(7, 4)


def test_rope_takes_other_positions_for_each_row_of_a_batch() -> None:
    freqs = precompute_rope_frequencies(4, 32)
    q, k = torch.randn(2, 1, 2, 4), torch.randn(2, 1, 1, 4)
    positions = torch.tensor([[3], [17]])
    both = apply_rope(q, k, freqs[positions])
    for row, position in enumerate((3, 17)):
        alone = apply_rope(q[row : row + 1], k[row : row + 1], freqs[[position]])
        torch.testing.assert_close(both[0][row : row + 1], alone[0])
        torch.testing.assert_close(both[1][row : row + 1], alone[1])


def test_rmsnorm_divides_by_the_root_mean_square() -> None:
    norm = RMSNorm(3, eps=0.0)
    norm.weight.data = torch.tensor([1.0, 2.0, 0.5])
    x = torch.tensor([3.0, -4.0, 5.0])
    torch.testing.assert_close(norm(x), x / (50 / 3) ** 0.5 * norm.weight)
    assert norm.bfloat16()(x.bfloat16()).dtype == torch.bfloat16


def test_bfloat16_keeps_its_rotations_in_float32() -> None:
    model = random_model(TransformerConfig(**SHAPES["gqa"]), 0).bfloat16()
    assert model.rope_frequencies(torch.device("cpu")).dtype == torch.float32
    assert model(torch.tensor([[1, 2]])).dtype == torch.bfloat16


@pytest.mark.parametrize("shape", SHAPES)
def test_the_ideal_work_is_what_pytorch_counts(shape: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    config = TransformerConfig(**SHAPES[shape])
    model = random_model(config, 0)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 20, dtype=torch.int64))
    assert counter.get_total_flops() == 20 * token_pass_flops(config, 20)


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    logits = torch.tensor([[0.05, 0.5, 0.15, 0.3]]).log()

    def drawn(top_p: float, temperature: float = 1.0) -> set[int]:
        generator = torch.Generator().manual_seed(0)
        return set(sample_top_p(logits.expand(400, 4), temperature, top_p, generator).tolist())

    assert drawn(0.49) == {1}
    assert drawn(0.6) == {1, 3}
    assert drawn(0.81) == {1, 2, 3}
    assert drawn(1.0) == {0, 1, 2, 3}
    assert drawn(1.0, temperature=0.0) == {1}


def test_generation_stops_after_the_end_token_and_refuses_what_does_not_fit() -> None:
    config = TransformerConfig(**SHAPES["gqa"])
    model = random_model(config, 1)
    tokens = greedy(model, [5, 6], 20)
    end = tokens[6]
    assert list(generate(model, [5, 6], 20, eos_id=end)) == tokens[: tokens.index(end) + 1]
    for arguments, words in (
        (([], 3), "empty"),
        (([1], config.max_seq_len), "max_seq_len 96"),
    ):
        with pytest.raises(ValueError, match=words):
            next(generate(model, *arguments))
    with pytest.raises(ValueError, match="top_p"):
        next(generate(model, [1], 3, top_p=0.0))
    with pytest.raises(ValueError, match="97 tokens are more"):
        model(torch.zeros(1, 97, dtype=torch.int64))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_heads": 5}, "multiple of n_kv_heads"),
        ({"n_layers": 0}, "n_layers must be a positive integer, got 0"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"head_dim": None, "dim": 50}, "multiple of n_heads"),
        ({"eos_id": 97}, r"eos_id must be in \[0, 97\), got 97"),
        ({"dim": True}, "dim must be a positive integer"),
    ],
)
def test_a_shape_that_cannot_be_built_is_refused_by_name(change: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TransformerConfig(**(SHAPES["gqa"] | change))
