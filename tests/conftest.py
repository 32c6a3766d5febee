"""Settings for all tests."""

import os

from hypothesis import HealthCheck, settings

# Before torch is imported: these models are too small to gain from a second thread, and two OpenMP threads that
# wait for each other on a busy machine are many times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

for name, examples in (("quick", 60), ("thorough", 2_000)):
    settings.register_profile(
        name, max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
    )
settings.load_profile("quick")
