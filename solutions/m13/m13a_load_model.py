"""M13a: from the files of a workspace to a model that is ready to serve.

Card: milestones/m13/m13a.md
"""

from pathlib import Path

from torch import nn

from ai_playground.models import Transformer
from ai_playground.workspace import load_checkpoint


def load_model(ws: Path) -> nn.Module:
    """The trained model of a workspace, ready for inference.

    `ai_playground.workspace.load_checkpoint(ws)` reads the files and refuses damaged ones. What is left to do:
    build the `Transformer` of that shape, give it every tensor of the checkpoint, and switch off what only
    training needs.

    Args:
        ws: the workspace folder, such as `checkpoints/myllm`.

    Returns:
        A module in eval mode, no parameter of which asks for a gradient, with the `TransformerConfig` as
        `.config`; `model(tokens)` takes int64 `(B, T)` and returns float `(B, T, vocab_size)`.

    Raises:
        ValueError: a tensor that is missing, unexpected or of the wrong shape; the message names each of them.
    """
    ### BEGIN SOLUTION
    checkpoint = load_checkpoint(ws)
    model = Transformer(checkpoint["config"])
    found, expected = checkpoint["model"], model.state_dict()
    problems = [f"{name} is missing" for name in expected if name not in found]
    problems += [f"{name} is unexpected" for name in found if name not in expected]
    problems += [
        f"{name} has shape {tuple(found[name].shape)}, the configuration asks for {tuple(expected[name].shape)}"
        for name in expected
        if name in found and found[name].shape != expected[name].shape
    ]
    if problems:
        raise ValueError(f"{ws / 'final.pt'} does not match its configuration: {'; '.join(problems)}")
    model.load_state_dict(found)
    return model.eval().requires_grad_(False)
    ### END SOLUTION
