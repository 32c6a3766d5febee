"""Chat templates, rendered by transformers' own code, so that a model reads what it was tuned on."""

import importlib
import json
from pathlib import Path
from typing import Any

from ai_playground.importing.refusals import ImportRefused, extra, read_json
from ai_playground.workspace import load_tokenizer

TEMPLATE, TOKENS = "chat_template.jinja", "special_tokens.json"  # files of a workspace


def chat_prompt(ws: Path, question: str) -> str:
    """The text that makes a workspace's instruction-tuned model answer a question, special tokens included.

    Raises:
        ImportRefused: the model has no chat template, or the template refuses such a conversation.
    """
    path = ws / TEMPLATE
    if not path.is_file():
        raise ImportRefused(f"{ws} has no {TEMPLATE}: its model was not tuned to answer questions")
    tokens = read_json(ws / TOKENS) if (ws / TOKENS).is_file() else {}
    return render(path.read_text(encoding="utf-8"), tokens, [{"role": "user", "content": question}], path)


def chat_ids(ws: Path, question: str) -> list[int]:
    """`chat_prompt` as token ids. The template writes the beginning's token itself, so none is added."""
    return load_tokenizer(ws).encode_as_written(chat_prompt(ws, question))


def render(template: str, tokens: dict[str, str], messages: list[dict[str, str]], path: Path) -> str:
    """A conversation as text that ends where the model's answer begins.

    Args:
        template: Jinja, from whoever made the model; it runs in transformers' sandbox.
        tokens: what it may call by name: `bos_token`, `eos_token` and so on.
        messages: `{"role": ..., "content": ...}` each.
        path: where the template is from, for the message.
    """
    extra("transformers")
    module = importlib.import_module("transformers.utils.chat_template_utils")
    try:
        texts, _ = module.render_jinja_template(
            [messages], chat_template=template, add_generation_prompt=True, **tokens
        )
    except Exception as error:  # a template can raise anything
        raise ImportRefused(f"{path} cannot be rendered: {type(error).__name__}: {error}") from None
    return texts[0]


def one_template(value: Any, path: Path) -> str | None:
    """The template for plain conversations: the only one, or of several named ones `default`."""
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        if "default" not in named:
            raise ImportRefused(f"{path}: expected a chat template called default, found {json.dumps(list(named))}")
        value = named["default"]
    if value is not None and not isinstance(value, str):
        raise ImportRefused(f"{path}: expected a chat template as text, found {type(value).__name__}")
    return value
