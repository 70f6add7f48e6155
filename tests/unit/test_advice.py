"""Advice follows from what was in use, what an attack reads, and how many epochs there were."""

import json

import pytest
import torch

from tacit import Guard, run_audit
from tacit.accounting import recommend
from tacit.attack import get
from tacit.cli.audit import claim_of
from tacit.evaluate.remedy import AuditedSetting, remedy
from tacit.measure import auc_bound
from tacit.monitor import MemoryMonitor
from tacit.tape import ColumnTape
from tacit.testing import low_rank_cut
from tacit.training.verdict import LIMIT, MemoryLeak, verdict_of
from tacit.types import Cut

GRADIENTS = (
    "norm",
    "cosine",
    "mean",
    "energy",
    "principal",
    "memory",
    "supervised",
    "kmeans(by=direction)",
    "kmeans(by=both)",
    "lowbits",
)
PROTECTIONS = (
    "gaussian(sigma=1)",
    "iso(t=1)",
    "max_norm",
    "marvell(s=4)",
    "marvell(sum_kl=0.5)",
    "marvell(s=4, covariance=full)",
    "marvell(sum_kl=0.5, covariance=full)",
    "marvell(error=0.2, covariance=full)",
)


def planned(epochs):
    return recommend(target=0.65, epochs=epochs, examples=1)[0].protect


@pytest.mark.parametrize("attack", GRADIENTS)
@pytest.mark.parametrize("spec", [None, "none", *PROTECTIONS])
@pytest.mark.parametrize("epochs", [1, 5, 60])
def test_the_advice_is_planned_for_the_epochs_and_is_not_what_was_in_use(attack, spec, epochs):
    said = remedy(get(attack), AuditedSetting(spec=spec, releases=epochs))
    assert planned(epochs) in said
    assert "rr(epsilon=0.619)" in said
    if spec not in (None, "none"):
        assert spec not in said
        assert "max_norm" not in said
        assert ("use covariance=full" in said) == ("marvell" in spec and "full" not in spec)
        assert ("train fewer" in said) == (epochs > 1)


@pytest.mark.parametrize("epochs", [1, 5, 60])
def test_where_the_planned_protection_was_in_use_more_noise_and_other_ways_are_named(epochs):
    used = planned(epochs)
    said = remedy(get("memory"), AuditedSetting(spec=used, releases=epochs))
    assert f"{used} is planned for" in said
    (smaller,) = [word for word in said.split(": use ")[1].split(")") if "sum_kl" in word]
    assert float(smaller.split("sum_kl=")[1].split(",")[0]) < float(
        used.split("sum_kl=")[1].split(",")[0]
    )
    assert f"use {used}" not in said
    assert "rr(epsilon=" in said
    # What is planned for few epochs is not planned for many.
    assert planned(100) in remedy(get("memory"), AuditedSetting(spec=used, releases=100))


@pytest.mark.parametrize("attack", ["kmeans", "completion"])
@pytest.mark.parametrize("spec", [None, "none", "marvell(s=4)", "marvell(s=4, covariance=full)"])
def test_an_attack_on_embeddings_is_not_told_to_protect_gradients(attack, spec):
    said = remedy(get(attack), AuditedSetting(spec=spec, releases=5))
    assert "embeddings show it, which no noise on gradients hides" in said
    assert "marvell" not in said
    assert "rr(epsilon=0.619)" in said


@pytest.mark.parametrize("attack", ["norm", "memory", "kmeans"])
def test_labels_that_were_randomised_are_not_advised_again(attack):
    said = remedy(get(attack), AuditedSetting(spec="none", labels="rr(epsilon=2)", releases=20))
    assert "randomised once with rr(epsilon=2) already" in said
    assert "smaller epsilon" in said
    assert "marvell" not in said
    assert "randomise labels" not in said


def test_a_threshold_and_many_classes_change_the_advice():
    loose = remedy(get("norm"), AuditedSetting(spec="none", releases=5, target=0.8))
    assert recommend(target=0.8, epochs=5, examples=1)[0].protect in loose
    many = remedy(get("memory"), AuditedSetting(spec="marvell(s=4)", releases=5, classes=10))
    (only,) = recommend(target=0.65, epochs=5, examples=1, classes=10)
    assert only.labels in many
    assert "sum_kl" not in many


def audited(spec, attacks, *, embeddings=None, labels_spec=None, epochs=6):
    cut = low_rank_cut(1024, width=16, seed=1)
    guard, steps = Guard(spec, seed=3), []
    steps = [guard.release(Cut(grads=cut.grads, labels=cut.labels)).grads for _ in range(epochs)]
    columns = {
        "grads": torch.cat(steps).numpy(),
        "ids": torch.arange(1024).repeat(epochs).numpy(),
        "epoch": torch.arange(epochs).repeat_interleave(1024).numpy(),
        "step": torch.arange(epochs).repeat_interleave(1024).numpy(),
    }
    if embeddings is not None:
        columns["embeddings"] = embeddings(cut.labels).repeat(epochs, 1).numpy()
    claim = {**vars(guard.last_certificate), **({"labels": labels_spec} if labels_spec else {})}
    truth = dict(enumerate(cut.labels.tolist()))
    return run_audit(ColumnTape.of(columns), truth, attacks, certificate=claim)


