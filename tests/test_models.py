"""The library's model: the chapter's figures, and the properties that the engine relies on."""

import copy
import io
import json
import math
import warnings

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
                q, k = apply_rope(wq(h).view(1, length, 8, 16), wk(h).view(1, length, 4, 16), freqs)
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
    assert (freqs.shape, freqs.dtype) == ((64, 4), torch.complex64)
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


def test_the_table_of_rotations_holds_what_its_docstring_says() -> None:
    """e^(i pos theta_j / factors_j) * scale, here for pos 1 and 3, theta_j = 1 and 0.01."""
    table = precompute_rope_frequencies(4, 8)
    torch.testing.assert_close(table[1].real, torch.tensor([math.cos(1.0), math.cos(0.01)]))
    torch.testing.assert_close(table[1].imag, torch.tensor([math.sin(1.0), math.sin(0.01)]))
    table = precompute_rope_frequencies(4, 8, factors=(2.0, 0.5), scale=1.5)
    torch.testing.assert_close(table[3].real, torch.tensor([math.cos(1.5), math.cos(0.06)]) * 1.5)
    torch.testing.assert_close(table[3].imag, torch.tensor([math.sin(1.5), math.sin(0.06)]) * 1.5)
    with pytest.raises(ValueError, match=r"2 pairs .* got 3"):
        precompute_rope_frequencies(4, 8, factors=(1.0, 1.0, 1.0))


def test_rope_takes_the_first_rows_of_a_table_and_rows_already_picked() -> None:
    torch.manual_seed(0)
    table = precompute_rope_frequencies(8, 64)
    q, k = torch.randn(2, 5, 3, 8), torch.randn(2, 5, 1, 8)
    expected = apply_rope(q, k, table[:5])
    for freqs in (table, table[:6], table[torch.arange(5).expand(2, -1)], table[None, :5]):
        for got, right in zip(apply_rope(q, k, freqs), expected, strict=True):
            torch.testing.assert_close(got, right)
    # As many rows as tokens: they are the tokens' own, wherever they come from.
    picked = torch.tensor([9, 2, 40, 2, 0])
    moved = apply_rope(q, k, table[picked])[0]
    for at, position in enumerate(picked):
        torch.testing.assert_close(
            moved[:, at : at + 1], apply_rope(q[:, at : at + 1], k, table[position][None, None])[0]
        )


@pytest.mark.parametrize(
    ("shape", "numbers"), [((4, 4), r"\(4, 4\).*5 tokens"), ((2, 6, 4), r"\(2, 6, 4\).*5 tokens"),
                           ((3, 5, 4), r"\(3, 5, 4\).*2 sequences")]
)  # fmt: skip
def test_rope_names_the_numbers_of_rows_that_do_not_fit(shape: tuple[int, ...], numbers: str) -> None:
    q, k = torch.randn(2, 5, 3, 8), torch.randn(2, 5, 1, 8)
    with pytest.raises(ValueError, match=numbers):
        apply_rope(q, k, torch.ones(shape, dtype=torch.complex64))


def test_rope_rotates_what_is_not_contiguous() -> None:
    table = precompute_rope_frequencies(8, 64)
    base = torch.randn(2, 5, 8, 3)
    q, k = base.transpose(2, 3), base[..., :1].transpose(2, 3)
    for got, right in zip(apply_rope(q, k, table), apply_rope(q.clone().contiguous(), k.clone(), table), strict=True):
        torch.testing.assert_close(got, right)


