"""The exceptions that end a job, and the exit code each one means.

Exceptions are for what ends the job. A fault of one row is never an exception outside the room that found it: it
becomes a result row with an error (`batchgen.protocol.faults.RowFault`).

    BatchgenError                    1
    ├── UsageError                   2   an option or its value cannot be used
    │   ├── ModelNotFoundError       2   no such alias, folder, file or hub id
    │   ├── UnsupportedModelError    2   the architecture or quantisation is not one we run
    │   ├── OutputMismatchError      2   the output folder belongs to another run
    │   └── EngineBusyError          2   another run of the engine is not over
    ├── InvalidInputError            4   the input is invalid under --strict
    ├── OutOfResourcesError          5   disk full, not enough memory; progress is kept
    ├── HubUnavailableError         69   the hub could not take the results; they are kept
    ├── OutputLockedError           75   another run holds the output
    └── StalledError               124   nothing moved for --stall-timeout; progress is kept
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BatchgenError",
    "EngineBusyError",
    "HubUnavailableError",
    "InvalidInputError",
    "ModelNotFoundError",
    "OutOfResourcesError",
    "OutputLockedError",
    "OutputMismatchError",
    "StalledError",
    "UnsupportedModelError",
    "UsageError",
]


class BatchgenError(Exception):
    """Base of all errors that end a job. The message says what was found, where, and what to do about it."""

    exit_code: ClassVar[int] = 1


class UsageError(BatchgenError):
    """An option, an environment variable or a configuration value cannot be used."""

    exit_code = 2


class ModelNotFoundError(UsageError):
    """A model reference names nothing that can be loaded."""


class UnsupportedModelError(UsageError):
    """The checkpoint was found, but its architecture, quantisation or format is not one that batchgen runs."""


class OutputMismatchError(UsageError):
    """The output exists and was written by a run with another model or other settings."""


class EngineBusyError(UsageError):
    """An `Engine` computes one run at a time, and this is not its turn."""


class InvalidInputError(BatchgenError):
    """The input has faulty lines and `--strict` was asked for."""

    exit_code = 4


class OutOfResourcesError(BatchgenError):
    """The disk is full or memory is too small. What was finished is kept."""

    exit_code = 5


class HubUnavailableError(BatchgenError):
    """The hub could not take the results, which are kept: the same command tries again. EX_UNAVAILABLE."""

    exit_code = 69


class OutputLockedError(BatchgenError):
    """Another run is writing to the same output."""

    exit_code = 75


class StalledError(BatchgenError):
    """Nothing moved for `--stall-timeout`. The code is that of timeout(1)."""

    exit_code = 124
