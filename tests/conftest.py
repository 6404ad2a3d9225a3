"""Settings that all tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ("tests.models", "tests.tiny_model")

# Triton reads it when it is imported, which transformers does. Without a GPU kernels run in its interpreter.
if "BATCHGEN_TEST_DEVICE" not in os.environ:
    os.environ["TRITON_INTERPRET"] = "1"

# Chosen by `--hypothesis-profile`. Time is no measure on a shared machine.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("brief", _COMMON, max_examples=100, derandomize=True)
settings.register_profile("thorough", _COMMON, max_examples=10_000, derandomize=False)
settings.load_profile("brief")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of single tests."""
    parser.addoption("--chat-requests", default=None, help="compare with transformers on these requests instead")
    parser.addoption("--kernel-cases", type=int, default=1, help="random cases for each Triton kernel")
    parser.addoption("--shells", default="bash", help="shells to complete in, such as bash,zsh,fish")
