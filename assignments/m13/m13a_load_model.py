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
    raise NotImplementedError("M13a: load_model is not written yet. Card: milestones/m13/m13a.md")
