"""Files that nobody vouches for: damaged, cut short, or made to mislead. Each is refused in one sentence."""

import json
import random
import struct
import time
import tracemalloc
from pathlib import Path

import pytest

from ai_playground.importing import ImportRefused, import_model, read_model
from ai_playground.importing.gguf_file import read_gguf
from ai_playground.importing.safetensors_file import read_safetensors
from ai_playground.tokenizer import Tokenizer
from tests.made_models import TEXTS, gguf_file, hugging_face_folder, model

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n"
F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def small(**changes):
    return model(vocab_size=Tokenizer.train(TEXTS, 280).vocab_size, **changes)


def refused(path: Path, ws: Path) -> str:
    with pytest.raises(ImportRefused) as error:
        import_model(str(path), ws)
    assert not ws.exists(), "nothing is written"
    assert not list(ws.parent.glob("*.partial"))
    return str(error.value)


@pytest.mark.parametrize("name", ["model-0.safetensors", "tokenizer.json", "config.json", "tokenizer_config.json"])
def test_a_git_lfs_pointer_is_named(tmp_path: Path, name: str) -> None:
    folder = hugging_face_folder(tmp_path, model())
    (folder / name).write_bytes(POINTER)
    assert f"{name} is a Git LFS pointer: run `git lfs pull`" in refused(folder, tmp_path / "ws")
    (tmp_path / "m.gguf").write_bytes(POINTER)
    assert "m.gguf is a Git LFS pointer" in refused(tmp_path / "m.gguf", tmp_path / "ws")


@pytest.mark.parametrize("kept", [0.02, 0.5, 0.999])
def test_a_file_cut_short_says_how_long_it_should_be(tmp_path: Path, kept: float) -> None:
    folder = hugging_face_folder(tmp_path, model())
    for path in (folder / "model-1.safetensors", gguf_file(tmp_path / "m.gguf", small())):
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * kept)])
        message = refused(path if path.suffix == ".gguf" else folder, tmp_path / "ws")
        assert f"is {int(len(whole) * kept):,} bytes, its header promises" in message and "download it again" in message


def header(entries: object, data: int = 64) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a safetensors file"),
        ((2**63).to_bytes(8, "little") + b"{}", "header would be 9,223,372,036,854,775,808 bytes"),
        (header([1]), "expected an object"),
        (header(b"[" * 100_000), "is not a safetensors file"),
        (header(b'{"a": {}, "a": {}}'), "'a' comes twice"),
        (header({"a": F32 | {"shape": [2**40, 2**40]}}), "does not fill"),
        (header({"a": F32 | {"shape": [-2, -1]}}), "not lists of numbers from 0 on"),
        (header({"a": F32 | {"shape": [1e9]}}), "not lists of numbers from 0 on"),
        (header({"a": F32 | {"data_offsets": [2**62, 2**62 + 8]}}), "header promises 4,611,686,018,427,"),
        (header({"a": F32, "b": F32 | {"data_offsets": [4, 12]}}), "the bytes of b overlap"),
        (header({"a": F32 | {"dtype": "F8_E4M3"}}), "has the dtype F8_E4M3"),
        (header({"a": F32 | {"dtype": ["F32"]}}), "has the dtype"),
        (header({"a": None}), "has no dtype"),
    ],
)
def test_a_safetensors_header_that_lies_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(ImportRefused, match=words):
        read_safetensors(tmp_path / "m.safetensors")


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def gguf_bytes(fields: list[bytes], tensors: list[bytes], counts: tuple[int, int] | None = None) -> bytes:
    counts = counts or (len(tensors), len(fields))
    return b"GGUF" + struct.pack("<IQQ", 3, *counts) + b"".join(fields) + b"".join(tensors) + bytes(64)


def tensor(name: bytes = b"t", shape: tuple[int, ...] = (2,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"GGUF", "header promises"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "of version 2 or 3"),
        (gguf_bytes([], [], (2**61, 0)), "header promises 2,305,843,009,213,693,952 entries"),
        (gguf_bytes([], [], (0, 10**9)), "header promises 1,000,000,000 entries"),
        (gguf_bytes([struct.pack("<Q", 2**63)], []), "or more: download it again"),
        (gguf_bytes([string(b"a") + struct.pack("<IIQ", 9, 4, 2**62)], []), "entries of 4 bytes"),
        (gguf_bytes([string(b"a") + struct.pack("<IIQ", 9, 9, 1) * 50], []), "an array of arrays"),
        (gguf_bytes([string(b"a") + struct.pack("<I", 99)], []), "of the kind 99"),
        (gguf_bytes([string(b"a") + struct.pack("<IB", 0, 1)] * 2, []), "'a' comes twice"),
        (gguf_bytes([string(b"general.alignment") + struct.pack("<II", 4, 0)], []), "general.alignment is 0"),
        (gguf_bytes([], [tensor(), tensor()]), "'t' comes twice"),
        (gguf_bytes([], [tensor(shape=(2**63, 2))]), "more than the file can hold"),
        (gguf_bytes([], [tensor(shape=(0,))]), "more than the file can hold"),
        (gguf_bytes([], [tensor(offset=2**62)]), "header promises"),
        (gguf_bytes([], [tensor(), tensor(b"u", offset=4)]), "the bytes of u overlap"),
        (gguf_bytes([], [tensor(kind=4)]), "number 4"),
        (gguf_bytes([], [tensor(kind=24)]), "cannot be dequantised"),
        (gguf_bytes([], [tensor(kind=8, shape=(31,))]), "which Q8_0 cannot store"),
        (gguf_bytes([], [string(b"t") + struct.pack("<I", 2**31)]), "axes"),
    ],
)
def test_a_gguf_header_that_lies_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ImportRefused, match=words):
        read_gguf(tmp_path / "m.gguf")


