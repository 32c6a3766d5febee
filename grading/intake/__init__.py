"""What students handed in -> the files that they were asked to edit, and nothing else of it.

A submission comes as a folder, a zip or a tar, laid out in any way: the whole repository, one folder, loose files.
Files are found by their names. Nothing is unpacked: the wanted members are read, up to a cap, and the rest is never
touched, so that links, devices, paths with `..` and archives that grow have no effect. Of a notebook only the answer
cells are taken, by their `grade_id`, into a copy of the released one.

    inbox           who handed in
    take_in         one student's folder or archive -> Submission; archives reads it, notebook_cells its notebooks
    submission      the cleaned files
"""
