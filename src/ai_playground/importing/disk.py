"""What could be imported on this machine: models inside installed packages, and in other programs' usual folders."""

import importlib.metadata
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path


def models_on_disk() -> Iterator[tuple[str, str, str]]:
    """Whose it is, its name, and what `read_model` takes, of every model that is found. Nothing is opened."""
    yield from _in_packages()
    yield from _hub_cache()
    for folder in (Path.home() / ".lmstudio" / "models", Path.home() / ".cache" / "lm-studio" / "models"):
        yield from _ggufs("LM Studio", folder)
    yield from _ollama()
    for folder in _llama_cpp_caches():
        yield from _ggufs("llama.cpp", folder)


def _in_packages() -> Iterator[tuple[str, str, str]]:
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or ():
            if file.suffix.lower() == ".gguf":
                yield f"package {distribution.metadata['Name']}", file.name, str(distribution.locate_file(file))


def _hub_cache() -> Iterator[tuple[str, str, str]]:
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    for folder in sorted(cache.glob("models--*")):
        yield "Hugging Face", folder.name.removeprefix("models--").replace("--", "/"), str(folder)


def _ggufs(owner: str, folder: Path) -> Iterator[tuple[str, str, str]]:
    for file in sorted(folder.rglob("*")):
        later_part = "-of-" in file.name and "-00001-of-" not in file.name
        if file.suffix.lower() == ".gguf" and not later_part:
            yield owner, str(file.relative_to(folder)), str(file)


def _ollama() -> Iterator[tuple[str, str, str]]:
    """Ollama keeps files by their digest; a manifest says which of them are the weights of which model."""
    folder = Path(os.environ.get("OLLAMA_MODELS", Path.home() / ".ollama" / "models"))
    for manifest in sorted((folder / "manifests").rglob("*")):
        try:
            layers = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
            digests = [layer["digest"] for layer in layers if layer["mediaType"].endswith("image.model")]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # a folder, or not a manifest
        for digest in digests:
            blob = folder / "blobs" / Path(str(digest).replace(":", "-")).name
            if blob.is_file():
                yield "Ollama", ":".join(manifest.parts[-2:]), str(blob)


def _llama_cpp_caches() -> list[Path]:
    if "LLAMA_CACHE" in os.environ:
        return [Path(os.environ["LLAMA_CACHE"])]
    if sys.platform == "darwin":
        return [Path.home() / "Library" / "Caches" / "llama.cpp"]
    if sys.platform == "win32":
        return [Path(os.environ.get("LOCALAPPDATA", Path.home())) / "llama.cpp"]
    return [Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "llama.cpp"]
