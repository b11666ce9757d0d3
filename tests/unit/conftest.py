"""How Hypothesis works here: the same examples on every machine and every run, nothing kept, nothing timed."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "dropbatch",
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("dropbatch")
