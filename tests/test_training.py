"""M7: the stories and their splits, the optimiser, and a trainer that reproduces, resumes and refuses what is wrong."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from ai_playground.checkout import repo_root
from ai_playground.models import Transformer
from ai_playground.prompts import FINALE_PROMPTS
from ai_playground.tokenizer import BOS, EOS, Tokenizer
from ai_playground.training import corpus
from ai_playground.training.muon import Muon, orthogonalise
from ai_playground.training.tales import BOYS, GIRLS, TALES
from ai_playground.training.trainer import (
    DEFAULT,
    QUICK,
    STATE,
    Run,
    Settings,
    TrainingError,
    Windows,
    file_texts,
    repeated_names,
    story_texts,
    train,
)
from ai_playground.workspace import load_checkpoint, load_tokenizer, read_metrics
from course.cli import app

TINY = Settings(
    steps=12,
    tokens_per_step=128,
    windows=((0.5, 16), (0.5, 64)),
    stories=60,
    heldout_stories=12,
    warmup=2,
    vocab_size=300,
    dim=16,
    n_layers=2,
    n_heads=2,
    n_kv_heads=1,
    hidden_dim=32,
    max_seq_len=64,
)
QUIET = Console(quiet=True)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """For models this small a second thread costs more than it brings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# The corpus


@pytest.fixture(scope="module")
def train_stories() -> list[corpus.Story]:
    return corpus.stories(2_000, "train")


@pytest.fixture(scope="module")
def heldout_stories() -> list[corpus.Story]:
    return corpus.stories(400, "heldout")


def test_there_are_thousands_of_plots_and_stories_seldom_share_one(train_stories: list[corpus.Story]) -> None:
    assert corpus.count_plots() > 20_000
    told = [s.plots[0] for s in train_stories]
    assert len(set(told)) > 1_700
    assert {plot.split(":")[0] for plot in told} == set(TALES), "every tale is told"


def test_no_plot_and_no_story_of_the_held_out_split_is_in_training(
    train_stories: list[corpus.Story], heldout_stories: list[corpus.Story]
) -> None:
    train_plots = {plot for s in train_stories for plot in s.plots}
    heldout_plots = {plot for s in heldout_stories for plot in s.plots}
    assert not train_plots & heldout_plots
    assert all(corpus.plot_split(plot) == "train" for plot in train_plots)
    assert all(corpus.plot_split(plot) == "heldout" for plot in heldout_plots)
    assert not {s.text for s in train_stories} & {s.text for s in heldout_stories}
    assert len(heldout_plots) > 300, "the held-out split must vary too"


def test_every_tale_can_be_held_out(heldout_stories: list[corpus.Story]) -> None:
    assert {plot.split(":")[0] for s in heldout_stories for plot in s.plots} == set(TALES)


def test_the_same_arguments_give_the_same_story() -> None:
    assert corpus.story(5, "train", 1) == corpus.story(5, "train", 1)
    texts = {corpus.story(5, split, seed).text for split in corpus.SPLITS for seed in (0, 1)}
    assert len(texts) == 4
    with pytest.raises(ValueError, match="split must be one of"):
        corpus.story(0, "test")


def test_stories_are_clean_text(train_stories: list[corpus.Story]) -> None:
    for s in train_stories:
        assert not re.search(r"[\[\]{}|]|  | \n|\n\n\n| [.,!?]|\.\.| a [aeio]\w+ named", s.text), s.text
        assert s.text.count('"') % 2 == 0, s.text
        assert s.text[-1] in '.!?"', s.text
        for paragraph in s.text.split("\n\n"):
            assert paragraph[0].isupper() or paragraph[0] == '"', s.text
            # A sentence begins with a capital letter.
            assert not re.search(r"[.!?] [a-z]", paragraph), paragraph


def test_names_are_kept_through_a_story(train_stories: list[corpus.Story]) -> None:
    for s in train_stories:
        assert len(set(s.names)) == 2
        assert corpus.names_in(s.text) == set(s.names), s.text
        # Never at the start of a paragraph or a quotation, so that a name is always the same token.
        assert not re.search(rf"[^ ]\b({'|'.join(s.names)})\b", s.text), s.text


