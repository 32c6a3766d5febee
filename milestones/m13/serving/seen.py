"""What went through the model while `serve` ran, read as requests: who began when, and who was in the cache when.

Each prompt begins with a token that the model never writes. Whenever one is looked up, a request is being (re)computed
from its beginning; what follows is its prompt, and after a preemption the tokens that it had made. Every other token is
the next one of a request that is in the cache already. Prompts may be equal, or the beginning of one another.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from itertools import accumulate, chain, takewhile


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
        before: how many tokens had gone through the model before it.
        again: the tokens that went through the model once more because their request began anew.
        events: for each request what happened to it.
        calls: the number of calls.
        lost: some token was nobody's next one, or that of two: only the beginnings are known.
    """

    order: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    again: int = 0
    events: list[list[Event]] = field(default_factory=list)
    calls: int = 0
    lost: bool = False


def watch(requests: list[list[int]], outputs: list[list[int]], lookups: list[list[int]]) -> Seen:
    """Read the calls of a run whose outputs are known."""
    seen = Seen(events=[[] for _ in requests], calls=len(lookups))
    run = _Run(requests, outputs)
    total, admission = 0, 0  # tokens so far, and where in `order` the admission that goes on began
    for call, tokens in enumerate(lookups):
        admitted = len(seen.order)
        fed: dict[int, Event] = {}
        rivals: set[int] = set()  # one of them was meant, and it matters which
        at = 0
        while at < len(tokens):
            if tokens[at] in run.firsts:
                index = run.whose_beginning(tokens[at:], chain(*lookups[call + 1 :]), fed)
                count = run.begin(index, tokens[at:])
                seen.again += count - 1 if index in seen.order else 0
                seen.order.append(index)
                fed[index] = Event(call, count, True, False)
                at += count
                continue
            candidates = run.whose_next(tokens[at:])
            if candidates:
                index = candidates[0]
                # Two that get the same token are as good as one another, unless one of them is done with it.
                rivals.update(candidates if any(run.ends_with_next(one) for one in candidates) else ())
                decodes = run.cached[index] >= run.prefilled[index]
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
            seen.order[admission:] = sorted(seen.order[admission:])
            first = seen.before[admission] if admission < len(seen.before) else total
            lengths = [0, *(len(requests[index]) for index in seen.order[admission:-1])]
            seen.before[admission:] = [first + so_far for so_far in accumulate(lengths)]
        for index, event in fed.items():
            seen.events[index].append(event)
            run.fed[index] = call
            run.after(index)
        total += len(tokens)
    seen.lost |= any(run.made[index] < len(output) for index, output in enumerate(outputs))
    return seen


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

    def whose_beginning(self, tokens: list[int], later: Iterable[int], fed: Container[int]) -> int:
        """Whose prompt it is: the longest that is there. One that begins again brings its new tokens along.

        Args:
            tokens: what went through the model in this call, from the first token of the prompt on.
            later: what went through it in the calls after that.
            fed: those that this call has fed already, so it is none of them.
        """
        prompt = [tokens[0], *takewhile(lambda token: token not in self.firsts, chain(tokens[1:], later))]

        def rank(index: int) -> tuple[int, bool, int, bool, int]:
            again = index in self.admitted
            whole = _equal(self.prompts[index], prompt)
            return (
                whole,
                whole == len(self.prompts[index]),
                self._matching(index, tokens),
                not again,
                index if again else -index,
            )

        alike = [index for index, prompt in enumerate(self.prompts) if prompt[0] == tokens[0]]
        possible = [index for index in alike if index not in fed and self.known(index) > self.cached[index]]
        return max(possible or alike, key=rank)

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
