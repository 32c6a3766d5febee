"""Turning a local LLaMA-like model into a workspace: a Hugging Face folder or a GGUF file.

What cannot be served exactly is refused by name. Nothing is downloaded. Needs the extra `import`
(`uv sync --extra import`). docs/models.md says what is served, what is refused and why. To read it, in this order:

    refusals.py         how a model is refused, and what is looked at before a file is believed
    locate.py           what a user may point at, and which files that means
    safetensors_file.py, gguf_file.py
                        headers of files that nobody vouches for, and one tensor at a time
    families.py         which tensors each family has, and under which names
    rope_scaling.py     how models are stretched: factors of RoPE's frequencies
    vocabularies.py     tokenizers from GGUF and from SentencePiece
    hf_folder.py, gguf_model.py
                        a whole model of each layout, as a `Source`
    source.py           what was read, and writing it as a workspace, tensor by tensor
    reading.py          from what a user points at to a workspace
    chat.py             chat templates
    disk.py             what could be imported on this machine
"""

from ai_playground.importing.chat import chat_ids, chat_prompt
from ai_playground.importing.disk import models_on_disk
from ai_playground.importing.reading import import_model, read_model
from ai_playground.importing.refusals import ImportRefused
from ai_playground.importing.source import Source, write_workspace

__all__ = [
    "ImportRefused",
    "Source",
    "chat_ids",
    "chat_prompt",
    "import_model",
    "models_on_disk",
    "read_model",
    "write_workspace",
]