def test_pronouns_fit_the_only_character(train_stories: list[corpus.Story]) -> None:
    """In the sentence after a hero is introduced, a pronoun can only be the hero's."""
    for s in train_stories:
        opening = s.text.split("\n\n")[0]
        pronoun = re.search(r"\. (He|She|His|Her) ", opening)
        if pronoun:
            assert (pronoun[1] in ("She", "Her")) == (s.names[0] in GIRLS), opening
    assert not set(GIRLS) & set(BOYS)


def test_openings_are_starts_of_held_out_stories_of_many_lengths() -> None:
    openings = corpus.story_openings(40)
    assert len(set(openings)) == 40
    assert openings == corpus.story_openings(40)
    assert openings != corpus.story_openings(40, seed=1)
    lengths = [len(opening.split()) for opening in openings]
    assert min(lengths) >= 8
    assert max(lengths) <= 40
    assert len(set(lengths)) > 10
    starts = [s.text for s in (corpus.story(index, "heldout", 1) for index in range(80))]
    assert all(any(text.startswith(opening) for text in starts) for opening in openings)


def test_finale_prompts_are_openings_that_the_stories_could_have(train_stories: list[corpus.Story]) -> None:
    assert len(set(FINALE_PROMPTS)) == 16
    assert FINALE_PROMPTS[0].startswith("Once upon a time")
    first_words = {" ".join(s.text.split()[:2]) for s in train_stories}
    for prompt in FINALE_PROMPTS:
        assert 4 <= len(prompt.split()) <= 40
        assert " ".join(prompt.split()[:2]) in first_words, prompt
        assert prompt == prompt.strip(), "a space at the end would split a token that training never saw split"


# The optimiser


def test_orthogonalise_keeps_the_directions_and_levels_the_singular_values() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((3, 16, 16), (2, 8, 24), (2, 24, 8)):
        matrices = torch.randn(shape, generator=generator)
        result = orthogonalise(matrices)
        assert result.shape == matrices.shape
        values = torch.linalg.svdvals(result)
        # The smallest singular value of a square random matrix may take more iterations to grow.
        assert values[:, :-1].min() > 0.5
        assert values.max() < 1.3
        u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
        core = u.mT @ result @ vh.mT  # diagonal if the directions are those of the input
        off_diagonal = core - torch.diag_embed(core.diagonal(dim1=1, dim2=2))
        assert off_diagonal.abs().max() < 1e-4


def test_muon_agrees_with_pytorchs_up_to_its_bfloat16() -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in ((16, 16), (16, 16), (32, 16), (16, 32))]
    ours = [torch.nn.Parameter(w.clone()) for w in start]
    theirs = [torch.nn.Parameter(w.clone()) for w in start]
    optimisers = (Muon(ours, lr=0.02), torch.optim.Muon(theirs, lr=0.02, momentum=0.95, weight_decay=0.0))
    for _ in range(3):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        for optimiser in optimisers:
            optimiser.step()
    for a, b, w in zip(ours, theirs, start, strict=True):
        assert (a - b).norm() < 0.05 * (b - w).norm()


# Settings and windows


def test_the_schedules_cover_the_whole_run() -> None:
    for settings in (DEFAULT, QUICK, TINY):
        assert sum(share for share, _ in settings.windows) == pytest.approx(1)
        lengths = [settings.window(step) for step in range(settings.steps)]
        assert lengths == sorted(lengths)
        assert lengths[-1] == settings.max_seq_len, "the last positions must be trained too"
        scales = [settings.lr_scale(step) for step in range(settings.steps)]
        assert max(scales) == pytest.approx(1)
        assert 0 < scales[-1] < 0.01 or settings is TINY
    assert QUICK.steps < DEFAULT.steps / 2


def test_windows_begin_with_a_text_and_run_on_into_the_next() -> None:
    texts = ["Ann ran.", "Bob sat down.", "Cy slept."]
    tokenizer = Tokenizer.train(texts, 270)
    windows = Windows(texts, tokenizer, longest=64)
    inputs, targets = windows.batch(np.array([1, 2]), 40)
    assert inputs.shape == targets.shape == (2, 40)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs[:, 0].tolist() == [tokenizer.token_id(BOS)] * 2
    marked = tokenizer.backend.decode(inputs[0].tolist(), skip_special_tokens=False)
    # The decoder sets no space around the markers, so nothing but the texts is between them.
    pieces = [piece.strip() for piece in marked.replace(EOS, "").split(BOS) if piece.strip()]
    assert pieces[:2] == ["Bob sat down.", "Cy slept."]
    assert pieces[2].startswith("Ann"), "the last text runs on into the first"


