"""`uv run python -m tests.engines`: run the bench, print what came of it, write docs/engines.md."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from checking.supervisor import Worker
from tests.engines.bench import KINDS, names_the_idea, problem, run_bench, stumbles, third_of
from tests.engines.table import TABLE, table


def main() -> int:
    """Returns 1 if an outcome is not what its definition says, or a message does not name the idea."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="names of engines; all by default")
    parser.add_argument("--third", type=int, metavar="N", help="every third engine of each kind, from the N-th on")
    parser.add_argument("--stumbles", action="store_true", help="each wrong engine, each case as the first that fails")
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), help="one kind of engines (may be repeated)")
    parser.add_argument("--jobs", type=int, help="processes; one a core by default")
    parser.add_argument("--runs", type=int, default=1, help="how often each right engine is run")
    parser.add_argument("--threads", type=int, action="append", help="torch threads of right engines; may be repeated")
    parser.add_argument("--messages", action="store_true", help="show each failure message")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE}")
    options = parser.parse_args()
    if options.third is not None:
        if options.only or options.write:
            parser.error("--third is a part of the whole: give no names, and do not --write it")
        options.only = [engine.name for engines in KINDS.values() for engine in third_of(engines, options.third)]
    if options.stumbles:
        return _stumbles(options.only)
    start, bad = time.monotonic(), 0
    outcomes = []
    kinds = options.kind or list(KINDS)
    for engine, outcome in run_bench(kinds, options.only, options.jobs, options.runs, tuple(options.threads or (1,))):
        outcomes.append((engine, outcome))
        wrong = problem(engine, outcome)
        named = names_the_idea(engine, outcome)
        bad += bool(wrong) or bool(engine.fails and not named)
        note = wrong or (f"caught by {outcome.caught}" if outcome.caught else "passed")
        if engine.fails and not named:
            note += f"; the message does not say {engine.says!r}"
        flag = "WRONG" if wrong else "ok"
        print(f"{flag:6}{outcome.kind:10}{engine.name:34}{outcome.seconds:6.1f} s  {outcome.run} {note}", flush=True)
        if options.messages or wrong or (engine.fails and not named):
            print("\n".join(f"        {line}" for line in outcome.message.splitlines()), flush=True)
        if options.write:
            TABLE.parent.mkdir(exist_ok=True)
            TABLE.write_text(table(outcomes), encoding="utf-8")
    print(table(outcomes).split("\n## ")[0])
    used = os.times()
    cpu = used.user + used.system + used.children_user + used.children_system
    print(f"{len(outcomes)} runs in {time.monotonic() - start:.0f} s, {cpu:.0f} s of CPU time")
    return 1 if bad else 0


def _stumbles(only: list[str]) -> int:
    with Worker() as worker, tempfile.TemporaryDirectory() as folder:
        found = []
        for engine in KINDS["wrong"]:
            if only and engine.name not in only:
                continue
            found += stumbles(engine, worker, Path(folder) / engine.name, (engine.fails.split(".")[0],))
            print(f"{engine.name}: {len(found)} so far", flush=True)
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
