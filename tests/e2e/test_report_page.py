"""The report's pages in a real browser: drawn, without errors or requests, readable everywhere."""

import base64
import os

import pytest

from browser_pipe import BROWSER, Browser
from report_examples import AUDITS, ODD, PICTURES, RUNS, published_marvell
from sweep_examples import sweep_records
from tacit import report
from tacit.fields import finite

NAMES = [*AUDITS, "runs", "run", "sweep"]
# The lowest contrast of any text on the page against what lies behind it (WCAG 2), and the text.
CONTRAST = """(() => {
  const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
  const solid = (c) => { const p = parse(c); return p.length === 3 || p[3] === 1; };
  const light = (c) => {
    const [r, g, b] = parse(c).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let worst = [99, ""];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const at = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !at.checkVisibility()) continue;
    if (at.closest("script, style, noscript, .hoverlayer")) continue;
    let back = at;
    while (back && !solid(getComputedStyle(back).backgroundColor)) back = back.parentElement;
    const look = getComputedStyle(at);
    const ink = light(at.closest("svg") ? look.fill : look.color);
    const paper = light(getComputedStyle(back || document.body).backgroundColor);
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < worst[0]) worst = [ratio, walker.currentNode.textContent.trim().slice(0, 40)];
  }
  return worst;
})()"""
PAPER = "getComputedStyle(document.body).backgroundColor"
CELLS = """[...document.querySelectorAll("[data-field]")].map((cell) =>
  [cell.dataset.field, cell.dataset.value === undefined ? null : Number(cell.dataset.value)])"""
# What is drawn in each figure, against what it was given.
DRAWN = """[...document.querySelectorAll("figure.plot")].map((box) => [
  box.querySelectorAll(".canvas svg .trace").length,
  JSON.parse(box.querySelector(":scope > script").textContent).data.length])"""
# The side of each picture as the browser read it, the level of its first pixel, and its words.
PICTURED = """[...document.querySelectorAll(".tiles img")].map((img) => {
  const canvas = document.createElement("canvas").getContext("2d");
  canvas.drawImage(img, 0, 0);
  return [img.naturalWidth, canvas.getImageData(0, 0, 1, 1).data[0], img.parentElement.innerText];
})"""
# Every plot is as wide as its place; a page on a new screen draws its plots again, a moment later.
FITTED = """[...document.querySelectorAll(".canvas")].every((canvas) =>
  canvas.querySelector(".main-svg").clientWidth
    === Math.floor(canvas.getBoundingClientRect().width))"""