def test_an_audit_does_not_recommend_what_was_in_use():
    spec = "marvell(s=4, covariance=full)"
    result = audited(spec, ["memory"])
    (row,) = result.table
    assert row["state"] == "leaks"
    told = " ".join(result.record["advice"])
    assert f"with {spec}" not in told
    assert f"use {spec}" not in told
    assert planned(6) in told
    assert planned(6) in row["verdict"]


def test_an_audit_tells_attacks_on_embeddings_and_on_gradients_apart():
    def telling(labels):
        rng = torch.Generator().manual_seed(0)
        return 8.0 * labels.unsqueeze(1) + torch.randn(len(labels), 4, generator=rng)

    # The embeddings are the baseline too, so only a threshold makes them a leak.
    cut = low_rank_cut(1024, width=16, seed=1)
    columns = {"grads": cut.grads.numpy(), "embeddings": telling(cut.labels).numpy()}
    result = run_audit(
        ColumnTape.of(columns),
        cut.labels.numpy(),
        ["norm", "kmeans"],
        threshold=0.65,
        certificate={"spec": "none", "sum_kl": None},
    )
    ways = {row["attack"]: row["remedy"] for row in result.table}
    assert {row["state"] for row in result.table} == {"leaks"}
    (embeddings,) = [line for line in result.record["advice"] if "kmeans" in line]
    assert "protect the gradients" not in embeddings
    assert "no noise on gradients hides" in embeddings
    assert "protect the gradients" in ways["norm"]


def test_an_audit_knows_of_randomised_labels_from_the_results_of_a_run(tmp_path):
    certificate = {"spec": "none", "sum_kl": None}
    place = tmp_path / "results.json"
    place.write_text(json.dumps({"certificate": certificate, "labels": "rr(epsilon=2)"}))
    assert claim_of(place) == {**certificate, "labels": "rr(epsilon=2)"}
    told = " ".join(audited("none", ["norm"], labels_spec="rr(epsilon=2)").record["advice"])
    assert "randomised once with rr(epsilon=2) already" in told


# --- the verdict at the end of a run --------------------------------------------------------------


def live(leak, low, high):
    return {"pooled": leak, "low": low, "high": high}


@pytest.mark.parametrize(
    ("found", "memory", "sum_kl", "state", "said"),
    [
        ({"norm": live(0.9, 0.88, 0.92)}, None, None, "leaks", "norm reaches 0.900 [0.880, 0.920]"),
        ({"norm": live(0.66, 0.6, 0.7)}, None, None, "unknown", "its interval spans 0.65"),
        ({"norm": live(0.6, 0.5, 0.7)}, None, None, "within", "norm comes closest with 0.600"),
        ({"norm": live(0.6, 0.59, 0.61)}, None, 0.01, "leaks", "claimed of honest batches"),
        ({"norm": live(0.6, 0.4, 0.7)}, None, 0.01, "unknown", "claimed of honest batches"),
        ({"kmeans": live(0.6, 0.59, 0.61)}, None, 0.01, "within", "kmeans comes closest"),
        ({}, MemoryLeak(leak=0.984), 0.5, "leaks", "Labels leak after 60 epochs: memory"),
        ({}, MemoryLeak(leak=0.66, low=0.64, high=0.68), 0.01, "unknown", "Undecided after 60"),
        ({}, MemoryLeak(leak=0.64, low=0.6, high=0.7), 0.01, "within", "audit a recording"),
        ({}, MemoryLeak(leak=0.6, low=0.59, high=0.61), 1e-5, "leaks", "claimed of honest"),
        ({}, None, None, "unknown", "nothing is known"),
    ],
)
def test_the_verdict_at_the_end_of_a_run(found, memory, sum_kl, state, said):
    setting = AuditedSetting(spec="marvell(s=4, covariance=full)", releases=60)
    verdict = verdict_of(found, memory, setting=setting, sum_kl=sum_kl)
    assert verdict["state"] == state
    assert said in verdict["text"]
    assert "safe" not in verdict["text"]
    assert json.loads(json.dumps(verdict)) == verdict
    if state != "within" and verdict["findings"] and "kmeans" not in found:
        assert planned(60) in verdict["text"]


def test_the_claim_over_all_releases_adds_their_divergences():
    setting = AuditedSetting(spec="marvell(sum_kl=0.001, covariance=full)", releases=9.2)
    memory = MemoryLeak(leak=0.6, low=0.59, high=0.61)
    (one,) = verdict_of({}, memory, setting=setting, sum_kl=0.001)["findings"]
    assert one["claim"] == pytest.approx(auc_bound(0.01))
    assert one["limit"] == min(LIMIT, one["claim"])


def test_the_memory_monitor_has_an_interval_whichever_class_scores_higher():
    cut = low_rank_cut(512, width=8, seed=2)
    for labels in (cut.labels, 1 - cut.labels):
        monitor = MemoryMonitor()
        guard = Guard(f"gaussian(sigma={2 * float(cut.grads.std())})", seed=0, watch=monitor)
        guard.release(Cut(grads=cut.grads, labels=labels, ids=torch.arange(512)))
        low, high = monitor.interval()
        assert 0.5 < low < monitor.leak() < high < 1
    assert MemoryMonitor().interval() is None
