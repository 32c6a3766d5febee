"""Short children's stories, written by a small grammar over the tables in `tales.py`.

A story has a hero and a friend, one tale (now and then two), and an evening. Which tale it is and what fills its
slots is its *plot*. Every plot belongs to the training split or to the held-out one, by a hash of its text, so no
held-out plot is ever trained on, whatever names, animals, places and wording go with it.
"""

import random
import re
import zlib
from dataclasses import dataclass
from math import prod

from ai_playground.training.tales import (
    ANIMALS,
    BOYS,
    EVENINGS,
    FRIENDS,
    GIRLS,
    HOME_TALES,
    LIKES,
    NEXT_EVENINGS,
    OPENINGS,
    PLACES,
    SEQUELS,
    TALES,
)

NAMES = frozenset(GIRLS + BOYS)
SPLITS = ("train", "heldout")
_HELDOUT_SHARE = 20  # one plot in so many is held out
_TWO_TALES = 0.15  # share of stories in which a second adventure follows
_CHOICE = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True)
class Character:
    """A name with its pronouns, and what it is: `kind` is "fox", `a_kind` "a fox"."""

    name: str
    kind: str
    she: bool

    def __str__(self) -> str:
        return self.name

    @property
    def a_kind(self) -> str:
        return ("an " if self.kind[0] in "aeiou" else "a ") + self.kind

    @property
    def he(self) -> str:
        return "she" if self.she else "he"

    @property
    def He(self) -> str:
        return self.he.capitalize()

    @property
    def him(self) -> str:
        return "her" if self.she else "him"

    @property
    def his(self) -> str:
        return "her" if self.she else "his"

    @property
    def His(self) -> str:
        return self.his.capitalize()


@dataclass(frozen=True)
class Story:
    """One story: its text, the plots that it tells (tale and slot values), and the names of hero and friend."""

    text: str
    plots: tuple[str, ...]
    names: tuple[str, ...]


def plot_split(plot: str) -> str:
    """The split that a plot belongs to, "train" or "heldout": fixed by its text alone."""
    return "heldout" if zlib.crc32(plot.encode()) % _HELDOUT_SHARE == 0 else "train"


def count_plots() -> int:
    """How many plots there are: for each tale every combination of what may fill its slots."""
    return sum(prod(map(len, tale.slots.values())) for tale in TALES.values())


def story(index: int, split: str = "train", seed: int = 0) -> Story:
    """Story number `index` of a split; the same three arguments always give the same story.

    Raises:
        ValueError: a split that is not one of `SPLITS`.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
    rng = random.Random(f"{split} {seed} {index}")
    hero, friend = _cast(rng)
    tales = rng.sample(sorted(TALES), 2 if rng.random() < _TWO_TALES else 1)
    love, callback = rng.choice(TALES[tales[0]].loves)
    slots = {"H": hero, "F": friend, "love": love, "callback": callback, "place": rng.choice(PLACES)}
    plots, paragraphs = [], [f"{rng.choice(OPENINGS)} {rng.choice(LIKES)} {rng.choice(FRIENDS)}"]
    for number, name in enumerate(tales):
        plot, values = _plot(name, split, rng)
        plots.append(plot)
        if number:
            paragraphs.append(rng.choice(SEQUELS))
        paragraphs.append(_fill(_with_optional_lines(TALES[name].text, rng), {**slots, **values}, rng))
    paragraphs.append(rng.choice(NEXT_EVENINGS if tales[-1] in HOME_TALES else EVENINGS))
    text = "\n\n".join(_fill(paragraph, slots, rng) for paragraph in paragraphs)
    return Story(text, tuple(plots), (hero.name, friend.name))


def stories(n: int, split: str = "train", seed: int = 0) -> list[Story]:
    """The first `n` different stories of a split."""
    found: dict[str, Story] = {}
    index = 0
    while len(found) < n:
        candidate = story(index, split, seed)
        found.setdefault(candidate.text, candidate)
        index += 1
    return list(found.values())


def story_openings(n: int, seed: int = 0) -> list[str]:
    """`n` different openings of held-out stories, as prompts: 8 to 40 words each, cut at varying places.

    An opening is the beginning of a story, so it looks like the starts that training saw; its plot, if it
    reaches that far, is one that training did not see.
    """
    found: dict[str, None] = {}
    index = 0
    while len(found) < n:
        rng = random.Random(f"opening {seed} {index}")
        words = story(index, "heldout", seed + 1).text.replace("\n\n", " \n\n ").split(" ")
        cut = _cut(words, rng.randint(8, 40))
        found[cut] = None
        index += 1
    return list(found)


def names_in(text: str) -> set[str]:
    """The names of characters that occur in a text."""
    return NAMES.intersection(re.findall(r"[A-Z][a-z]+", text))


def _cut(words: list[str], length: int) -> str:
    """The first `length` words (paragraph breaks are not counted), without a space at the end."""
    text, count = "", 0
    for word in words:
        if word == "\n\n":
            text = text.rstrip() + word
            continue
        if count == length:
            break
        text += word + " "
        count += 1
    return text.rstrip()


def _cast(rng: random.Random) -> list[Character]:
    """Hero and friend: different names, and different species if both are animals."""
    kinds, names, cast = list(ANIMALS), set(), []
    for _ in range(2):
        she = rng.random() < 0.5
        name = rng.choice([n for n in (GIRLS if she else BOYS) if n not in names])
        names.add(name)
        kind = ("girl" if she else "boy") if rng.random() < 0.3 else rng.choice(kinds)
        if kind in kinds:
            kinds.remove(kind)
        cast.append(Character(name, kind, she))
    return cast


def _plot(name: str, split: str, rng: random.Random) -> tuple[str, dict[str, str]]:
    """A plot of this tale that belongs to the split, and its slots; `{Gift}` is `{gift}` with a capital letter."""
    while True:
        chosen = {slot: rng.choice(values) for slot, values in TALES[name].slots.items()}
        plot = f"{name}: " + " | ".join(chosen.values())
        if plot_split(plot) == split:
            capitals = {slot.capitalize(): value[0].upper() + value[1:] for slot, value in chosen.items()}
            return plot, chosen | capitals


def _with_optional_lines(text: str, rng: random.Random) -> str:
    """A tale's text with its paragraphs joined; each line that begins with `? ` stays in half of the stories."""
    paragraphs = [[]]
    for line in (raw.strip() for raw in text.strip().splitlines()):
        if not line:
            paragraphs.append([])
        elif not line.startswith("? "):
            paragraphs[-1].append(line)
        elif rng.random() < 0.5:
            paragraphs[-1].append(line[2:])
    return "\n\n".join(" ".join(lines) for lines in paragraphs)


def _fill(text: str, slots: dict, rng: random.Random) -> str:
    """Fill the slots (their values may hold slots and choices too), then choose the wording."""
    while "{" in text:
        text = text.format_map(slots)
    while choice := _CHOICE.search(text):
        text = text[: choice.start()] + rng.choice(choice[1].split("|")) + text[choice.end() :]
    return text
