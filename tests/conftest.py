"""Settings for all tests."""

import os

# Before torch is imported: these models are too small to gain from a second thread, and two OpenMP threads that
# wait for each other on a busy machine are many times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
