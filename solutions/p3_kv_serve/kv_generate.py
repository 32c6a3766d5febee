"""p3: greedy decoding of the given GPT, by full recompute and through a KV cache, and nucleus sampling.

Brief: projects/p3_kv_serve/README.md. The model: projects/p3_kv_serve/given_model.py
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from projects.p3_kv_serve.given_model import GPT

### BEGIN SOLUTION


def check_request(model: GPT, prompt_ids: list[int], n_new: int) -> None:
    """Refuse what cannot be decoded, before any work is done."""
    config = model.config
    if not prompt_ids:
        raise ValueError("the prompt is empty; give at least one token id")
    if n_new < 0:
        raise ValueError(f"n_new must not be negative, got {n_new}")
    for position, token in enumerate(prompt_ids):
        if not 0 <= token < config.vocab_size:
            raise ValueError(f"token id {token} at position {position} is outside [0, {config.vocab_size})")
    if len(prompt_ids) + n_new > config.max_seq_len:
        raise ValueError(
            f"{len(prompt_ids)} prompt tokens + {n_new} new ones are more than max_seq_len ({config.max_seq_len})"
        )


Cache = list[tuple[Tensor, Tensor]]  # for each block the keys and values so far, (n_heads, context, head_dim) each


def decode(model: GPT, cache: Cache, new: list[int]) -> Tensor:
    """Run new tokens through the model; their keys and values are added to the cache.

    The first call takes the whole prompt, each later one a single token: nothing else differs.

    Returns:
        `(vocab_size)` logits after the last of the new tokens.
    """
    config = model.config
    past = cache[0][0].shape[1]
    positions = torch.arange(past, past + len(new))
    # A new token sees what is cached and, of the new ones, itself and those before it.
    hidden = torch.arange(past + len(new)) > positions[:, None]  # (T, context)
    x = model.token_embedding(torch.tensor(new)) + model.position_embedding(positions)  # (T, dim)
    for index, block in enumerate(model.blocks):
        h = block.ln_1(x)
        q, k, v = block.qkv(h).unflatten(-1, (3, config.n_heads, config.head_dim)).permute(1, 2, 0, 3)
        keys = torch.cat((cache[index][0], k), dim=1)  # (n_heads, context, head_dim)
        values = torch.cat((cache[index][1], v), dim=1)
        cache[index] = keys, values
        scores = q @ keys.transpose(1, 2) / math.sqrt(config.head_dim)  # (n_heads, T, context)
        mixed = scores.masked_fill(hidden, -math.inf).softmax(dim=-1) @ values  # (n_heads, T, head_dim)
        x = x + block.proj(mixed.transpose(0, 1).flatten(1))  # (T, dim)
        x = x + block.down(F.gelu(block.up(block.ln_2(x))))
    return model.head(model.ln_f(x[-1]))


### END SOLUTION


@torch.no_grad()
def generate_full(model: GPT, prompt_ids: list[int], n_new: int) -> list[int]:
    """Greedy decoding by full recompute: the whole sequence goes through `model` for every new token.

    Greedy takes the token with the largest logit, and the lowest id on a tie.

    Args:
        model: the given GPT, any sizes.
        prompt_ids: at least one token id, each in [0, vocab_size).
        n_new: how many tokens to add; 0 or more.

    Returns:
        A new list of plain ints: the prompt and then the `n_new` new ids.

    Raises:
        ValueError: before any work, with the numbers in the message: an empty prompt, a token id outside the
            vocabulary, a negative `n_new`, or `len(prompt_ids) + n_new` above `model.config.max_seq_len`.
    """
    ### BEGIN SOLUTION
    check_request(model, prompt_ids, n_new)
    tokens = list(prompt_ids)
    for _ in range(n_new):
        logits = model(torch.tensor([tokens]))  # (1, T, vocab_size)
        tokens.append(int(logits[0, -1].argmax()))
    return tokens
    ### END SOLUTION


@torch.no_grad()
def generate_cached(model: GPT, prompt_ids: list[int], n_new: int) -> list[int]:
    """The same tokens as `generate_full`, with every token going through the model once.

    The keys and values of all blocks are kept in a cache of your own. `model(...)`, the full forward pass, is
    called at most once, and the work stays within 1.25 times that of one pass over `len(prompt_ids) + n_new - 1`
    tokens, in floating-point operations as `torch.utils.flop_counter` counts them.

    Args, Returns, Raises: as `generate_full`.
    """
    ### BEGIN SOLUTION
    check_request(model, prompt_ids, n_new)
    config = model.config
    empty = torch.empty(config.n_heads, 0, config.head_dim)
    cache = [(empty, empty)] * config.n_layers
    tokens, done = list(prompt_ids), 0  # `done` of the tokens are in the cache
    for _ in range(n_new):
        logits = decode(model, cache, tokens[done:])
        done = len(tokens)
        tokens.append(int(logits.argmax()))
    return tokens
    ### END SOLUTION


def top_p_sample(logits: Tensor, p: float, generator: torch.Generator) -> int:
    """Draw one token by nucleus sampling (Holtzman et al., 2020, section 3.1).

    The nucleus is the smallest set of most likely tokens whose probability mass reaches `p` (that is, is at least
    `p`); it always holds the most likely token. The token is drawn from it with its probabilities renormalised.

    Args:
        logits: `(vocab_size)` float32, float16 or bfloat16; `-inf` means never. It is not changed.
        p: the mass, in (0, 1].
        generator: the only source of randomness: the same state gives the same token.

    Returns:
        A token id, as a plain int.

    Raises:
        ValueError: `p` outside (0, 1]; the message names it.
    """
    ### BEGIN SOLUTION
    if not 0 < p <= 1:
        raise ValueError(f"p must be in (0, 1], got {p}")
    probs, ids = logits.float().softmax(dim=-1).sort(descending=True)
    mass_before = probs.cumsum(dim=-1) - probs
    kept = probs.masked_fill(mass_before >= p, 0.0)  # the token that reaches p is kept
    choice = torch.multinomial(kept / kept.sum(), num_samples=1, generator=generator)
    return int(ids[choice])
    ### END SOLUTION