# The trainer


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace from one whole tiny run."""
    ws = tmp_path_factory.mktemp("tiny") / "ws"
    metrics = train(ws, TINY, figure=ws.parent / "loss.png", console=QUIET)
    assert metrics["steps"] == TINY.steps
    return ws


def test_a_run_writes_the_whole_workspace(trained: Path) -> None:
    checkpoint, tokenizer = load_checkpoint(trained), load_tokenizer(trained)
    config = checkpoint["config"]
    assert (config.vocab_size, config.eos_id) == (tokenizer.vocab_size, tokenizer.token_id(EOS))
    assert not (trained / STATE).exists(), "the state of a finished run is of no use"
    assert (trained.parent / "loss.png").read_bytes().startswith(b"\x89PNG")
    curve = json.loads((trained / "loss_final.json").read_text())
    assert set(curve) == {"steps", "train_loss", "heldout_loss"}
    assert curve["steps"] == list(range(1, TINY.steps + 1))
    assert len(curve["train_loss"]) == len(curve["heldout_loss"]) == TINY.steps
    assert curve["heldout_loss"][-1] < curve["heldout_loss"][0], "training must have taught it something"
    metrics = read_metrics(trained)["m7_training"]
    assert metrics["tokens"] == TINY.steps * TINY.tokens_per_step
    assert metrics["parameters"] == sum(w.numel() for w in checkpoint["model"].values())
    assert 0 <= metrics["repeated_names_right"] <= 1
    assert metrics["cpu_seconds"] > 0


@pytest.fixture
def weights_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes longer than a tiny run itself and is tested elsewhere: written stories, the picture."""
    monkeypatch.setattr("ai_playground.training.trainer.name_metrics", lambda *_: {})
    monkeypatch.setattr("ai_playground.training.trainer.draw_loss", lambda *_: None)


@pytest.mark.usefixtures("weights_only")
def test_the_seed_decides_the_weights(trained: Path, tmp_path: Path) -> None:
    again, other = tmp_path / "again", tmp_path / "other"
    train(again, TINY, console=QUIET)
    train(other, replace(TINY, seed=1), console=QUIET)
    first = load_checkpoint(trained)["model"]
    assert all(torch.equal(first[name], w) for name, w in load_checkpoint(again)["model"].items())
    assert (again / "tokenizer.json").read_bytes() == (trained / "tokenizer.json").read_bytes()
    assert not torch.equal(first["norm.weight"], load_checkpoint(other)["model"]["norm.weight"])


@pytest.mark.usefixtures("weights_only")
def test_a_resumed_run_equals_an_uninterrupted_one(trained: Path, tmp_path: Path) -> None:
    ws = tmp_path / "ws"
    assert train(ws, TINY, console=QUIET, stop_after=5) == {}
    assert sorted(path.name for path in ws.iterdir()) == [STATE], "nothing else is written before the end"
    train(ws, TINY, resume=True, console=QUIET)
    whole, resumed = load_checkpoint(trained)["model"], load_checkpoint(ws)["model"]
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert (ws / "loss_final.json").read_text() == (trained / "loss_final.json").read_text()


@pytest.mark.usefixtures("weights_only")
def test_a_new_run_keeps_the_other_metrics(tmp_path: Path) -> None:
    ws = tmp_path / "ws"
    ws.mkdir()
    (ws / "metrics.json").write_text('{"m13_finale": {"text": "kept"}}')
    train(ws, replace(TINY, steps=2), console=QUIET)
    assert set(read_metrics(ws)) == {"m13_finale", "m7_training"}


def test_resume_refuses_another_run_and_says_what_differs(tmp_path: Path) -> None:
    ws = tmp_path / "ws"
    with pytest.raises(TrainingError, match="nothing to resume"):
        train(ws, TINY, resume=True, console=QUIET)
    train(ws, TINY, console=QUIET, stop_after=2)
    with pytest.raises(TrainingError, match=r"dim: this run has 32, the saved one 16.*seed: this run has 3"):
        train(ws, replace(TINY, seed=3, dim=32), resume=True, console=QUIET)
    book = tmp_path / "book.txt"
    book.write_text("".join(f"Line {i} of a very long book.\n" for i in range(2_000)))
    with pytest.raises(TrainingError, match="text that is trained on"):
        train(ws, TINY, data=book, resume=True, console=QUIET)
    (ws / STATE).write_bytes((ws / STATE).read_bytes()[:500])
    with pytest.raises(TrainingError, match="is not a training state"):
        train(ws, TINY, resume=True, console=QUIET)


