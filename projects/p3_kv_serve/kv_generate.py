"""p3: greedy decoding of the given GPT, by full recompute and through a KV cache, and nucleus sampling.

Brief: projects/p3_kv_serve/README.md. The model: projects/p3_kv_serve/given_model.py
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from projects.p3_kv_serve.given_model import GPT

# Helpers of your own can go here.


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
    raise NotImplementedError("p3: generate_full is not written yet. Card: projects/p3_kv_serve/README.md")


@torch.no_grad()
def generate_cached(model: GPT, prompt_ids: list[int], n_new: int) -> list[int]:
    """The same tokens as `generate_full`, with every token going through the model once.

    The keys and values of all blocks are kept in a cache of your own. `model(...)`, the full forward pass, is
    called at most once, and the work stays within 1.25 times that of one pass over `len(prompt_ids) + n_new - 1`
    tokens, in floating-point operations as `torch.utils.flop_counter` counts them.

    Args, Returns, Raises: as `generate_full`.
    """
    raise NotImplementedError("p3: generate_cached is not written yet. Card: projects/p3_kv_serve/README.md")


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
    raise NotImplementedError("p3: top_p_sample is not written yet. Card: projects/p3_kv_serve/README.md")
