"""The report's pages as files: self-contained, escaped, exact, explicit about what is unknown."""

import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from report_examples import AUDITS, ODD, PICTURES, RUNS, published_marvell, results
from tacit import report
from tacit.cli import main
from tacit.errors import InputError
from tacit.fields import finite
from tacit.report import figures
from tacit.report.page import templates

PAPERS = ("#ffffff", "#14171b")  # the light and the dark page


class Page(HTMLParser):
    """The tags, texts and scripts of a page; nothing is run."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.texts, self.scripts, self._open = [], [], [], None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self._open = (tag, dict(attrs))
        self.tags.append(self._open)

    def handle_endtag(self, tag):
        self._open = None

    def handle_data(self, data):
        inside = self._open[0] if self._open else ""
        if inside == "script":
            self.scripts.append((self._open[1], data))
        elif inside != "style":
            self.texts.append(data)

    def all(self, tag, **wanted):
        return [a for t, a in self.tags if t == tag and wanted.items() <= a.items()]

    @property
    def text(self):
        return " ".join(self.texts)

    @property
    def record(self):
        return next(json.loads(d) for a, d in self.scripts if a.get("id") == "record")

    def values(self, field):
        cells = [a for t, a in self.tags if a.get("data-field") == field]
        return [None if (v := a.get("data-value")) is None else json.loads(v) for a in cells]


def worst_first(record):
    return sorted(
        finite(record)["table"],
        key=lambda row: -(row["leak_auc"] or row["clustering_accuracy"] or 0),
    )


def audit(tmp_path, record):
    path = tmp_path / "audit.html"
    report.audit_page(path, record)
    return Page(path)


def runs(tmp_path, found):
    path = tmp_path / "runs.html"
    report.runs_page(path, found)
    return Page(path)


@pytest.fixture(params=AUDITS)
def record(request):
    return AUDITS[request.param]()


def test_an_audit_page_contains_its_record_and_its_exact_numbers(tmp_path, record):
    page = audit(tmp_path, record)
    assert page.record == finite(record)
    for field in ("leak_auc", "low", "high", "null_low", "null_high", "baseline", "bound"):
        assert page.values(field) == [row[field] for row in worst_first(record)], field


def test_an_audit_page_has_every_column_the_worst_first(tmp_path):
    for record in (AUDITS["with inputs"](), AUDITS["inputs alone"]()):
        page = audit(tmp_path, record)
        for field in ("r2", "accuracy", "low", "high", "baseline", "gain"):
            found = page.values(f"input_{field}")
            assert found == [row[field] for row in record["inputs"]], field
        every = record["inputs_all_epochs"]
        assert page.values("input_all_epochs") == [
            row["r2"] if row["r2"] is not None else row["accuracy"] for row in every or ()
        ]
        assert record["inputs_about"]["verdict"] in page.text
        assert "judged on 5,000 others" in page.text
    assert "Only 800 rows" in page.text
    assert "What is claimed" not in page.text  # without labels nothing is said of them
    assert "What embeddings show" not in audit(tmp_path, published_marvell()).text


def test_three_axes_draw_what_was_measured():
    runs = {
        "none": {"label_leak": 1.0, "input_leak": 0.6, "auc": 0.78},
        "silent": {"label_leak": 0.5, "input_leak": 0.9, "auc": 0.77},
        ODD: {"label_leak": None, "input_leak": 0.1, "auc": 0.7},
        "not audited": {"label_leak": 0.6, "input_leak": None, "auc": 0.75},
    }
    plot = report.three_axes(runs)
    found = [(mark["x"], mark["y"], mark["text"]) for mark in plot.data]
    assert found == [([0.6], [0.78], ["1"]), ([0.9], [0.77], ["2"]), ([0.1], [0.7], ["3"])]
    sizes = [mark["marker"]["size"] for mark in plot.data]
    colours = [mark["marker"]["color"] for mark in plot.data]
    assert sizes[0] > sizes[1] == sizes[2]
    assert len(set(colours)) == 3  # one whose labels were not audited looks like no other
    assert "<script>" not in str(plot.data)
    assert [row[0] for row in plot.rows] == ["1: none", "2: silent", f"3: {ODD}", "4: not audited"]
    assert report.three_axes({}).data == []


def test_nothing_on_a_page_runs_or_loads_but_its_own_scripts(tmp_path, record):
    for page in (audit(tmp_path, record), runs(tmp_path, {ODD: RUNS["no protection"]})):
        kinds = [attrs.get("type") for attrs in page.all("script")]
        assert kinds.count(None) in (0, 2)  # the library and the page's own
        assert set(kinds) <= {None, "application/json"}
        assert not page.all("img")
        links = [a[name] for _, a in page.tags for name in ("src", "href") if name in a]
        assert all(link.startswith(("#", "data:")) for link in links)
        assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]


def test_an_audit_page_says_neither_safe_nor_nan(tmp_path, record):
    page = audit(tmp_path, record)
    assert not re.search(r"\bsafe", page.text, re.IGNORECASE)
    assert "nan" not in page.text.lower().split()


@pytest.mark.parametrize(
    ("state", "look", "words"),
    [
        ("leaks", "leaks", "Leaks"),
        ("within", "within", "Within the limits"),
        ("unknown", "unknown", "Unknown"),
        ("nothing found", "nothing", "Nothing found"),
        (None, "unknown", "Unknown"),
    ],
)
def test_the_verdict_comes_first_and_in_words(tmp_path, state, look, words):
    page = audit(tmp_path, {**published_marvell(), "state": state})
    assert page.all("div", id="verdict", **{"class": f"verdict {look}"})
    assert page.text.index(words) < page.text.index("energy ranks")


def test_tables_and_plots_are_labelled_for_screen_readers(tmp_path):
    for page in (audit(tmp_path, published_marvell()), runs(tmp_path, RUNS)):
        tables = page.all("table")
        assert len(page.all("caption")) == len(tables) > 3
        assert {a["scope"] for a in page.all("th")} == {"col", "row"}
        assert all(a["aria-label"] for a in page.all("div", role="img"))
        levels = [t for t, _ in page.tags if t in ("h1", "h2", "h3")]
        assert levels[0] == "h1"
        assert levels.count("h1") == 1
        targets = {a["href"].removeprefix("#") for a in page.all("a")}
        assert targets == {a["id"] for a in page.all("h2")}


def test_an_audit_page_states_data_protection_and_assumption(tmp_path):
    text = audit(tmp_path, published_marvell()).text
    for part in (
        "Label leakage audit",
        "3 damaged batches left out",
        "22.1% positives",
        "has absorbed label information",
        "rr(epsilon)",
        "needs labelled examples",
        "population level, one release",
        "a reference, not a bound",
    ):
        assert part in text, part
    bare = audit(tmp_path, AUDITS["empty"]()).text
    for part in ("There is no certificate", "No attack gave a leak AUC", "not measured"):
        assert part in bare, part


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"table": "rows"}, "table"),
        ({"table": [1]}, "table"),
        ({"table": [{"attack": "norm", "leak_auc": "0.5"}]}, "table[0].leak_auc"),
        ({"table": [{"attack": 7}]}, "table[0].attack"),
        ({"tape": []}, "tape"),
        ({"tape": {"embeddings": 1}}, "tape.embeddings"),
        ({"certificate": {"sum_kl": True}}, "certificate.sum_kl"),
        ({"curves": {"energy": {"fpr": [0, "x"]}}}, "curves.energy.fpr.1"),
        ({"histograms": {"energy": {"edges": [0, 1], "negatives": []}}}, "histograms.energy"),
        ({"advice": [None, 3]}, "advice.1"),
        ({"pictures": []}, "pictures"),
        ({"pictures": {"attacks": {"energy": {"drawn": 3}}}}, "pictures.attacks.energy.drawn"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, change, field):
    with pytest.raises(InputError, match=re.escape(field)):
        report.audit_page(tmp_path / "x.html", {**published_marvell(), **change}, pictures=PICTURES)


def test_a_curve_is_read_without_interpolation():
    from tacit.report.plots import Curve, roc

    steps = Curve(attack="a", fpr=[0.0, 0.0, 0.05, 0.5, 1.0], tpr=[0.0, 0.3, 0.4, 0.9, 1.0])
    assert roc([steps]).rows == [["a", 0.3, 0.3, 0.4, 0.4, 0.4, 0.9]]


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("paper", PAPERS)
def test_colours_of_plots_have_contrast_on_light_and_dark_pages(paper):
    for colour in [*(figures.style(i)[0] for i in range(7)), figures.GREY, figures.LIMIT]:
        low, high = sorted((luminance(colour), luminance(paper)))
        assert (high + 0.05) / (low + 0.05) >= 3, colour
    assert len({figures.style(i) for i in range(49)}) == 49


def test_a_runs_page_compares_runs(tmp_path):
    page = runs(tmp_path, RUNS)
    assert page.record == {"runs": RUNS}
    assert page.values("test.auc") == [found["test"]["auc"] for found in RUNS.values()]
    assert page.values("train.loss") == [found["train"]["loss"] for found in RUNS.values()]
    assert page.values("memory_leak") == [1.0, 0.78, 0.79]
    assert page.values("certificate.auc_bound") == [None, 0.717, 0.717]
    assert page.values("worst") == [1.0, 0.985, 0.79]
    attacks = list(RUNS["no protection"]["leak"])
    for field in ("pooled", "low", "high", "null_high", "mean", "q95"):
        wanted = [found["leak"][a][field] for a in attacks for found in RUNS.values()]
        added_up = [found["memory_leak"] for found in RUNS.values()]  # a number by itself
        wanted += added_up if field == "pooled" else [None] * len(RUNS)
        assert page.values(field) == wanted, field
    assert "Leak AUC of energy in each epoch" in page.text


def test_one_run_has_a_page_of_its_own(tmp_path):
    page = runs(tmp_path, {"mine": RUNS["no protection"]})
    assert "Training run: mine" in page.text
    assert "Leak AUC in each epoch" in page.text


def test_a_runs_page_names_mixed_data_interruptions_and_streams(tmp_path):
    stream = results("none", {"norm": 0.6}, 0.7)
    history = [{**stream["history"][0], "test": None}, *stream["history"][1:]]
    stream |= {"dataset": "criteo", "interrupted": True, "memory_leak": {"pooled": 0.8}}
    stream |= {"history": history}
    page = runs(tmp_path, {"a": stream, "b": RUNS["no protection"]})
    assert "different data sets" in page.text
    assert "Interrupted before the end: a." in page.text
    assert "Test AUC after each day" in page.text
    assert page.values("memory_leak") == [0.8, 1.0]
    bare = runs(tmp_path, {"bare": {"history": [], "train": {"loss": float("nan")}}})
    assert "nothing is known about leakage" in bare.text
    assert page.all("figure")
    assert not bare.all("figure")


def test_the_demo_page_has_its_figures_and_alarms(tmp_path):
    from tacit.cli import demo

    leaks = {attack: {"pooled": 0.9} for attack in demo.ATTACKS}
    found = {
        "protection": "none",
        "labels": None,
        "test": {"auc": 0.7},
        "leak": leaks,
        "memory_leak": 0.9,
        "releases": 10,
        "history": [{"test": {"auc": float("nan")}}, {"test": {"auc": 0.7}}],
        "inputs": [{"gain": 0.9}, {"gain": -0.1}, {"gain": None}],
    }
    silent = {**found, "releases": 0, "leak": {}, "memory_leak": None}
    demo._write(tmp_path / "demo.html", {**dict.fromkeys(demo.RUNS, found), demo.SILENT: silent})
    page = Page(tmp_path / "demo.html")
    assert len(page.all("figure")) == 3
    assert len(page.all("td", **{"class": "n bad"})) == 4 * (len(demo.RUNS) - 1)
    assert demo._shown(found) == "1/2"


@pytest.mark.parametrize("module", ["torch", "jinja2"])
def test_torch_and_jinja2_load_only_when_a_page_is_written(module):
    code = f"import sys, tacit, tacit.cli, tacit.report; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603


def test_templates_escape_and_refuse_what_is_not_given():
    from jinja2 import UndefinedError

    found = templates()
    for name in ("page.html", "blocks.html", "tradeoff.svg"):
        assert found.get_template(name)
    shown = found.from_string("{{ x }}").render(x=ODD)
    assert "<" not in shown
    assert html.unescape(shown) == ODD
    assert ODD not in found.from_string("{{ x | tojson }}").render(x={"name": ODD})
    with pytest.raises(UndefinedError):
        found.from_string("{{ missing }}").render()


def test_nan_and_infinity_are_shown_as_not_available(tmp_path):
    rows = [["a", float("nan")], ["b", float("inf")], ["c", 0.5]]
    blocks = [report.TableBlock(["name", "value"], rows, fields=["name", "value"])]
    report.write_page(tmp_path / "x.html", title="t", subtitle="s", blocks=blocks)
    page = Page(tmp_path / "x.html")
    assert page.values("value") == [None, None, 0.5]
    assert page.texts.count("–") == 2


def store(path, record):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record if isinstance(record, str) else json.dumps(record))
    return str(path)


def command(capsys, *words):
    code = main(["report", *words])
    return code, *capsys.readouterr()


def test_the_command_writes_pages_of_runs(capsys, tmp_path):
    first = store(tmp_path / "a" / "run" / "results.json", RUNS["no protection"])
    second = store(tmp_path / "b" / "run" / "results.json", RUNS["marvell, full"])
    out = str(tmp_path / "page.html")
    code, text, err = command(capsys, first, str(tmp_path / "b" / "run"), "--out", out, "--json")
    assert (code, err) == (0, "")
    assert json.loads(text) == {"page": out, "kind": "runs", "files": [first, second]}
    assert list(Page(tmp_path / "page.html").record["runs"]) == ["a/run", "b/run"]
    code, text, err = command(capsys, str(tmp_path / "a" / "run"), first, "--out", out)
    assert (code, text, err) == (0, f"The page is in {out}\n", "")
    assert list(Page(tmp_path / "page.html").record["runs"]) == ["run"]


def test_the_command_writes_the_page_of_an_audit(capsys, tmp_path):
    store(tmp_path / "audit.json", published_marvell())
    out = tmp_path / "page.html"
    code, text, _ = command(capsys, str(tmp_path), "--out", str(out), "--json")
    assert code == 0
    assert json.loads(text)["kind"] == "audit"
    assert Page(out).record["worst"] == "energy"


GOOD = RUNS["no protection"]


@pytest.mark.parametrize(
    ("files", "words", "parts"),
    [
        ({}, ["gone"], ["gone", "no such file or directory"]),
        ({"dir/x.txt": "x"}, ["dir"], ["dir", "no results.json", "tacit train --out"]),
        ({"r.json": "{"}, ["r.json"], ["r.json", "damaged"]),
        ({"r.json": "[]"}, ["r.json"], ["r.json", "neither"]),
        ({"r.json": "{}"}, ["r.json"], ["r.json", "neither"]),
        ({"r.json": {**GOOD, "format": 2}}, ["r.json"], ["format 2", "reads format 1"]),
        ({"r.json": {**GOOD, "format": None}}, ["r.json"], ["format None"]),
        ({"r.json": {**GOOD, "test": 1}}, ["r.json"], ["r.test", "an object"]),
        ({"r.json": GOOD}, ["r.json", "--out", "no/page.html"], ["--out", "does not exist"]),
        ({"r.json": GOOD}, ["r.json", "--out", "."], ["--out", "is a directory"]),
        (
            {"r.json": GOOD, "audit.json": published_marvell()},
            ["r.json", "audit.json"],
            ["audit.json", "name it alone"],
        ),
        ({}, [], ["RUN"]),
    ],
)
def test_mistakes_exit_2_with_one_line(capsys, tmp_path, monkeypatch, files, words, parts):
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        store(tmp_path / name, content)
    code, out, err = command(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert all(part in err for part in parts), err
    assert not list(tmp_path.glob("*.html"))
