"""Running checks of a student's code, whatever they check: this package knows no milestone.

    check      -> supervisor -> worker -> probe               -> judge           -> message
    (check.py)    (starts and   |         (milestones/; calls    (milestones/;      (judging.py,
                   limits the   |          the student's code,    tokens.py,         messages.py)
                   worker)      |          calling.py,            evidence.py,
                                |          observe.py)            causes.py)
                                |         plain JSON comes back
                                `- a process of its own; the grader starts the same worker inside its sandbox,
                                   and everything from the worker to the plain JSON then happens there

The probe runs beside the student's code and judges nothing. The judge runs in the process that trusts nothing it is
told: it compares the evidence with what it computed itself (reference.py, by full recompute).
"""
