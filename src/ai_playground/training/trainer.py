"""M7: train the model that the milestones serve, from text to a finished workspace."""

import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

from ai_playground.checkout import repo_root
from ai_playground.inference import generate
from ai_playground.models import Transformer, TransformerConfig
from ai_playground.plotting import BLUE, ORANGE, STYLE
from ai_playground.tokenizer import EOS, Tokenizer
from ai_playground.training import corpus
from ai_playground.training.muon import Muon
from ai_playground.workspace import record_metrics, save_checkpoint, write_json

STATE = "train_state.pt"
MIN_CHARACTERS = 20_000  # of a --data file: less would be learnt by heart, and leaves nothing to hold out


@dataclass(frozen=True)
class Settings:
    """Everything that decides what comes out of a training run, apart from the text.

    `windows` are the stages of the run: (share of the steps, window length in tokens). A window begins where a story
    begins and runs on into the next stories. Short windows first teach the model to copy names, since there the first
    repetition of a name is always near; the long ones at the end train every position up to `max_seq_len`.
    """

    seed: int = 0
    steps: int = 1000
    tokens_per_step: int = 1536
    windows: tuple[tuple[float, int], ...] = ((0.10, 32), (0.15, 64), (0.17, 128), (0.38, 256), (0.20, 512))
    stories: int = 12_000
    heldout_stories: int = 400
    muon_lr: float = 0.02
    adam_lr: float = 0.005
    warmup: int = 20
    clip: float = 1.0
    vocab_size: int = 2048
    dim: int = 128
    n_layers: int = 4
    n_heads: int = 4
    n_kv_heads: int = 2
    hidden_dim: int = 384
    max_seq_len: int = 512

    def window(self, step: int) -> int:
        """The window length, in tokens, at a step counted from 0."""
        reached = 0.0
        for share, length in self.windows:
            reached += share
            if step < round(reached * self.steps):
                return length
        return self.windows[-1][1]

    def lr_scale(self, step: int) -> float:
        """What the learning rates are multiplied by: up over the warm-up, then straight down to 0 at the end."""
        return min((step + 1) / self.warmup, (self.steps - step) / max(1, self.steps - self.warmup), 1.0)

    def config(self, tokenizer: Tokenizer) -> TransformerConfig:
        """The model's shape, for the vocabulary that the tokenizer came out with."""
        return TransformerConfig(
            vocab_size=tokenizer.vocab_size,
            dim=self.dim,
            n_layers=self.n_layers,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
            hidden_dim=self.hidden_dim,
            max_seq_len=self.max_seq_len,
            tie_embeddings=True,
            eos_id=tokenizer.token_id(EOS),
        )


DEFAULT = Settings()
QUICK = replace(DEFAULT, steps=300, stories=6_000, heldout_stories=200)


class TrainingError(ValueError):
    """Training cannot start; the message says what was wrong and what to do."""


@dataclass(frozen=True)
class Texts:
    """What is trained on and what is held out: two lists with no text in common, and where they came from."""

    train: list[str]
    heldout: list[str]
    source: str

    @property
    def fingerprint(self) -> int:
        """A checksum of all texts, so that a resumed run can tell that it goes on with the same ones."""
        value = 0
        for text in (*self.train, "", *self.heldout):
            value = zlib.crc32(text.encode(), value)
        return value


def story_texts(settings: Settings) -> Texts:
    """The built-in corpus: stories whose held-out plots training never sees (see `corpus`)."""
    return Texts(
        [s.text for s in corpus.stories(settings.stories, "train", settings.seed)],
        [s.text for s in corpus.stories(settings.heldout_stories, "heldout", settings.seed)],
        "stories",
    )