HIDDEN = """[...document.querySelectorAll("table")].filter((table) =>
  !table.checkVisibility() || !table.getBoundingClientRect().height).length"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if BROWSER is None:
        missing = "no chromium on this machine: apt-get install chromium"
        if os.environ.get("TACIT_REQUIRE_BROWSER") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    started = Browser(tmp_path_factory.mktemp("browser"))
    try:
        yield started
    finally:
        started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    home = tmp_path_factory.mktemp("pages")
    found = {name: home / f"{place}.html" for place, name in enumerate(NAMES)}
    for name, record in AUDITS.items():
        report.audit_page(found[name], record(), pictures=PICTURES)
    report.runs_page(found["runs"], RUNS)
    report.runs_page(found["run"], {"mine": RUNS["marvell, full"]})
    report.sweep_page(found["sweep"], sweep_records(), title="<b>mine</b>")
    return found


@pytest.fixture(scope="module")
def opened(browser, pages, request):
    """One page at a time, loaded once: each has more than a megabyte."""
    with browser.page(pages[request.param]) as tab:
        yield request.param, tab


@pytest.fixture
def page(opened, pages):
    """Yield the open page on a wide light screen; it must cause no error and no request."""
    name, tab = opened
    tab.show()
    yield name, tab
    assert tab.faults() == []
    fetched = [url for url in tab.requests() if not url.startswith("data:image/png")]
    assert fetched == [pages[name].as_uri()]  # pictures lie in the page itself


def on(*names):
    return pytest.mark.parametrize("opened", names, indirect=True, scope="module")


def test_pages_are_small_enough_to_send(pages):
    sizes = {name: path.stat().st_size for name, path in pages.items()}
    assert {name: size for name, size in sizes.items() if size > 1_500_000} == {}


@on(*NAMES)
def test_every_plot_is_drawn_on_a_wide_screen_and_on_a_phone(page):
    name, tab = page
    drawn = tab.run(DRAWN)
    assert all(traces == given for traces, given in drawn)
    assert bool(drawn) == (name != "empty")
    assert tab.run("document.scrollingElement.scrollWidth <= innerWidth")
    tab.show(width=360)
    tab.until("[...document.querySelectorAll('.main-svg')].every((s) => s.clientWidth <= 360)")
    assert tab.run("innerWidth") == 360
    assert tab.run("document.scrollingElement.scrollWidth") <= 360
    assert tab.run(DRAWN) == drawn


@on("published marvell")
def test_an_audit_draws_what_its_record_holds(page):
    # The dots with their band and two limits; four attacks, two with intervals, and three
    # lines to compare with; two classes of four attacks; four curves and the diagonal.
    assert [traces for traces, _ in page[1].run(DRAWN)] == [4, 9, 2, 2, 2, 2, 5]
    assert page[1].run("document.querySelectorAll('.canvas .errorbar').length") == 5


@on(*AUDITS)
def test_the_numbers_on_the_page_are_those_of_the_record(page):
    name, tab = page
    record = finite(AUDITS[name]())
    assert tab.run("JSON.parse(document.getElementById('record').textContent)") == record
    cells = tab.run(CELLS)
    for field in ("leak_auc", "low", "high", "null_low", "null_high", "baseline", "bound"):
        found = [value for key, value in cells if key == field]
        rows = sorted(
            record["table"], key=lambda row: -(row["leak_auc"] or row["clustering_accuracy"] or 0)
        )
        assert found == [row[field] for row in rows], field


@on("unprotected")
def test_examples_are_shown_as_pictures_with_both_labels(page):
    found = page[1].run(PICTURED)
    assert [part[:2] for part in found] == [[8, 9 * i] for i in range(26)]
    assert found[0][2].split("\n") == ["true no", "found no"]
    assert found[24][2].split("\n") == ["true no", f"found {ODD}", "✗ wrong"]
    assert found[25][2].split("\n") == [f"true {ODD}", "found no class", "✗ wrong"]
    looks = "[...document.querySelectorAll('.tiles li')].map((li) => getComputedStyle(li)"
    frames = page[1].run(f"{looks}.borderTopStyle)")
    assert frames == ["solid"] * 24 + ["dashed"] * 2


@on("runs")
def test_the_numbers_of_runs_are_the_results(page):
    _, tab = page
    assert tab.run("JSON.parse(document.getElementById('record').textContent).runs") == RUNS
    found = [value for key, value in tab.run(CELLS) if key == "test.auc"]
    assert found == [run["test"]["auc"] for run in RUNS.values()]


@on("sweep")
def test_choosing_a_measure_moves_the_marks_of_a_trade_off(page):
    _, tab = page
    shown = "document.querySelector('.canvas').data.map((trace) => trace.x)"
    title = "document.querySelector('.xtitle').textContent"
    records = [record for record in sweep_records() if record["state"] == "done"]

    def expected(attack, kind):
        single = [r["results"]["leak"][attack][kind] for r in records]
        return sorted(round(value, 9) for value in single)

    def drawn():
        return sorted(round(value, 9) for trace in tab.run(shown)[1::2] for value in trace)

    assert drawn() == expected("cosine", "q95")
    pick = "document.querySelector('select[data-axis=x]')"
    names = tab.run(f"[...{pick}.options].map((option) => option.text)")
    wanted = names.index("leak AUC of norm, mean over batches")
    tab.run(f"{pick}.selectedIndex = {wanted}; {pick}.dispatchEvent(new Event('change'))")
    assert tab.run(title) == names[wanted]
    assert drawn() == expected("norm", "mean")
    text = tab.run("document.querySelector('.canvas').data[1].text[0]").replace("<br>", " ")
    parts = ("protect iso(t=1)", "seed 0", "batch_size 64")
    assert all(part in text for part in parts), text
    tab.run(f"{pick}.selectedIndex = 0; {pick}.dispatchEvent(new Event('change'))")


@on(*NAMES)
def test_text_is_readable_in_light_and_dark(page):
    _, tab = page
    tab.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    for scheme, paper in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 27)")):
        tab.show(scheme=scheme)
        assert tab.run(PAPER) == paper
        ratio, text = tab.run(CONTRAST)
        assert ratio >= 4.5, (scheme, text)
    tab.run("document.querySelectorAll('details').forEach((d) => { d.open = false; })")


@on("odd")
def test_markup_in_the_texts_of_an_audit_is_shown_as_text(page):
    _, tab = page
    assert tab.run("document.querySelectorAll('img, b').length") == 0
    shown = tab.run("document.querySelector('.ytick text').textContent")
    assert shown.startswith("<script>alert(")
    assert tab.heard("Page.javascriptDialogOpening") == []


@on("published marvell", "runs")
def test_print_shows_every_table_on_white(page):
    _, tab = page
    assert tab.run(HIDDEN) > 0  # folded away on the screen
    tab.show(scheme="dark", media="print")
    assert tab.run(HIDDEN) == 0
    assert tab.run(PAPER) == "rgb(255, 255, 255)"
    assert not tab.run("document.querySelector('nav').checkVisibility()")


@on("published marvell")
def test_printing_fits_the_plots_to_the_sheet_and_puts_the_page_back(page):
    widths = "[...document.querySelectorAll('.canvas .main-svg')].map((s) => s.clientWidth)"
    _, tab = page
    tab.show(media="")
    tab.until(FITTED)
    before = tab.run(widths)
    tab.run("window.dispatchEvent(new Event('beforeprint'))")
    assert max(tab.run(widths)) <= 660
    tab.run("window.dispatchEvent(new Event('afterprint'))")
    assert tab.run(widths) == before
    assert tab.run("document.querySelectorAll('details[open]').length") == 0
    assert base64.b64decode(tab.call("Page.printToPDF")["data"]).startswith(b"%PDF")


@on("published marvell")
def test_plots_follow_the_room_they_have_also_when_the_window_stays(page):
    _, tab = page
    tab.until(FITTED)
    tab.run("document.body.style.paddingRight = '300px'")
    tab.until(FITTED)


def test_a_page_without_scripts_still_has_its_numbers(browser, pages, tmp_path):
    html = pages["published marvell"].read_text()
    plain = tmp_path / "plain.html"
    plain.write_text(html.replace("script-src 'unsafe-inline'", "script-src 'none'"))
    with browser.page(plain) as tab:
        assert tab.run("document.querySelectorAll('.canvas svg').length") == 0
        rows = tab.run("document.querySelectorAll('[data-field=leak_auc]').length")
        assert rows == len(published_marvell()["table"])
