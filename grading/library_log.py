"""What libraries have to say goes to a file: the console is for the class."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

LOGGERS = ("py.warnings", "traitlets", "nbgrader", "nbconvert", "sqlalchemy", "alembic")


@contextlib.contextmanager
def libraries_logged(path: Path) -> Iterator[None]:
    """Within it, Python's warnings and the messages of LOGGERS are added to the file at `path`, and shown nowhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger, logger.handlers, logger.propagate) for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        logging.captureWarnings(True)
        for logger in loggers:
            logger.handlers, logger.propagate = [handler], False
        try:
            yield
        finally:
            logging.captureWarnings(False)
            for logger, handlers, propagate in before:
                logger.handlers, logger.propagate = handlers, propagate
            handler.close()
