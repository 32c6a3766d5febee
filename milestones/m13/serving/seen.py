"""What went through the model while `serve` ran, read as requests: who began when, and who was in the cache when.

Each prompt begins with a token that the model never writes. Whenever one is looked up, a request is being (re)computed
from its beginning; what follows is its prompt, and after a preemption the tokens that it had made. Every other token is
the next one of a request that is in the cache already.

Prompts may be equal, or the beginning of one another. Then tokens alone do not always say whose beginning was seen, and
the same calls can be read in more than one way: an engine is right if it is right in one of them.
"""

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, takewhile

MOST_READINGS = 32  # the likeliest is mostly the true one, and in the course's own cases there are few others


@dataclass
class Event:
    """A request that was fed in a call.

    Attributes:
        call: which of the calls.
        cached: how many of its tokens are in the cache after it.
        begins: it was (re)computed from its beginning.
        decodes: it got a token by decoding, one that was in no prefill.
    """

    call: int
    cached: int
    begins: bool
    decodes: bool


@dataclass
class Seen:
    """The run as it was seen.

    Attributes:
        order: the request of each beginning. Calls that follow each other and all begin a prompt are one admission,
            and order within an admission is the engine's own business (padded, grouped by length, the last one first):
            there the order is that of the requests.
        decoded: how many tokens had been decoded before the call of each beginning.
        again: the tokens that went through the model once more because their request began anew.
        events: for each request what happened to it.
        calls: the number of calls.
        lost: some token was nobody's next one, or that of two: only the beginnings are known.
    """

    order: list[int] = field(default_factory=list)
    decoded: list[int] = field(default_factory=list)
    again: int = 0
    events: list[list[Event]] = field(default_factory=list)
    calls: int = 0
    lost: bool = False


def readings(requests: list[list[int]], outputs: list[list[int]], lookups: list[list[int]]) -> Iterator[Seen | None]:
    """The ways in which the calls of a run whose outputs are known can be read, the likeliest first.

    Where all prompts begin with tokens of their own there is one. Elsewhere the last may be None: one loses its way, or
    there are too many, so that nothing is certain.
    """
    alone = len({prompt[0] for prompt in requests}) == len(requests)
    waiting: deque[dict[int, int]] = deque([{}])  # beginnings that are read as another request's than the likeliest's
    for _ in range(MOST_READINGS):
        if not waiting:
            return
        otherwise = waiting.popleft()
        seen, choices = _watch(requests, outputs, lookups, otherwise)
        if seen.lost and not alone:
            break
        yield seen
        waiting += [
            otherwise | {at: index}
            for at, indices in enumerate(choices)
            for index in indices[1:]
            if at > max(otherwise, default=-1)
        ]
    yield None


def _watch(
    requests: list[list[int]], outputs: list[list[int]], lookups: list[list[int]], otherwise: Mapping[int, int]
) -> tuple[Seen, list[list[int]]]:
    """One reading, and whose each beginning can be, the likeliest first; `otherwise` has those of another choice."""
    seen = Seen(events=[[] for _ in requests], calls=len(lookups))
    run = _Run(requests, outputs)
    choices: list[list[int]] = []
    decoded, admission = 0, 0  # tokens so far; where in `order` the admission that goes on began
    for call, tokens in enumerate(lookups):
        admitted = len(seen.order)
        decoded_before = decoded
        fed: dict[int, Event] = {}
        rivals: set[int] = set()  # one of them was meant, and it matters which
        at = 0
        while at < len(tokens):
            if tokens[at] in run.firsts:
                choices.append(run.whose_beginning(tokens[at:], chain(*lookups[call + 1 :]), fed))
                index = otherwise.get(len(choices) - 1, choices[-1][0])
                count = run.begin(index, tokens[at:])
                seen.again += count - 1 if index in seen.order else 0
                seen.order.append(index)
                seen.decoded.append(decoded_before)
                fed[index] = Event(call, count, True, False)
                at += count
                continue
            candidates = run.whose_next(tokens[at:])
            if candidates:
                index = candidates[0]
                # Two that get the same token are as good as one another, unless one of them is done with it, or they
                # begin alike.
                matters = any(run.ends_with_next(one) or run.alike(one, index) for one in candidates[1:])
                rivals.update(candidates if matters or run.ends_with_next(index) else ())
                decodes = run.cached[index] >= run.prefilled[index]
                decoded += decodes
                run.cached[index] += 1
                begins = index in fed and fed[index].begins
                fed[index] = Event(call, run.cached[index], begins, decodes)
            elif not any(token in run.firsts for token in tokens):  # beside a prefill it may be padding
                seen.lost = True
            at += 1
        seen.lost |= bool(rivals - fed.keys())
        if len(seen.order) == admitted:
            admission = admitted
        else:
            pairs = sorted(zip(seen.order[admission:], seen.decoded[admission:], strict=True))
            seen.order[admission:], seen.decoded[admission:] = map(list, zip(*pairs, strict=True))
        for index, event in fed.items():
            seen.events[index].append(event)
            run.fed[index] = call
            run.after(index)
    seen.lost |= any(run.made[index] < len(output) for index, output in enumerate(outputs))
    return seen, choices


