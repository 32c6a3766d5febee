"""What students receive, read upwards: `course release`, with --out DIR as a repository of its own.

student_half        what of the repository students get, written elsewhere; leaks searches it
student_tree        the generated tree, kept fresh in assignments/ and projects/
student_notebooks   notebooks through nbgrader's preprocessors
stubs               which files of solutions/ go out, and modules as stubs
markers             nbgrader's markers in modules: from a solution to a stub
release_files       reading and writing files of a checkout
"""
