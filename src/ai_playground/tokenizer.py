"""Byte-level BPE on the Hugging Face `tokenizers` package."""

from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

BOS, EOS = "<|bos|>", "<|eos|>"


class Tokenizer:
    """Text to token ids and back.

    `encode` puts what the model expects at a beginning (for our own models `<|bos|>`) before the text, since
    every training story started that way; `decode` leaves special tokens out.
    """

    def __init__(self, backend: tokenizers.Tokenizer, rows: int = 0) -> None:
        """Wrap a tokenizer.

        Args:
            backend: what does the work.
            rows: ids that the model can write, if they are more than there are tokens: many models pad their
                vocabulary to a round number. Such an id decodes to nothing.
        """
        self.backend = backend
        self.rows = rows

    @property
    def vocab_size(self) -> int:
        """Number of token ids, special tokens included."""
        return self.backend.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text that begins a document."""
        return self.backend.encode(text).ids

    def encode_as_written(self, text: str) -> list[int]:
        """Token ids of a text that has its special tokens in it, as a rendered chat template does: none is added."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """`encode` of each text, on all cores."""
        return [encoding.ids for encoding in self.backend.encode_batch(texts)]

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, without special tokens.

        Raises:
            ValueError: an id that the model cannot have written (the backend would skip it without a word).
        """
        limit = max(self.vocab_size, self.rows)
        for position, token in enumerate(ids):
            if not 0 <= token < limit:
                raise ValueError(f"token id {token} at position {position} is outside [0, {limit})")
        return self.backend.decode(ids, skip_special_tokens=True)

    def token_id(self, token: str) -> int | None:
        """The id of one token, such as `EOS`; None if the vocabulary lacks it."""
        return self.backend.token_to_id(token)

    def save(self, path: Path) -> None:
        """Write `tokenizer.json`."""
        self.backend.save(str(path))

    @classmethod
    def from_file(cls, path: Path, rows: int = 0) -> "Tokenizer":
        """Read a `tokenizer.json`; `rows` is that of `Tokenizer`.

        Raises:
            ValueError: the file is missing or is not one.
        """
        if not path.is_file():
            raise ValueError(f"{path} does not exist: a workspace needs the tokenizer its model was trained with")
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)), rows)
        except Exception as error:  # the backend raises bare Exception
            raise ValueError(f"{path} is not a tokenizer.json: {error}") from None

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "Tokenizer":
        """Learn byte-level BPE merges (Sennrich et al., 2016) from texts; any UTF-8 text can then be encoded."""
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[BOS, EOS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        backend.train_from_iterator(texts, trainer)
        backend.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, backend.token_to_id(BOS))]
        )
        return cls(backend)