class _Run:
    """How far each request is: `cached` tokens in the cache, `made` new ones known."""

    def __init__(self, requests: list[list[int]], outputs: list[list[int]]) -> None:
        self.prompts = requests
        self.texts = [prompt + output for prompt, output in zip(requests, outputs, strict=True)]
        self.firsts = {prompt[0] for prompt in requests}
        self.cached = [0] * len(requests)
        self.made = [0] * len(requests)
        self.fed = [0] * len(requests)  # the latest call that did
        self.prefilled = [0] * len(requests)  # how many of its tokens the latest prefill takes
        self.admitted: list[int] = []  # by the latest beginning

    def known(self, index: int) -> int:
        """How many tokens of a request can go through the model."""
        return min(len(self.prompts[index]) + self.made[index], len(self.texts[index]) - 1)

    def whose_beginning(self, tokens: list[int], later: Iterable[int], fed: Container[int]) -> list[int]:
        """Whose prompt it can be, the likeliest first: the longest that is there. One that begins again brings its new
        tokens along.

        Args:
            tokens: what went through the model in this call, from the first token of the prompt on.
            later: what went through it in the calls after that.
            fed: those that this call has fed already, so it is none of them.
        """
        prompt = [tokens[0], *takewhile(lambda token: token not in self.firsts, chain(tokens[1:], later))]

        def rank(index: int) -> tuple[bool, int, bool, int, bool, int, int]:
            again = index in self.admitted
            matching, known = self._matching(index, tokens), self.known(index)
            return (
                matching >= known - 1,  # some leave the last one to the batch
                matching,
                matching == known,
                _equal(self.prompts[index], prompt),
                not again,
                -self.fed[index] if again else 0,  # who is running was fed in the latest step
                index if again else -index,
            )

        alike = [index for index, prompt in enumerate(self.prompts) if prompt[0] == tokens[0]]
        possible = [index for index in alike if index not in fed and self.known(index) > self.cached[index]]
        return sorted(possible or alike, key=rank, reverse=True)

    def _matching(self, index: int, tokens: list[int]) -> int:
        return _equal(self.texts[index][: max(self.known(index), 1)], tokens)

    def begin(self, index: int, tokens: list[int]) -> int:
        """Start a request anew; returns how many tokens are its own."""
        self.cached[index] = self._matching(index, tokens)
        self.prefilled[index] = self.known(index)
        if index in self.admitted:
            self.admitted.remove(index)
        self.admitted.append(index)
        return self.cached[index]

    def whose_next(self, tokens: list[int]) -> list[int]:
        """The requests that wait for a token: first those that explain most of what follows in its call, as the rest of
        a prefill does, then those that have been waiting longest, then as admitted."""
        waiting = []
        for index in self.admitted:
            explained = _equal(self.texts[index][self.cached[index] : self.known(index)], tokens)
            if explained:
                waiting.append((-explained, self.fed[index], index))
        return [index for _, _, index in sorted(waiting, key=lambda way: way[:2])]

    def alike(self, index: int, other: int) -> bool:
        """Whether two requests begin alike."""
        return self.prompts[index][0] == self.prompts[other][0]

    def ends_with_next(self, index: int) -> bool:
        """Whether a request is done when it is fed one token more."""
        return self.cached[index] + 1 == len(self.texts[index]) - 1

    def after(self, index: int) -> None:
        """A call has ended in which a request was fed: if all that is known of it is cached, the next token is made."""
        whole = self.cached[index] == len(self.prompts[index]) + self.made[index]
        if whole and len(self.prompts[index]) + self.made[index] < len(self.texts[index]):
            self.made[index] += 1


def _equal(text: list[int], tokens: list[int]) -> int:
    """How many tokens from the first on are the same."""
    pairs = zip(text, tokens, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(text), len(tokens)))


def shared(requests: list[list[int]]) -> list[int]:
    """How many tokens each prompt has in common with another: an engine that shares blocks may compute them once."""
    return [
        max((_equal(prompt, other) for at, other in enumerate(requests) if at != index), default=0)
        for index, prompt in enumerate(requests)
    ]
