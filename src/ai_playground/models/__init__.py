"""A LLaMA-style decoder: configuration, layers and the whole model."""

from ai_playground.models.config import TransformerConfig
from ai_playground.models.transformer import Transformer

__all__ = ["Transformer", "TransformerConfig"]
