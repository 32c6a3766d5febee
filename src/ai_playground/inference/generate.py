"""Generation with a contiguous KV cache, one slab for each sequence.

The slab is reserved for `prompt + max_new` tokens before the first one is made. That is what M13 replaces.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ai_playground.models import Transformer, TransformerConfig, end_tokens


class KVCache:
    """The keys and values of one batch: two slabs a layer, `(B, max_len, n_kv_heads, head_dim)` each."""

    def __init__(
        self, config: TransformerConfig, batch: int, max_len: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (batch, max_len, config.n_kv_heads, config.head_dim)
        self.slabs = [
            (torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))
            for _ in range(config.n_layers)
        ]
        self.length = 0

    def grow(self, new: int) -> list[tuple[Tensor, Tensor]]:
        """Views of every layer's slabs up to `new` more tokens: what `Transformer.forward` takes as `cache`.

        Raises:
            ValueError: the slab is full.
        """
        capacity = self.slabs[0][0].shape[1]
        if self.length + new > capacity:
            raise ValueError(f"the cache holds {capacity} tokens; {self.length} + {new} do not fit")
        self.length += new
        return [(k[:, : self.length], v[:, : self.length]) for k, v in self.slabs]


def sample_top_p(logits: Tensor, temperature: float, top_p: float, generator: torch.Generator | None) -> Tensor:
    """One token a row by nucleus sampling (Holtzman et al., 2020); temperature 0 is greedy.

    Args:
        logits: `(B, vocab_size)`, any float dtype.
        temperature: 0 takes the argmax (the first on a tie); above 0 divides the logits.
        top_p: keep the smallest set of most likely tokens whose probability reaches `top_p`.
        generator: the source of randomness; None is torch's default one.

    Returns:
        `(B,)` int64 token ids.
    """
    if temperature == 0:
        return logits.argmax(dim=-1)
    probs = torch.softmax(logits.float() / temperature, dim=-1)
    sorted_probs, sorted_ids = probs.sort(dim=-1, descending=True, stable=True)
    mass_before = sorted_probs.cumsum(dim=-1) - sorted_probs
    # A token is kept while the mass before it is short of top_p, so the one that crosses it is kept too.
    kept = sorted_probs.masked_fill(mass_before >= top_p, 0.0)
    choice = torch.multinomial(kept, num_samples=1, generator=generator)  # (B, 1), an index into the order
    return sorted_ids.gather(-1, choice).squeeze(-1)


def generate(
    model: Transformer,
    prompt_ids: list[int],
    max_new: int,
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    eos_id: int | tuple[int, ...] | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[int]:
    """Yield up to `max_new` new token ids, one as soon as it is known; stops after `eos_id`, or one of several.

    The first forward pass takes the whole prompt (prefill), each later one a single token (decode).

    Raises:
        ValueError: an empty prompt, prompt + max_new beyond `max_seq_len`, a negative temperature or a
            `top_p` outside (0, 1]. Raised on the first `next()`.
    """
    config = model.config
    if not prompt_ids:
        raise ValueError("the prompt is empty: give at least one token id")
    if len(prompt_ids) + max_new > config.max_seq_len:
        raise ValueError(
            f"{len(prompt_ids)} prompt tokens + {max_new} new ones exceed max_seq_len {config.max_seq_len}"
        )
    if temperature < 0 or not 0 < top_p <= 1:
        raise ValueError(f"temperature must be >= 0 and top_p in (0, 1]; got {temperature} and {top_p}")
    weight = model.embedding.weight
    cache = KVCache(config, 1, len(prompt_ids) + max_new, weight.dtype, weight.device)
    tokens = torch.tensor([prompt_ids], device=weight.device)  # (1, prompt), then (1, 1)
    for _ in range(max_new):
        with torch.no_grad():  # not around the yield: the caller's own code must keep its gradients
            logits = model(tokens, cache=cache.grow(tokens.shape[1]))[:, -1]  # (1, vocab_size)
            tokens = sample_top_p(logits, temperature, top_p, generator).unsqueeze(-1)
        token = int(tokens)
        yield token
        if token in end_tokens(eos_id):
            return
