"""The fast runner gives the reference's tokens, for every kind of attention, dtype and block size, and preempts too."""

import sys
import warnings

import pytest
import torch

from ai_playground.checkout import repo_root
from ai_playground.models import TransformerConfig
from checking.reference import TIE_TOLERANCE, first_divergence, random_model
from checking.seed import ids
from checking.shapes import SHAPES, TOY
from milestones.subjects import M13

BFLOAT16_TOLERANCE = 0.25  # each token's logit against the reference's best, along the engine's own tokens
ODD = SHAPES["gqa"] | {"dim": 45, "hidden_dim": 83, "head_dim": 10, "vocab_size": 70}  # no multiple of anything
WIDE = SHAPES["gqa"] | {"n_heads": 14, "n_kv_heads": 2, "head_dim": 36}  # a group larger than four, a head above 32
STRETCHED = SHAPES["gqa"] | {"rope_factors": [1.0, 1.0, 2.5, 8.0, 8.0, 8.0], "rope_scale": 1.2}
LONG = SHAPES["gqa"] | {"max_seq_len": 700}


@pytest.fixture(scope="module")
def modules():
    """The reference's `m13c_serve` module and `fast`, where its C++ part can be built."""
    assert M13.engine(repo_root() / "solutions" / "m13").serve
    import fast

    try:
        fast.library()
    except fast.NotBuilt as problem:
        pytest.skip(str(problem))
    return sys.modules["m13c_serve"], fast


def serve(m13c, model, make_runner, requests, num_blocks, **sizes):
    sequences = [m13c.Sequence(index, list(prompt), new) for index, (prompt, new) in enumerate(requests)]
    engine = m13c.Engine(model, sequences, num_blocks, make_runner=make_runner, **sizes)
    while engine.waiting or engine.running:
        engine.step()
    return [seq.output for seq in sequences], engine.preemptions


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("block_size", [1, 5, 16, 32])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shape", [*SHAPES.values(), TOY, ODD, WIDE, TOY | {"tie_embeddings": True}, STRETCHED],
    ids=[*SHAPES, "toy", "odd", "wide_group", "toy_tied", "stretched"],
)  # fmt: skip
def test_tokens_are_the_references(modules, monkeypatch, shape, dtype, block_size, threads) -> None:
    m13c, fast = modules
    monkeypatch.setattr(fast, "SMALL", 0)  # two threads even for these
    model = random_model(TransformerConfig.from_dict(shape), 7).to(getattr(torch, dtype))
    requests = [(ids(length, model.config.vocab_size, length), 6 + length % 11) for length in (1, 16, 23, 7, 31, 40)]
    largest = max(-(-(len(prompt) + new) // block_size) for prompt, new in requests)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        outputs, preemptions = serve(
            m13c, model, fast.fast_runner(model), requests, int(1.7 * largest), block_size=block_size
        )
    finally:
        torch.set_num_threads(before)
    assert preemptions > 0
    tolerance = TIE_TOLERANCE if dtype == "float32" else BFLOAT16_TOLERANCE
    for (prompt, new), output in zip(requests, outputs, strict=True):
        assert len(output) == new
        assert first_divergence(model, prompt, output, tolerance) is None


def test_a_prompt_longer_than_one_call_and_a_long_context(modules) -> None:
    m13c, fast = modules
    model = random_model(TransformerConfig.from_dict(LONG), 3)
    requests = [(ids(fast.ROWS + 100, 97, 1), 20), (ids(30, 97, 2), 20)]
    outputs, _ = serve(m13c, model, fast.fast_runner(model), requests, 60)
    for (prompt, _), output in zip(requests, outputs, strict=True):
        assert first_divergence(model, prompt, output) is None


def test_weights_are_only_read(modules) -> None:
    m13c, fast = modules
    model = random_model(TransformerConfig.from_dict(SHAPES["tied"]), 3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    serve(m13c, model, fast.fast_runner(model), [([1, 2, 3], 4)], 4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_where_it_cannot_be_built_the_readable_runner_serves_and_says_so(modules, monkeypatch) -> None:
    m13c, fast = modules

    def broken() -> None:
        raise fast.NotBuilt("no compiler")

    monkeypatch.setattr(fast, "library", broken)
    model = random_model(TransformerConfig.from_dict(SHAPES["gqa"]), 3)
    with pytest.warns(UserWarning, match="plain PyTorch runner is used: no compiler"):
        make_runner = fast.fast_runner(model)
    assert make_runner is m13c.ModelRunner


def test_another_dtype_is_left_to_the_readable_runner(modules) -> None:
    m13c, fast = modules
    model = random_model(TransformerConfig.from_dict(SHAPES["gqa"]), 3).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert fast.fast_runner(model) is m13c.ModelRunner