def test_repeated_names_are_all_right_for_an_oracle_and_poor_for_a_blank_model() -> None:
    texts = story_texts(TINY)
    run = Run(TINY, texts, Tokenizer.train(texts.train, 2048))

    class Oracle(torch.nn.Module):
        """Knows the next token: puts all weight on it."""

        config = replace(run.model.config, max_seq_len=512)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(tokens.roll(-1, dims=1), run.tokenizer.vocab_size).float()

    heldout = [s.text for s in corpus.stories(5, "heldout")]
    assert repeated_names(Oracle(), run.tokenizer, heldout) == (1, 0)
    right, wrong = repeated_names(run.model, run.tokenizer, heldout)
    assert right < 0.2
    assert right + wrong <= 1


# Text files


def book_file(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(
        "".join(f"Chapter {i}. The miller counted {i} sacks of flour.\n\n" for i in range(600)), encoding="utf-8"
    )
    return path


def test_a_text_file_is_cut_into_passages_with_a_held_out_end(tmp_path: Path) -> None:
    path = book_file(tmp_path)
    texts = file_texts(path)
    assert not set(texts.train) & set(texts.heldout)
    words = " ".join(texts.train + texts.heldout).split()
    assert words == path.read_text().split(), "no word is lost or moved"
    assert max(map(len, texts.train)) <= 1_000
    assert len(texts.heldout) == (len(texts.train) + len(texts.heldout)) // 20


def test_text_without_paragraphs_or_spaces_is_cut_too(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("".join(chr(0x4E00 + i % 19_001) for i in range(30_000)), encoding="utf-8")
    texts = file_texts(path)
    assert "".join(texts.train + texts.heldout) == path.read_text(encoding="utf-8")
    assert max(map(len, texts.train)) <= 1_000


def test_a_text_file_trains_a_model_too(tmp_path: Path) -> None:
    ws = tmp_path / "ws"
    metrics = train(ws, TINY, data=book_file(tmp_path), figure=tmp_path / "loss.png", console=QUIET)
    assert metrics["corpus"] == "book.txt"
    assert "repeated_names_right" not in metrics, "names are only known for our own stories"
    assert metrics["heldout_loss"] < np.log(load_tokenizer(ws).vocab_size), "better than chance"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "found nothing"),
        (b"", "found 0"),
        (b"Too short.", "at least 20,000 characters, found 10"),
        (b"abc \xff\xfe" * 9_000, "expected UTF-8 text, found byte 0xff at offset 4"),
        (b"same\n" * 9_000, "only one distinct passage"),
    ],
)
def test_a_bad_text_file_is_refused_by_the_command(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    result = CliRunner().invoke(app, ["train", "--data", str(path), "--workspace", str(tmp_path / "ws")])
    assert result.exit_code == 2
    assert complaint in " ".join(result.output.split())
    assert not (tmp_path / "ws").exists()


# The shipped model


def test_the_shipped_model_is_the_one_that_the_settings_describe() -> None:
    ws = repo_root() / "checkpoints" / "myllm"
    checkpoint, tokenizer = load_checkpoint(ws), load_tokenizer(ws)
    assert checkpoint["config"] == DEFAULT.config(tokenizer)
    assert sum(w.numel() for w in checkpoint["model"].values()) <= 2_000_000
    assert (ws / "final.pt").stat().st_size <= 8_000_000
    metrics = json.loads((ws / "metrics.json").read_text(encoding="utf-8"))["m7_training"]
    assert (metrics["steps"], metrics["seed"]) == (DEFAULT.steps, DEFAULT.seed)
    curve = json.loads((ws / "loss_final.json").read_text(encoding="utf-8"))
    assert curve["steps"][-1] == DEFAULT.steps


def test_the_shipped_model_keeps_names_straight() -> None:
    """The loss hardly shows it when a run fails to learn to copy names, and then no story can be read."""
    ws = repo_root() / "checkpoints" / "myllm"
    checkpoint, tokenizer = load_checkpoint(ws), load_tokenizer(ws)
    model = Transformer(checkpoint["config"])
    model.load_state_dict(checkpoint["model"])
    right, wrong = repeated_names(model, tokenizer, [s.text for s in corpus.stories(10, "heldout", seed=2)])
    assert right > 0.85
    assert wrong < 0.05
