"""What `nbgrader_config.py` plugs into nbgrader."""

from pathlib import Path

from nbgrader.preprocessors import NbGraderPreprocessor

from grading.release import check_cells, module_stubs


class StripModules(NbGraderPreprocessor):
    """Turn the modules that nbgrader copied into stubs, and take everything else away that is no student's.

    nbgrader copies every file of an assignment as it stands, solutions and hidden checks included
    (github.com/jupyter/nbgrader/issues/1237). This runs inside `generate_assignment`, formgrader's button too. It is
    a preprocessor and not one of nbgrader's hooks, because a hook that fails is logged and the release goes on; when
    this fails, nbgrader removes the whole release folder.
    """

    def preprocess(self, nb, resources):
        converter = self.parent.parent  # the exporter's, which knows the folders
        assignment, student = resources["nbgrader"]["assignment"], resources["nbgrader"]["student"]
        source = Path(converter._format_source(assignment, student))
        destination = Path(converter._format_dest(assignment, student))
        check_cells(nb, f"{source / resources['nbgrader']['notebook']}.ipynb")
        stubs = module_stubs(source)
        for path in sorted(destination.rglob("*"), reverse=True):  # a folder after what is in it
            if path.is_dir():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path.suffix != ".ipynb" and path.relative_to(destination).as_posix() not in stubs:
                path.unlink()
        for name, text in stubs.items():
            (destination / name).write_text(text, encoding="utf-8", newline="\n")
        return nb, resources