class WithATable(torch.nn.Module):
    """The table as a buffer, and single tokens rotated by hand, as the chapter's printed model has it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("freqs", precompute_rope_frequencies(8, 64))

    def rope_at(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.freqs[positions].unsqueeze(1)).flatten(-2).type_as(x)


@pytest.mark.parametrize(
    "move",
    [
        lambda model: model.to(torch.bfloat16),
        lambda model: model.to(device="cpu", dtype=torch.bfloat16),
        lambda model: model.bfloat16(),
        lambda model: copy.deepcopy(model).to("cpu", torch.bfloat16).float(),
    ],
    ids=["to", "to_both", "bfloat16", "copied"],
)
def test_a_table_in_a_buffer_keeps_its_sines_when_the_model_becomes_bfloat16(move) -> None:
    table = precompute_rope_frequencies(8, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns when it drops the sines
        model = move(WithATable())
    assert model.freqs.dtype == torch.complex64
    assert torch.equal(model.freqs, table)
    # A model moves more than once: to a precision, then to a device and back.
    assert model.to("meta").to(torch.float16).freqs.is_meta
    assert model.freqs.dtype == torch.complex64


def test_the_printed_way_of_rotating_is_the_librarys_also_in_bfloat16() -> None:
    torch.manual_seed(0)
    model = WithATable().to(torch.bfloat16)
    x = torch.randn(3, 2, 8).bfloat16()
    positions = torch.tensor([11, 23, 37])
    by_hand = model.rope_at(x, positions)
    assert by_hand.dtype == torch.bfloat16
    assert type(by_hand) is torch.Tensor
    torch.testing.assert_close(by_hand, apply_rope(x[None], x[None], model.freqs[positions])[0][0])
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    saved.seek(0)
    assert torch.equal(torch.load(saved)["freqs"], model.freqs)


def test_a_table_that_lost_its_sines_is_refused() -> None:
    q = torch.randn(1, 5, 2, 8)
    with pytest.raises(ValueError, match=r"complex.*got torch\.float32"):
        apply_rope(q, q, precompute_rope_frequencies(8, 64).real)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_factors": [1.0] * 5}, "6 pairs of a head .*got 5"),
        ({"rope_factors": [1.0] * 5 + [0.0]}, r"rope_factors\[5\].*got 0.0"),
        ({"rope_factors": [math.nan] * 6}, r"rope_factors\[0\].*got nan"),
        ({"rope_factors": [math.inf] * 6}, r"rope_factors\[0\].*got inf"),
        ({"rope_factors": [True] * 6}, r"rope_factors\[0\].*got True"),
        ({"rope_factors": 8.0}, "list of numbers, got 8.0"),
        ({"rope_scale": -1.0}, "rope_scale.*got -1.0"),
        ({"rope_scale": "1"}, "rope_scale.*got '1'"),
    ],
)
def test_rope_factors_that_cannot_divide_are_refused(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TransformerConfig.from_dict(SHAPES["gqa"] | changes)


def test_rope_factors_are_part_of_the_models_shape() -> None:
    config = TransformerConfig.from_dict(
        SHAPES["gqa"] | {"rope_factors": [1, 2.0, 4.0, 8.0, 8.0, 8.0], "rope_scale": 1.2}
    )
    assert config == TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert config.to_dict() == json.loads(json.dumps(config.to_dict()))
    model = random_model(config, 1)
    table = precompute_rope_frequencies(
        config.head_dim, config.max_seq_len, config.rope_theta, factors=config.rope_factors, scale=1.2
    )
    assert torch.equal(model.rope_frequencies(torch.device("cpu")), table)
    plain = Transformer(TransformerConfig.from_dict(SHAPES["gqa"])).eval()
    plain.load_state_dict(model.state_dict())
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    assert not torch.allclose(model(tokens), plain(tokens))
    plain._freqs = table
    torch.testing.assert_close(model(tokens), plain(tokens))


def test_rmsnorm_divides_by_the_root_mean_square() -> None:
    norm = RMSNorm(3, eps=0.0)
    norm.weight.data = torch.tensor([1.0, 2.0, 0.5])
    x = torch.tensor([3.0, -4.0, 5.0])
    torch.testing.assert_close(norm(x), x / (50 / 3) ** 0.5 * norm.weight)
    assert norm.bfloat16()(x.bfloat16()).dtype == torch.bfloat16


def test_bfloat16_keeps_its_rotations_in_float32() -> None:
    model = random_model(TransformerConfig(**SHAPES["gqa"]), 0)
    before = model.rope_frequencies(torch.device("cpu")).clone()
    model.to(torch.bfloat16)
    assert torch.equal(model.rope_frequencies(torch.device("cpu")), before)
    assert before.dtype == torch.complex64
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
    other = next(token for token in range(97) if token not in tokens)
    assert list(generate(model, [5, 6], 20, eos_id=(other, end))) == tokens[: tokens.index(end) + 1]
    assert greedy(model, [5, 6], 20, (other, end)) == tokens[: tokens.index(end) + 1]
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
        ({"eos_id": (3, 97)}, r"eos_id must be in \[0, 97\), got 97"),
        ({"eos_id": ("</s>",)}, r"eos_id must be in \[0, 97\), got '</s>'"),
        ({"eos_id": ()}, "at least one token id"),
        ({"qkv_bias": 1}, "qkv_bias must be true or false"),
        ({"dim": True}, "dim must be a positive integer"),
    ],
)
def test_a_shape_that_cannot_be_built_is_refused_by_name(change: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TransformerConfig(**(SHAPES["gqa"] | change))


@pytest.mark.parametrize(("change", "names"), [({"qkv_bias": True}, ["bias"]), ({"qk_norm": True}, ["norm.weight"])])
def test_what_a_neighbour_of_llama_has_more_is_inside_its_projections(change: dict, names: list[str]) -> None:
    """So that an engine that calls `wq`, `wk` and `wv` need not know it."""
    plain = set(random_model(TransformerConfig(**SHAPES["gqa"]), 1).state_dict())
    model = random_model(TransformerConfig(**SHAPES["gqa"], **change), 1)
    more = set(model.state_dict()) - plain
    assert plain < set(model.state_dict())
    inside = ("wq", "wk", "wv") if "qkv_bias" in change else ("wq", "wk")
    assert more == {f"layers.{i}.attn.{w}.{n}" for i in range(model.config.n_layers) for w in inside for n in names}
    tokens = torch.tensor([[5, 6, 7]])
    before = model(tokens)
    for name in more:
        model.state_dict()[name].mul_(3.0)
    assert not torch.allclose(model(tokens), before), "they are used"
    assert TransformerConfig.from_dict(model.config.to_dict()) == model.config


def test_several_end_tokens_survive_the_configurations_json() -> None:
    config = TransformerConfig(**SHAPES["gqa"], eos_id=[3, 5])
    assert config.eos_id == (3, 5)
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_rope_without_a_batch_is_one_sequence() -> None:
    """An engine that keeps its tokens in one flat line has no batch axis."""
    table = precompute_rope_frequencies(8, 20)
    q, k = torch.randn(5, 4, 8), torch.randn(5, 2, 8)
    picked = torch.tensor([3, 0, 7, 7, 19])
    for freqs in (table, table[picked]):
        flat, batched = apply_rope(q, k, freqs), apply_rope(q[None], k[None], freqs)
        assert all(torch.equal(a, b[0]) for a, b in zip(flat, batched, strict=True))
    with pytest.raises(ValueError, match="at least 5 rows"):
        apply_rope(q, k, table[:4])
