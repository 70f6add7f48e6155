"""The tables and pictures of GAFM's measurements, from the lines that ``gafm.py`` has written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tacit.report import Figure, Heading, Paragraph, SideBySide, write_page
from tacit.report.plots import component_plot, ratio_plot, repetitions

__all__ = ["write_pictures", "write_tables"]

Line = dict[str, Any]
NORM, MEAN, MEDIAN = "norm", "mean(hard=true)", "median(hard=true)"
# Test AUC, norm, mean, median, TVD of Table 1, and what C.1, B.1 and figure 4 are compared with.
TABLE_1 = {
    "spambase": (0.93, 0.56, 0.67, 0.66, 0.42),
    "credit": (0.65, 0.61, 0.63, 0.63, 0.31),
    "imdb": (0.90, 0.55, 0.67, 0.67, 0.36),
}
HEADER = (
    "runs",
    "seeds",
    "test AUC",
    "flipped",
    "norm",
    "mean",
    "median",
    "TVD",
    "own output",
    "memory",
    "CPU s",
)
TITLE = "## GAFM"
INTRO = """
`--model gafm_net --epochs 300 --batch-size 1028 --lr 1e-4
--weight-decay 0 --bins 0 --rare 0`, as in the paper's section 4.2; made by
`python benchmarks/gafm.py`. Mean and standard deviation over seeds. Test AUC is without its
sign; *flipped* says in how many seeds the generator had learnt the map upside down, which the
label party turns around by its training labels (`test.raw_auc` has the raw sign). Leak AUCs are
of single batches (sign-free, hard assignment as in the paper's Eq. 9 and 10), mean of the looks
in the last 30 epochs, in brackets over the whole run; TVD is of all released gradients of the
last epoch (cross-fitted, see `tacit.measure.tvd`; the paper does not say how it estimates). *Own
output* is the leak AUC of the feature party's embedding on held-out rows, *memory* what gradients
added up over all epochs tell. Rows in italics are the paper's Table 1.

"""


def write_tables(doc: Path, lines: Sequence[Line]) -> None:
    """Put the section into the document in place of the one that is there."""
    text = doc.read_text()
    start = text.find(f"\n{TITLE}\n")
    if start >= 0:
        end = text.find("\n## ", start + 4)
        head, tail = text[:start], text[end:] if end >= 0 else ""
    else:
        head, tail = text.rstrip("\n") + "\n", ""
    doc.write_text(head + "\n" + _section(lines).rstrip("\n") + "\n" + tail)


def _section(lines: Sequence[Line]) -> str:
    runs = [line for line in lines if "test" in line]
    table = [f"| {' | '.join(HEADER)} |", "|" + "---|" * len(HEADER)]
    for dataset, published in TABLE_1.items():
        for name, found in _grouped(runs, partial(_main, dataset=dataset)):
            table.append(_row(name, found))
        shown = [f"*{value:.2f}*" for value in published]
        table.append(
            f"| *{dataset}, paper* | *10* | {shown[0]} | | {' | '.join(shown[1:])} | | | |"
        )
    table += [_row(name, found) for name, found in _grouped(runs, _variant)]
    return f"{TITLE}\n{INTRO}" + "\n".join(table) + "\n" + _choice(lines)


def _main(values: Line, dataset: str) -> str | None:
    """Name a run of Table 1, None for any other."""
    if values["dataset"] != dataset or values.keys() - {"dataset", "objective", "seed", "rows"}:
        return None
    wanted = "gafm(delta=0.05)" if dataset == "spambase" else "gafm(delta=0.1)"
    if values.get("objective") != wanted:
        return None
    part = f", {values['rows']} rows" if "rows" in values else ""
    return f"{dataset}{part}, `{wanted}`"


def _variant(values: Line) -> str | None:
    if values["dataset"] != "spambase" or _main(values, "spambase"):
        return None
    words = [f"`{values.get('objective', 'bce')}`"]
    if values.get("protect", "none") != "none":
        words.append(f"`{values['protect']}`")
    if "parties" in values:
        words.append(f"{values['parties']} feature parties")
    return f"spambase, {', '.join(words)}"


def _grouped(
    runs: Sequence[Line], name: Callable[[Line], str | None]
) -> Iterable[tuple[str, list[Line]]]:
    found: dict[str, list[Line]] = {}
    for line in runs:
        called = name(line["values"])
        if called is not None:
            found.setdefault(called, []).append(line)
    return found.items()


def _row(name: str, found: Sequence[Line]) -> str:
    turned = [line["objective_record"].get("flipped") for line in found]
    flipped = "" if None in turned else f"{sum(turned)} of {len(found)}"
    cells = [
        name,
        str(len(found)),
        _spread([_sign_free(line) for line in found]),
        flipped,
        *(_leak(found, attack) for attack in (NORM, MEAN, MEDIAN)),
        _spread([line["tvd"]["whole"] for line in found]),
        _spread([line["embedding_leak"] for line in found]),
        _spread([line["memory_leak"] for line in found]),
        f"{np.mean([line['cpu_seconds'] for line in found]):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _sign_free(line: Line) -> float:
    auc = float(line["test"]["auc"])
    return max(auc, 1 - auc)


def _leak(found: Sequence[Line], attack: str) -> str:
    last = _spread([line["leak"][attack]["last"] for line in found])
    return f"{last} ({np.mean([line['leak'][attack]['all'] for line in found]):.2f})"


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.3f}"
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


def _choice(lines: Sequence[Line]) -> str:
    made = [line["choice"] for line in lines if line["group"] == "choice"]
    if not made:
        return ""
    rows = [
        f"| {row['delta']:g} | {row['ratio']:.3f} | {row['train_auc']:.3f} |"
        for row in made[-1]["rows"]
    ]
    share, repeats = made[-1]["share"], made[-1]["repeats"]
    return (
        f"\n`gafm(delta=auto)` on Spambase, {share:.0%} of the rows, {repeats} repetitions each "
        f"(appendix C.2), chose {made[-1]['delta']:g}; the paper 0.05:\n\n"
        "| delta | leak AUC / training AUC | training AUC |\n|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def write_pictures(path: Path, lines: Sequence[Line]) -> None:
    """Write figures 2, B.1, B.2 (components), B.3 (repetitions) and C.1 (ratio over delta)."""
    runs = [line for line in lines if "test" in line]
    blocks: list[Any] = []
    for line in runs:
        drawn = line["components"]
        name = _main(line["values"], line["values"]["dataset"]) or _variant(line["values"])
        if drawn is None or line["group"] not in ("table", "baseline"):
            continue
        blocks.append(Heading(f"Prediction against gradient: {str(name).replace('`', '')}"))
        blocks.append(
            SideBySide(
                [
                    Figure(component_plot(part, drawn["prediction"], values, drawn["label"]))
                    for part, values in drawn["gradients"].items()
                ]
            )
        )
        words = ", ".join(f"{part} {value:.2f}" for part, value in drawn["tvd"].items())
        blocks.append(Paragraph(f"Total variation between the classes: {words}."))
    blocks += [Heading("Leakage over repetitions, Spambase"), SideBySide(list(_repeated(runs)))]
    blocks += _ratios(lines, runs)
    write_page(
        path,
        title="GAFM, measured",
        subtitle="Figures 2, B.1 to B.3 and C.1 of its paper.",
        blocks=blocks,
    )


def _repeated(runs: Sequence[Line]) -> Iterable[Figure]:
    def named(values: Line) -> str | None:
        return _main(values, "spambase") or _variant(values)

    kept = [line for line in runs if line["group"] in ("table", "baseline", "after")]
    for attack in (NORM, MEAN, MEDIAN):
        groups = {
            name.removeprefix("spambase, ").replace("`", ""): [
                (_sign_free(line), line["leak"][attack]["last"]) for line in found
            ]
            for name, found in _grouped(kept, named)
        }
        yield Figure(repetitions(groups, title=f"{attack} attack", attack=attack))


def _ratios(lines: Sequence[Line], runs: Sequence[Line]) -> list[Any]:
    """Return the ratio over delta on all rows, and on the subset where it was measured."""
    blocks: list[Any] = []
    whole: dict[str, dict[float, list[float]]] = {}
    for line in runs:
        values = line["values"]
        if line["group"] == "delta" or _main(values, "spambase"):
            delta = float(values["objective"].removeprefix("gafm(delta=").removesuffix(")"))
            for attack in (NORM, MEAN, MEDIAN):
                ratio = line["leak"][attack]["all"] / line.get("train_auc", _sign_free(line))
                whole.setdefault(attack, {}).setdefault(delta, []).append(ratio)
    means = {
        name: {delta: float(np.mean(found)) for delta, found in values.items()}
        for name, values in whole.items()
    }
    if means:
        blocks.append(Figure(ratio_plot(means, title="All rows of Spambase")))
    for line in lines:
        if line["group"] == "choice":
            rows = line["choice"]["rows"]
            ratios = {
                attack: {row["delta"]: row["ratios"][attack] for row in rows}
                for attack in (NORM, MEAN, MEDIAN)
            }
            chosen = line["choice"]["delta"]
            blocks.append(Figure(ratio_plot(ratios, title="A tenth of the rows", chosen=chosen)))
    return [Heading("Leakage for its worth over delta"), *blocks] if blocks else []
