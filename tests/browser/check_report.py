"""Reports in a real browser: `make test-report`.

Each check opens the page anew. Whatever it does, the page must say nothing on the console, ask for nothing but itself,
and never open a dialog.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Dialog, Page, sync_playwright

from batchgen.ui.report import render
from tests.reports import HOSTILE, a_report, row, some_run

CONTRAST = """
() => {
  const channels = (color) => {
    const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const linear = (value) => (value <= 10 ? value / 3294 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = ({ r, g, b }) => {
    const [x, y, z] = [r, g, b].map(linear);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = channels(getComputedStyle(at).backgroundColor);
      if (color.a === 1) return color;
    }
    return { r: 255, g: 255, b: 255 };
  };
  const faults = [];
  for (const element of document.querySelectorAll("body *")) {
    const worded = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!worded || !element.checkVisibility()) continue;
    const [a, b] = [light(channels(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) faults.push(`${element.tagName}.${element.className} ${ratio.toFixed(2)}`);
  }
  return faults;
}
"""
"""Elements whose words stand out too little from what is behind them, by WCAG 2's formula for level AA."""


class Reports:
    """Pages on the disk, and a browser that opens them."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser = browser
        rows = [row(number, f"answer number {number} of many. " * 20) for number in range(1, 41)]
        rows += [row(41, "a needle in the hay"), row(42, "the message", code="invalid_value", custom_id="broken")]
        self.usual = self._write(folder / "usual.html", render(a_report(rows, some_run(), some_run(9.0, 1))))
        rows = [row(number, text, custom_id=text, reason=text) for number, text in enumerate(HOSTILE, 1)]
        hostile = a_report(rows, some_run(), settings=dict(zip(HOSTILE, HOSTILE, strict=True)))
        self.hostile = self._write(folder / "hostile.html", render(hostile))
        self.bare = self._write(folder / "bare.html", render(a_report([])))

    @staticmethod
    def _write(path: Path, text: str) -> str:
        path.write_text(text, encoding="utf-8")
        return path.as_uri()

    @contextmanager
    def opened(self, address: str, *, width: int = 1280, refusals: int = 0, **context: Any) -> Iterator[Page]:
        """The page, watched. `refusals`: of its policy, which the console tells."""
        said: list[str] = []

        def refuse(dialog: Dialog) -> None:
            said.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        holder = self._browser.new_context(viewport={"width": width, "height": 900}, **context)
        page = holder.new_page()
        page.on("console", lambda message: said.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("dialog", refuse)
        page.on("request", lambda request: said.append(f"request: {request.url}"))
        page.goto(address)
        yield page
        assert said.pop(0) == f"request: {address}"
        assert [words for words in said if "Content Security Policy" not in words] == []
        assert len(said) == refusals
        holder.close()


def seen(page: Page) -> list[str]:
    """The custom_ids of the rows that are shown, from top to bottom."""
    cells: list[str] = page.locator("#table tbody tr:visible .c-custom_id").all_inner_texts()
    return [text.strip() for text in cells]


def searches(reports: Reports) -> None:
    with reports.opened(reports.usual) as page:
        assert len(seen(page)) == 42
        page.get_by_role("searchbox", name="Search").fill("HAY needle")
        assert seen(page) == ["id-41"]
        assert page.locator("#found").inner_text() == "1 of 42 shown"
        page.get_by_role("searchbox", name="Search").fill("")
        page.get_by_label("Show").select_option("failed")
        assert seen(page) == ["broken"]
        page.get_by_label("Show").select_option("answered")
        assert len(seen(page)) == 41


def sorts(reports: Reports) -> None:
    with reports.opened(reports.usual) as page:
        head = page.get_by_role("columnheader", name="line", exact=True)
        page.get_by_role("button", name="line", exact=True).click()
        assert head.get_attribute("aria-sort") == "ascending"
        assert seen(page)[:3] == ["id-1", "id-2", "id-3"]
        page.get_by_role("button", name="line", exact=True).press("Enter")
        assert head.get_attribute("aria-sort") == "descending"
        assert seen(page)[:3] == ["broken", "id-41", "id-40"]
        page.get_by_role("button", name="custom_id").click()
        assert head.get_attribute("aria-sort") is None
        assert seen(page)[:3] == ["broken", "id-1", "id-2"]
        page.get_by_role("button", name="prompt").click()
        assert seen(page)[0] == "broken", "a row without a length comes first"


def texts_open(reports: Reports) -> None:
    with reports.opened(reports.usual) as page:
        first = page.locator("#table tbody tr").first
        assert not first.locator(".full").is_visible()
        first.locator("summary").focus()
        page.keyboard.press("Enter")
        assert first.locator(".full").inner_text().startswith("answer number 1 of many.")
        assert first.get_by_text("Show less").is_visible()


def charts_answer(reports: Reports) -> None:
    with reports.opened(reports.usual) as page:
        figure, plot = page.locator("#throughput"), page.locator("#throughput svg[data-pointed]")
        when, value = figure.locator(".when"), figure.locator(".k1 b")
        mean = value.inner_text()
        assert when.inner_text() == "mean"
        plot.focus()
        page.keyboard.press("ArrowRight")
        first = when.inner_text()
        assert first.startswith("run 1 0:00")
        page.keyboard.press("ArrowRight")
        assert when.inner_text() != first
        assert figure.locator(".legend").get_attribute("aria-live") == "polite"
        page.keyboard.press("Tab")
        assert (when.inner_text(), value.inner_text()) == ("mean", mean)
        box = plot.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] / 2)
        assert when.inner_text().startswith("run 2")
        page.mouse.move(0, 0)
        assert when.inner_text() == "mean"
        figure.locator("details summary").click()
        assert figure.get_by_role("table").get_by_role("row").count() > 10


def themes_change(reports: Reports) -> None:
    def background(page: Page) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    found = []
    for scheme in ("light", "dark"):
        with reports.opened(reports.usual, color_scheme=scheme) as page:
            button = page.get_by_role("button", name="Dark")
            assert button.get_attribute("aria-pressed") == str(scheme == "dark").lower()
            before = background(page)
            button.click()
            assert button.get_attribute("aria-pressed") == str(scheme != "dark").lower()
            found.append((before, background(page)))
    assert found[0] == found[1][::-1]
    assert found[0][0] != found[0][1]


def words_stand_out(reports: Reports) -> None:
    for scheme in ("light", "dark"):
        with reports.opened(reports.usual, color_scheme=scheme) as page:
            faults = page.evaluate(CONTRAST)
            assert faults == [], faults


def nothing_sticks_out(reports: Reports) -> None:
    for address in (reports.usual, reports.hostile, reports.bare):
        for width in (320, 390, 768, 1280, 2200):
            with reports.opened(address, width=width) as page:
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (address, width)
                narrow = page.evaluate(
                    "[...document.querySelectorAll('.full')].filter((e) => e.clientWidth < 0).length"
                )
                assert narrow == 0


def hostile_texts_are_texts(reports: Reports) -> None:
    with reports.opened(reports.hostile) as page:
        assert page.evaluate("document.scripts.length") == 1
        assert page.locator("h1").count() == page.locator("#table").count() == 1
        assert page.locator("body [onload], body [onmouseover], body [onerror]").count() == 0
        shown = page.locator("#table tbody tr .c-text").all_text_contents()
        assert [text.strip() for text in shown[:2]] == list(HOSTILE[:2])
    with reports.opened(reports.hostile, refusals=1) as page:
        # Not even one that got in would run.
        page.evaluate("document.querySelector('h1').setAttribute('onclick', 'document.title = 1')")
        page.locator("h1").click()
        assert "batchgen report" in page.title()


def reads_without_scripts(reports: Reports) -> None:
    with reports.opened(reports.usual, java_script_enabled=False) as page:
        assert len(seen(page)) == 42
        assert not page.locator("#tools").is_visible()
        assert not page.locator("#theme").is_visible()


def prints(reports: Reports) -> None:
    with reports.opened(reports.usual, color_scheme="dark") as page:
        page.emulate_media(media="print")
        assert not page.locator("#tools").is_visible()
        assert len(seen(page)) == 40
        assert (
            page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor") == "rgb(255, 255, 255)"
        )
        assert page.pdf(format="A4").startswith(b"%PDF")


def keyboard_reaches_all(reports: Reports) -> None:
    with reports.opened(reports.usual) as page:
        page.keyboard.press("Tab")
        assert page.locator(":focus").inner_text() == "Skip to the rows"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "rows"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "search"


CHECKS: tuple[Callable[[Reports], None], ...] = (
    searches,
    sorts,
    texts_open,
    charts_answer,
    themes_change,
    words_stand_out,
    nothing_sticks_out,
    hostile_texts_are_texts,
    reads_without_scripts,
    prints,
    keyboard_reaches_all,
)


def main() -> None:
    """Run all checks."""
    browser_path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if browser_path is None:
        sys.exit("no browser: install Debian's chromium-headless-shell or chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        # In a container there is often no user namespace for the browser's sandbox; it opens our own files alone.
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        reports = Reports(browser, Path(folder))
        for check in CHECKS:
            check(reports)
            print(f"ok  {check.__name__.replace('_', ' ')}")
        print(f"{len(CHECKS)} checks in {browser.browser_type.name} {browser.version}")
        browser.close()


if __name__ == "__main__":
    main()
