"""M7: the stories and their splits, and the optimiser."""

import re

import pytest
import torch

from ai_playground.prompts import FINALE_PROMPTS
from ai_playground.training import corpus
from ai_playground.training.muon import Muon, orthogonalise
from ai_playground.training.tales import BOYS, GIRLS, TALES

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
        assert 2 <= len(s.names) <= 3
        assert {name for _, name in corpus.name_mentions(s.text)} == set(s.names), s.text
        # Never at the start of a paragraph or a quotation, so that a name is always the same token.
        assert all(s.text[start - 1] == " " for start, _ in corpus.name_mentions(s.text)), s.text


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
