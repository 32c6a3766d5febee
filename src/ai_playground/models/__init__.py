"""A LLaMA-style decoder: configuration, layers and the whole model."""

from ai_playground.models.config import TransformerConfig, end_tokens
from ai_playground.models.transformer import Transformer

__all__ = ["Transformer", "TransformerConfig", "end_tokens"]
