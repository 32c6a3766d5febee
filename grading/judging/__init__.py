"""Judging: a submission's cleaned files -> a result, plain JSON; student code runs in the sandbox and nowhere else.

judging_pool    a class: many submissions at once, one process each
solution_first  the solution, before anybody
one_submission  the checks of one submission, through one worker -> its result
sandbox         starts that worker: sandbox_view (what it sees), control_group (what it may use), escapes (proof)
                a worker is a clean child of a warm parent, which has torch loaded and runs no student code:
                warm (asks), warm_parent (forks, inside the sandbox)
results         results on disk
"""
