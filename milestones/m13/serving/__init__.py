"""The judges of `serve`: its outputs, its report, and what went through the model while it ran."""
