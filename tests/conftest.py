"""Settings of the whole suite."""

from hypothesis import settings

# the same examples on every machine; no deadline, because test machines are shared
settings.register_profile("divopd", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("divopd")
