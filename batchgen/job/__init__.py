"""The composition root: everything is put together here, and only here."""

from batchgen.job.loading import LoadedEngine, open_engine
from batchgen.job.run import run_job
from batchgen.job.summary import Summary

__all__ = ["LoadedEngine", "Summary", "open_engine", "run_job"]
