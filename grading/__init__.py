"""The instructor's tools. A student's checkout has no such folder, and nothing in the student's half needs it.

commands.py         the instructor's sub-commands of `course`
release.py          what students receive: the generated tree, the student's half, the search for leaks
markers.py          nbgrader's markers in modules: from a solution to a stub
nbgrader_hooks.py   what nbgrader_config.py plugs into nbgrader
"""
