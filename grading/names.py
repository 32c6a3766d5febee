"""Names of people and files: safe ids for the first, the name that was asked for behind a copy's."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable


def safe_id(name: str) -> str:
    """An id of ASCII letters, digits and `. _ @ + -` for any name; names that need no change are their own id."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^A-Za-z0-9._@+-]", "", re.sub(r"\s+", "_", plain.strip()))
    return plain.lstrip("._@+-")[:90] or f"student-{digest(name)}"


def distinct_ids(names: Iterable[str]) -> dict[str, str]:
    """name -> id, no two alike: the name that is its own id keeps it, others get a piece of their digest."""
    ids: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(set(names), key=lambda name: (safe_id(name) != name, name)):
        ids[name] = safe_id(name)
        if ids[name].lower() in taken:
            ids[name] += f"-{digest(name)}"
        taken.add(ids[name].lower())
    return ids


def digest(name: str) -> str:
    """Six letters that tell names apart."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:6]


def folded(text: str) -> str:
    """Letters and digits alone, small and without accents: `O'Brien, José` -> `obrienjose`."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in plain if letter.isalnum())


_COPY = re.compile(
    r"^(?:copy of |kopie von )+|(?:[ _]*\(\d+\)|-\d+| ?- ?copy(?: \(\d+\))?|_copy)+(?=\.\w+$)", re.IGNORECASE
)


def original_name(name: str) -> str:
    """A file's name without what browsers, systems and the LMS add to a copy's: `(1)`, `-1`, `Copy of`."""
    return _COPY.sub("", name.strip()).lower()


def version_of(name: str) -> int:
    """The number in a copy's name, 0 where there is none: an LMS counts resubmissions so."""
    found = re.search(r"(?:\((\d+)\)|-(\d+))(?=\.\w+$)", name)
    return int(found[1] or found[2]) if found else 0
