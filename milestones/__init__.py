"""What "done" means: a card (.md) and its checks (.py) for each milestone.

A check is three things (see `harness.py`): the probe calls the student's engine and returns plain JSON, the
cases are its inputs, and the judge compares what came back with what it computed itself.
"""
