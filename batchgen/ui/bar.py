"""A progress bar for programs and notebooks."""

from __future__ import annotations

from tqdm.auto import tqdm

from batchgen.progress import Progress

__all__ = ["BarReporter"]


class BarReporter:
    """`progress.Reporter` as a bar of tqdm's: on standard error, or a widget of the notebook."""

    def __init__(self) -> None:
        self._bar = tqdm(desc="batchgen", unit="row", dynamic_ncols=True)

    def stage(self, text: str) -> None:
        """Write the stage before the bar."""
        self._bar.set_description(text)

    def update(self, progress: Progress) -> None:
        """Move the bar. It redraws at its own rate."""
        bar = self._bar
        if bar.total is None and progress.rows_total is not None:
            bar.reset(progress.rows_total)
        if progress.elapsed_s:
            rate = progress.output_tokens / progress.elapsed_s
            failed = {"failed": progress.rows_failed} if progress.rows_failed else {}
            bar.set_postfix({"tok/s": f"{rate:.0f}", "running": progress.running, **failed}, refresh=False)
        bar.update(progress.rows_done - bar.n)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