def test_all_parts_of_a_split_gguf_are_read_and_a_missing_one_is_named(tmp_path: Path) -> None:
    whole = gguf_file(tmp_path / "m.gguf", small())
    fields, tensors = read_gguf(whole)
    first = gguf_file(tmp_path / "s-00001-of-00002.gguf", small(), keep=lambda name: "blk.1" not in name)
    with pytest.raises(ImportRefused, match=r"one of 2 parts; missing beside it: s-00002-of-00002\.gguf"):
        read_gguf(first)
    second = gguf_file(tmp_path / "s-00002-of-00002.gguf", small(), keep=lambda name: "blk.1" in name)
    for part in (first, second):
        assert set(read_gguf(part)[1]) == set(tensors) and read_gguf(part)[0] == fields
        assert read_model(str(part)).config.n_layers == 2


def test_the_hub_caches_outer_folder_and_a_folder_with_one_gguf(tmp_path: Path) -> None:
    outer = tmp_path / "models--org--name"
    with pytest.raises(ImportRefused, match="not a model's folder"):
        outer.mkdir()
        read_model(str(outer))
    for name in ("old", "new"):
        (outer / "snapshots" / name).mkdir(parents=True)
        hugging_face_folder(outer / "snapshots" / name, model())
    (outer / "refs").mkdir()
    (outer / "refs" / "main").write_text("old")
    assert read_model(str(outer)).path == outer / "snapshots" / "old"
    (tmp_path / "one").mkdir()
    path = gguf_file(tmp_path / "one" / "m.GGUF", small())
    assert read_model(str(tmp_path / "one")).path == path
    gguf_file(tmp_path / "one" / "n.gguf", small())
    with pytest.raises(ImportRefused, match=r"several models: m\.GGUF, n\.gguf; name one"):
        read_model(str(tmp_path / "one"))


def test_a_stopped_import_leaves_what_was_there(tmp_path: Path) -> None:
    folder = hugging_face_folder(tmp_path, model())
    import_model(str(folder), tmp_path / "ws")
    before = {path.name: path.read_bytes() for path in (tmp_path / "ws").iterdir()}

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_model(str(folder), tmp_path / "ws", stop)
    assert {path.name: path.read_bytes() for path in (tmp_path / "ws").iterdir()} == before
    assert not list(tmp_path.glob("*.partial"))


def mutated(content: bytes, rng: random.Random, upto: int) -> bytes:
    """A valid file with up to eight changes, most of them in its header."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(min(upto, len(changed)))
        match rng.randrange(5):
            case 0:
                changed[at] = rng.randrange(256)
            case 1:
                changed[at : at + 8] = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**32, 2**61, 2**63, 2**64 - 1)))
            case 2:
                del changed[at : at + rng.randint(1, 40)]
            case 3:
                changed[at:at] = changed[at : at + rng.randint(1, 40)]
            case 4:
                changed = changed[: max(at, 4)]
        if not changed:
            break
    return bytes(changed)


def fuzz(tmp_path: Path, seconds: float, least: int, seed: int) -> None:
    rng = random.Random(seed)
    folder = hugging_face_folder(tmp_path, model())
    valid = {
        ".gguf": gguf_file(tmp_path / "v.gguf", small()).read_bytes(),
        ".safetensors": (folder / "model-0.safetensors").read_bytes(),
    }
    end, tried, refusals = time.monotonic() + seconds, 0, 0
    tracemalloc.start()
    while tried < least or time.monotonic() < end:
        suffix = rng.choice(list(valid))
        path = tmp_path / f"fuzzed{suffix}"
        path.write_bytes(content := mutated(valid[suffix], rng, rng.choice((200, 4000, 10**9))))
        tracemalloc.reset_peak()
        before, began = tracemalloc.get_traced_memory()[0], time.monotonic()
        try:
            read_model(str(path)) if suffix == ".gguf" else read_safetensors(path)
        except ImportRefused:
            refusals += 1
        except Exception as error:
            raise AssertionError(f"{error!r} for {suffix} of {len(content)} bytes, seed {seed}, try {tried}") from error
        assert tracemalloc.get_traced_memory()[1] - before < 64 * len(content) + 2**24, "memory by what is claimed"
        assert time.monotonic() - began < 20
        tried += 1
    tracemalloc.stop()
    assert 0.3 * tried < refusals


def test_no_change_to_a_file_crashes_a_reader(tmp_path: Path) -> None:
    fuzz(tmp_path, 0, 250, 1)


@pytest.mark.slow
def test_two_minutes_of_changes_crash_no_reader(tmp_path: Path) -> None:
    fuzz(tmp_path, 120, 250, 2)
