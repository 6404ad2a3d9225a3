"""Settings that all tests share."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ("tests.models", "tests.tiny_model")

# Chosen by `--hypothesis-profile`. Time is no measure on a shared machine.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("brief", _COMMON, max_examples=100, derandomize=True)
settings.register_profile("thorough", _COMMON, max_examples=10_000, derandomize=False)
settings.load_profile("brief")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--chat-requests FILE`: compare with transformers on these requests instead of the test's own."""
    parser.addoption("--chat-requests", default=None)
