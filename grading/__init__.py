"""The instructor's tools. A student's checkout has no such folder, and nothing in the student's half needs it.

A submission's way through `course grade`, read downwards; each step knows those above it, and none below:

    assignments     which files count, which checks judge them, and their points; folders says where all is written
    intake/         what a student handed in -> Submission, the files that were asked for
    judging/        Submission -> result, plain JSON: the checks, around a worker in the sandbox
    gradebook       results -> nbgrader's gradebook, by nbgrader itself
    report/         results -> a page a student, a page for the class, grades.csv
    class_run       all of it, for a class

`release/` is the other way, from `solutions/` to what students receive. At the edge, imported by nobody here:
`instructor_commands` (sub-commands of `course`), `nbgrader_hooks` (plugged in by nbgrader_config.py), `gradescope` (the
autograder's zip, and what runs in it).
"""