def file_texts(path: Path) -> Texts:
    """Passages of a UTF-8 text file: whole paragraphs, about 1,000 characters together; the last twentieth is held out.

    Raises:
        TrainingError: the file is missing, is not UTF-8 text, or has fewer than `MIN_CHARACTERS` characters.
    """
    if not path.is_file():
        raise TrainingError(f"--data {path}: expected a text file, found {'a folder' if path.is_dir() else 'nothing'}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TrainingError(
            f"--data {path}: expected UTF-8 text, found byte 0x{error.object[error.start]:02x} at offset "
            f"{error.start}. Save the file as UTF-8 first."
        ) from None
    if len(text.strip()) < MIN_CHARACTERS:
        raise TrainingError(
            f"--data {path}: expected at least {MIN_CHARACTERS:,} characters, found {len(text.strip()):,}. "
            "Give a longer text, or join several files into one."
        )
    passages = list(dict.fromkeys(_passages(text)))  # a passage that occurs twice could fall on both sides of the cut
    cut = len(passages) - max(1, len(passages) // 20)
    if cut < 1:
        raise TrainingError(f"--data {path}: found only one distinct passage; training needs text that varies")
    return Texts(passages[:cut], passages[cut:], path.name)


def _passages(text: str, size: int = 1_000) -> Iterator[str]:
    passage = ""
    for paragraph in text.splitlines(keepends=True):
        # A paragraph longer than a passage is cut between words (or, where there are none, anywhere).
        while len(paragraph) > size:
            cut = paragraph.rfind(" ", 1, size)
            cut = size if cut < 0 else cut
            yield passage + paragraph[:cut]
            passage, paragraph = "", paragraph[cut:].lstrip(" ")
        if passage and len(passage) + len(paragraph) > size:
            yield passage
            passage = ""
        passage = (passage + paragraph).lstrip("\r\n")
    if passage.strip():
        yield passage


class Windows:
    """Training windows cut from texts: each begins where a text begins and runs on into the next ones."""

    def __init__(self, texts: list[str], tokenizer: Tokenizer, longest: int) -> None:
        eos = tokenizer.token_id(EOS)
        encoded = [[*ids, eos] for ids in tokenizer.encode_batch(texts)]
        flat = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in encoded])
        self.starts = np.cumsum([0] + [len(ids) for ids in encoded[:-1]])
        self.tokens = len(flat)
        # The last text runs on into the first ones, as often as it takes to fill one window.
        self.flat = np.resize(flat, len(flat) + longest + 1)

    def batch(self, rows: np.ndarray, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, each `(len(rows), length)` int64, of the windows that begin at these texts."""
        index = self.starts[rows][:, None] + np.arange(length + 1)
        window = torch.from_numpy(self.flat[index])
        return window[:, :-1], window[:, 1:]


def initialise(model: Transformer, seed: int) -> None:
    """Fresh weights for training: embeddings N(0, 0.02^2), matrices N(0, 1 / columns), outputs of each block zero.

    With `wo` and `down` at zero every block begins as the identity, which trains faster from the first step. The
    model's own default initialisation is left as PyTorch's, because the chapter's figures depend on it.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("wo.weight", "down.weight")):
                p.zero_()
            elif name.startswith("embedding"):
                p.normal_(0.0, 0.02, generator=generator)
            elif p.ndim == 2:
                p.normal_(0.0, p.shape[1] ** -0.5, generator=generator)


class Run:
    """A training run between two steps: the model, its optimisers, the step and the curve so far.

    The batch of a step is a function of the seed and the step's number alone. So there is no random state to save,
    and a run that is resumed goes on exactly as if it had never stopped.
    """

    def __init__(self, settings: Settings, texts: Texts, tokenizer: Tokenizer) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.fingerprint = texts.fingerprint
        self.train_windows = Windows(texts.train, tokenizer, settings.max_seq_len)
        self.heldout_windows = Windows(texts.heldout, tokenizer, settings.max_seq_len)
        self.model = Transformer(settings.config(tokenizer))
        initialise(self.model, settings.seed)
        matrices = [p for p in self.model.layers.parameters() if p.ndim == 2]
        others = [p for p in self.model.parameters() if not any(p is m for m in matrices)]
        self.optimisers: dict[str, torch.optim.Optimizer] = {
            "muon": Muon(matrices, lr=settings.muon_lr),
            "adamw": torch.optim.AdamW(others, lr=settings.adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
        }
        self.base_lr = {name: optimiser.param_groups[0]["lr"] for name, optimiser in self.optimisers.items()}
        self.step = 0
        self.tokens = 0
        self.curve: dict[str, list] = {"steps": [], "train_loss": [], "heldout_loss": []}
        self.seconds = 0.0
        self.cpu_seconds = 0.0

    def train_step(self) -> float:
        """One update; returns the batch's mean loss in nats a token."""
        settings = self.settings
        length = settings.window(self.step)
        rng = np.random.default_rng([settings.seed, self.step])
        rows = rng.integers(len(self.train_windows.starts), size=max(1, settings.tokens_per_step // length))
        inputs, targets = self.train_windows.batch(rows, length)
        loss = F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip)
        for name, optimiser in self.optimisers.items():
            optimiser.param_groups[0]["lr"] = self.base_lr[name] * settings.lr_scale(self.step)
            optimiser.step()
            optimiser.zero_grad()
        self.step += 1
        self.tokens += inputs.numel()
        return loss.item()

    @torch.no_grad()
    def heldout_loss(self, rows: int = 8, length: int = 256) -> float:
        """Mean loss, in nats a token, on the first windows of the held-out texts."""
        length = min(length, self.settings.max_seq_len)
        picked = np.arange(min(rows, len(self.heldout_windows.starts)))
        total, count = 0.0, 0
        for part in np.array_split(picked, -(-len(picked) // 8)):  # eight rows at a time, to bound the memory
            inputs, targets = self.heldout_windows.batch(part, length)
            total += F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten(), reduction="sum").item()
            count += targets.numel()
        return total / count

    def save(self, path: Path) -> None:
        """Write everything that `load` needs; a crash leaves the old file or the new one."""
        state = {
            "settings": _plain(self.settings),
            "fingerprint": self.fingerprint,
            "model": self.model.state_dict(),
            "optimisers": {name: optimiser.state_dict() for name, optimiser in self.optimisers.items()},
            "progress": {name: getattr(self, name) for name in _PROGRESS},
        }
        partial = path.with_name(path.name + ".partial")
        torch.save(state, partial)
        os.replace(partial, path)

    def load(self, path: Path) -> None:
        """Go on where a saved run of the same settings and texts stopped.

        Raises:
            TrainingError: no such file, not one that `save` wrote, or one of another run (what differs is named).
        """
        if not path.is_file():
            raise TrainingError(
                f"--resume: {path} does not exist, so there is nothing to resume. Run without --resume."
            )
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            theirs, fingerprint = state["settings"], state["fingerprint"]
        except Exception as error:  # torch raises UnpicklingError, RuntimeError, EOFError, KeyError, ...
            raise TrainingError(
                f"--resume: {path} is not a training state ({type(error).__name__}). "
                "Delete it and run without --resume."
            ) from None
        ours = _plain(self.settings)
        differing = [
            f"{name}: this run has {ours.get(name)}, the saved one {theirs.get(name)}"
            for name in sorted(set(ours) | set(theirs))
            if ours.get(name) != theirs.get(name)
        ]
        if not differing and fingerprint != self.fingerprint:
            differing = ["the text that is trained on (--data) is not the same"]
        if differing:
            raise TrainingError(
                f"--resume: {path} belongs to another run. {'; '.join(differing)}. "
                "Resume with the options that it was begun with, or run without --resume to begin anew."
            )
        self.model.load_state_dict(state["model"])
        for name, optimiser in self.optimisers.items():
            optimiser.load_state_dict(state["optimisers"][name])
        for name in _PROGRESS:
            setattr(self, name, state["progress"][name])


_PROGRESS = ("step", "tokens", "curve", "seconds", "cpu_seconds")


def _plain(settings: Settings) -> dict[str, Any]:
    """The settings as torch.load(weights_only=True) can read them back."""
    return {**asdict(settings), "windows": [list(stage) for stage in settings.windows]}


def train(
    ws: Path,
    settings: Settings = DEFAULT,
    *,
    data: Path | None = None,
    resume: bool = False,
    figure: Path | None = None,
    console: Console | None = None,
    stop_after: int | None = None,
) -> dict[str, Any]:
    """Train a model and write the workspace: configuration, tokenizer, weights, loss curve and metrics.

    Nothing in the workspace changes until training is done, except for `train_state.pt`, from which `resume` goes
    on; it is removed at the end.

    Args:
        ws: the workspace's folder; it is made if need be.
        settings: what to train and how long.
        data: a UTF-8 text file to train on instead of the built-in stories.
        resume: go on from the workspace's `train_state.pt`.
        figure: where the picture of the loss curve goes; None is `outputs/m7_loss.png` in the checkout.
        console: where progress and samples are shown.
        stop_after: end, as an interruption would, once this many steps are done (and saved).

    Returns:
        What `metrics.json["m7_training"]` holds; empty if `stop_after` ended the run.

    Raises:
        TrainingError: a `data` file or a saved state that cannot be used.
    """
    console = console or Console()
    figure = figure or repo_root() / "outputs" / "m7_loss.png"
    state = ws / STATE
    if resume and not state.is_file():
        raise TrainingError(f"--resume: {state} does not exist, so there is nothing to resume. Run without --resume.")
    if ws.exists() and not ws.is_dir():
        raise TrainingError(f"--workspace {ws}: expected a folder, found a file. Name a folder; it is made if need be.")
    texts = file_texts(data) if data else story_texts(settings)
    tokenizer = Tokenizer.train(texts.train, settings.vocab_size)
    run = Run(settings, texts, tokenizer)
    if resume:
        run.load(state)
    ws.mkdir(parents=True, exist_ok=True)
    parameters = sum(p.numel() for p in run.model.parameters())
    console.print(
        f"{len(texts.train):,} texts ({run.train_windows.tokens:,} tokens) from {texts.source}, {len(texts.heldout):,} "
        f"held out; a model of {parameters:,} parameters; {settings.steps:,} steps"
        + (f", going on at step {run.step:,}" if resume else "")
    )
    prompt = "Once upon a time" if data is None else " ".join(texts.heldout[0].split()[:4])
    if not _train_loop(run, state, prompt, console, stop_after):
        return {}

    run.model.eval()
    run.model.requires_grad_(False)
    metrics = {
        "parameters": parameters,
        "steps": run.step,
        "tokens": run.tokens,
        "seconds": round(run.seconds, 1),
        "cpu_seconds": round(run.cpu_seconds, 1),
        "threads": torch.get_num_threads(),
        "train_loss": run.curve["train_loss"][-1],
        "heldout_loss": round(run.heldout_loss(rows=200, length=settings.max_seq_len), 4),
        "corpus": texts.source,
        "corpus_texts": len(texts.train),
        "corpus_tokens": run.train_windows.tokens,
        **(
            name_metrics(run.model, tokenizer, settings.seed, min(100, settings.heldout_stories))
            if data is None
            else {}
        ),
        "seed": settings.seed,
        "torch": torch.__version__,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    partial = ws / "tokenizer.json.partial"
    tokenizer.save(partial)
    os.replace(partial, ws / "tokenizer.json")
    save_checkpoint(ws, run.model.config, run.model.state_dict())
    write_json(ws / "loss_final.json", run.curve)
    record_metrics(ws, "m7_training", metrics)
    draw_loss(run.curve, figure)
    state.unlink(missing_ok=True)
    console.print(f"[bold]The model goes on from {prompt!r}:[/bold]")
    console.print(sample(run.model, tokenizer, prompt, 400), markup=False, highlight=False)
    console.print(f"Wrote {ws} and {figure}", highlight=False)
    return metrics


def _train_loop(run: Run, state: Path, prompt: str, console: Console, stop_after: int | None) -> bool:
    """Train up to the last step; True if it was reached. Saves, samples and adds to the curve on the way."""
    steps = run.settings.steps
    every = max(1, steps // 40)
    losses: list[float] = []
    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}, held-out {task.fields[heldout]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("training", total=steps, completed=run.step, loss="-", heldout="-")
        wall, cpu = time.perf_counter(), time.process_time()
        while run.step < steps:
            losses.append(run.train_step())
            bar.update(task, completed=run.step, loss=f"{losses[-1]:.3f}")
            # Counted from the end, so that the last step is always on the curve.
            if (steps - run.step) % every == 0:
                run.curve["steps"].append(run.step)
                run.curve["train_loss"].append(round(sum(losses) / len(losses), 4))
                run.curve["heldout_loss"].append(round(run.heldout_loss(), 4))
                losses.clear()
                run.seconds += time.perf_counter() - wall
                run.cpu_seconds += time.process_time() - cpu
                wall, cpu = time.perf_counter(), time.process_time()
                bar.update(task, heldout=f"{run.curve['heldout_loss'][-1]:.3f}")
                # Here and nowhere else: the losses since the last point are in the curve, so none is lost.
                run.save(state)
                if (steps - run.step) % (10 * every) == 0 and run.step < steps:
                    text = sample(run.model, run.tokenizer, prompt, 60)
                    console.print(f"step {run.step}: {text} ...", markup=False, highlight=False)
                if stop_after is not None and run.step >= stop_after:
                    return False
    return True


def sample(model: Transformer, tokenizer: Tokenizer, prompt: str, max_new: int) -> str:
    """The prompt and its greedy continuation, up to the end of the story, `max_new` tokens or the model's length."""
    ids = tokenizer.encode(prompt)
    max_new = min(max_new, model.config.max_seq_len - len(ids))
    return tokenizer.decode(ids + list(generate(model, ids, max_new, eos_id=model.config.eos_id)))


def name_metrics(model: Transformer, tokenizer: Tokenizer, seed: int = 0, n: int = 100) -> dict[str, float]:
    """How straight the model keeps names, which the loss hardly shows.

    Returns:
        `repeated_names_right` and `repeated_names_wrong`: see `repeated_names`, over `n` held-out stories;
        `names_per_story`: how many distinct names its greedy stories have (from 16 held-out openings), and
        `names_per_heldout_story`: how many ours have.
    """
    heldout = corpus.stories(n, "heldout", seed)
    right, wrong = repeated_names(model, tokenizer, [story.text for story in heldout])
    written = [sample(model, tokenizer, opening, 400) for opening in corpus.story_openings(16, seed)]
    distinct = [len(corpus.names_in(text)) for text in written]
    return {
        "repeated_names_right": round(right, 4),
        "repeated_names_wrong": round(wrong, 4),
        "names_per_story": round(sum(distinct) / len(distinct), 2),
        "names_per_heldout_story": round(sum(len(story.names) for story in heldout) / n, 2),
    }


@torch.no_grad()
def repeated_names(model: nn.Module, tokenizer: Tokenizer, texts: list[str]) -> tuple[float, float]:
    """What the model expects wherever a text says a name again, having read the text up to there.

    Returns:
        The share of these places at which its most likely token is that very name, and the share at which it is
        another name. At the rest it expects something else, such as a pronoun, which often fits as well.
    """
    # A name that is not one token counts by its first one, which tells what name is meant.
    names = {tokenizer.backend.encode(f" {name}", add_special_tokens=False).ids[0] for name in corpus.NAMES}
    right = wrong = total = 0
    for text in texts:
        ids = tokenizer.encode(text)[: model.config.max_seq_len]
        best = model(torch.tensor([ids]))[0].argmax(dim=-1).tolist()  # best[t] is the guess for ids[t + 1]
        seen = set()
        for token, guess in zip(ids[1:], best, strict=False):
            if token in names and token in seen:
                total += 1
                right += guess == token
                wrong += guess != token and guess in names
            seen.add(token)
    return right / max(1, total), wrong / max(1, total)


def draw_loss(curve: dict[str, list], path: Path) -> None:
    """Draw the loss curve into a picture file, in the course's style."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.plot(curve["steps"], curve["train_loss"], color=BLUE, label="training (windows grow from short to long)")
        axes.plot(curve["steps"], curve["heldout_loss"], color=ORANGE, linestyle="--", label="held out (256 tokens)")
        axes.set_yscale("log")  # on a linear one, the last half of the run would be a flat line
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
        axes.set(xlabel="step", ylabel="loss (nats a token)", title="M7: training the model that M13 serves")
        axes.legend()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
