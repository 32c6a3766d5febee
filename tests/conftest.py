"""Settings for the property tests."""

from hypothesis import HealthCheck, settings

for name, examples in (("quick", 60), ("thorough", 2_000)):
    settings.register_profile(
        name, max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
    )
settings.load_profile("quick")
