"""The plots of GAFM, and the part of a run's page that shows them."""

from report_examples import ODD
from tacit.report import runs_page
from tacit.report.plots import component_plot, ratio_plot, repetitions


def record(**more):
    return {
        "format": 1,
        "dataset": "spambase",
        "model": "gafm_net",
        "protection": "none",
        "objective": "gafm",
        "epochs": 1,
        "steps": 3,
        "seconds": 1.0,
        "train": {"loss": 0.7},
        "test": {"auc": 0.93, "raw_auc": 0.07},
        "leak": {},
        "memory_leak": 0.9,
        "history": [],
        "embedding_leak": 0.9512,
        "objective_record": {"claim": f"empirical only {ODD}", "flipped": True},
        "components": {
            "label": [0, 1, 1],
            "prediction": [0.1, 0.9, 0.8],
            "gradients": {
                "whole": [0.3, -0.3, 0.1],
                "gan": [0.1, 0.2, 0.3],
                "penalty": [0.2, -0.5, -0.2],
            },
            "tvd": {"whole": 0.3333, "gan": 0.6161, "penalty": None},
            "joint_leak": 0.9876,
        },
        **more,
    }


def test_each_class_is_a_trace_with_its_own_points():
    plot = component_plot("gan", [0.1, 0.9, 0.8], [1.0, 2.0, 3.0], [0, 1, 1])
    negatives, positives = plot.data
    assert (negatives["x"], negatives["y"]) == ([1.0], [0.1])
    assert (positives["x"], positives["y"]) == ([2.0, 3.0], [0.9, 0.8])


def test_repetitions_and_ratios_keep_every_number():
    plot = repetitions(
        {"gafm": [(0.93, 0.6), (0.94, 0.7)], ODD: [(0.9, 1.0)]}, title="t", attack="norm"
    )
    assert plot.rows == [["gafm", 0.93, 0.6], ["gafm", 0.94, 0.7], [ODD, 0.9, 1.0]]
    assert "<script" not in plot.data[1]["name"]
    drawn = ratio_plot({"norm": {0.1: 0.7, 0.05: 0.6}, "mean": {0.05: 0.8}}, title="t", chosen=0.05)
    assert drawn.data[0]["x"] == [0.05, 0.1]
    assert drawn.rows == [[0.05, 0.6, 0.8], [0.1, 0.7, None]]
    assert drawn.layout["shapes"][0]["x0"] == 0.05
    assert "chosen delta is 0.05" in drawn.label


def test_the_page_of_a_run_shows_gradient_parts_and_embedding_leak(tmp_path):
    chosen = {
        "delta": 0.1,
        "rows": [{"delta": 0.1, "ratios": {"norm": 0.7}}, {"delta": 0.2, "ratios": {"norm": 0.9}}],
    }
    page = tmp_path / "page.html"
    runs_page(page, {"one": record(delta_selection=chosen)})
    text = page.read_text()
    for said in (
        "Prediction against gradient",
        "GAN part",
        "Penalty part",
        "0.616",
        "AUC of 0.951",
        "AUC of 0.988",
        "raw test AUC 0.070",
        "What the objective claims: empirical only",
        "Leak AUC / training AUC over delta",
    ):
        assert said in text, said
    assert ODD not in text


def test_a_run_without_components_has_no_gradient_part(tmp_path):
    page = tmp_path / "page.html"
    runs_page(page, {"one": record(components=None), "two": record()})
    assert page.read_text().count("<h2") > 0
    assert "Prediction against gradient: two" in page.read_text()
    assert "Prediction against gradient: one" not in page.read_text()
