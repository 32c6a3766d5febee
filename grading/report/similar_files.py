"""Files that share much code: a place to look for a person."""

from pathlib import Path

import numpy as np

from ai_playground.checkout import repo_root
from grading.assignments import place, released

SIMILAR = 0.6  # the share of a file in another one from which on a pair is shown


def similarities(folders: dict[str, Path], assignment: str) -> list[tuple[float, str, str, str]]:
    """Pairs of students whose files of one name share much code: (share, file, student, student), highest first.

    By copydetect (winnowing, Schleimer et al., SIGMOD 2003); what stands in the released stubs does not count.
    """
    import copydetect

    found = []
    for name in (name for name in released(assignment) if name.endswith(".py")):
        owner = {str(path): student for student, folder in folders.items() if (path := folder / name).is_file()}
        detector = copydetect.CopyDetector(autoopen=False, silent=True)
        detector.add_file(str(repo_root() / place(assignment, name)), "boilerplate")
        for path in owner:
            detector.add_file(path)
        if len(owner) > 1:
            detector.run()
            # Not its list of copied code, which holds both texts of each pair: a large class would not fit in memory.
            shares = np.triu(detector.similarity_matrix.max(axis=2), 1)
            students = [owner[path] for path in detector.test_files]
            found += [
                (float(shares[i, j]), name, *sorted((students[i], students[j])))
                for i, j in np.argwhere(shares > SIMILAR)
            ]
    return sorted(found, reverse=True)
