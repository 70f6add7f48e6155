from dataclasses import replace

import pytest
import torch

from tacit import Guard, LeakMonitor
from tacit.errors import InputError, ParameterError, SpecError
from tacit.measure import auc
from tacit.testing import low_rank_cut, many_class_cut

ALL = ["norm", "cosine", "majority", "hint(5)", "mean", "median", "energy", "principal"]


def _watch(spec, attacks, *, seeds=8, **options):
    monitor = LeakMonitor(attacks, **options)
    guard = Guard(spec, seed=3, watch=monitor)
    for seed in range(seeds):
        guard.release(low_rank_cut(512, 64, seed=seed))
    return monitor.report()


def test_every_attack_reports_on_unprotected_gradients():
    report = _watch("none", ALL)
    assert list(report) == [str(Guard and name) if "(" not in name else "hint" for name in ALL]
    for name in ("cosine", "majority", "hint", "mean", "median", "principal"):
        assert report[name].leak_auc > 0.99, name
    assert report["norm"].leak_auc > 0.85
    assert all(leak.batches == 8 and leak.examples == 8 * 512 for leak in report.values())


def test_published_numbers_on_low_rank_gradients():
    """Marvell at s=4 holds against norm and cosine and fails against energy: say both."""
    report = _watch("marvell(s=4)", ALL)
    assert report["norm"].leak_auc < 0.6
    assert 0.58 < report["cosine"].leak_auc < 0.7
    assert report["energy"].leak_auc > 0.95


def test_it_looks_at_every_nth_release():
    assert _watch("none", ["norm"], every=3)["norm"].batches == 3
    with pytest.raises(ParameterError, match="every must be at least 1"):
        LeakMonitor(every=0)
    with pytest.raises(SpecError, match="did you mean 'cosine'"):
        LeakMonitor(["cosin"])


def test_recent_resets_and_the_report_accumulates():
    monitor = LeakMonitor(["norm"])
    guard = Guard("none", watch=monitor)
    for seed in range(3):
        guard.release(low_rank_cut(64, 8, seed=seed))
    assert monitor.recent()["norm"].batches == 3
    assert monitor.recent() == {}
    guard.release(low_rank_cut(64, 8, seed=9))
    assert monitor.recent()["norm"].batches == 1
    assert monitor.report()["norm"].batches == 4


def test_batches_without_positives_are_skipped():
    monitor = LeakMonitor(["norm", "cosine"])
    guard = Guard("gaussian(1)", seed=1, watch=monitor)
    cut = low_rank_cut(64, 8)
    guard.release(replace(cut, labels=torch.zeros_like(cut.labels)))
    assert monitor.report() == {}
    guard.release(cut)
    report = monitor.report()
    assert report["norm"].batches == 1
    assert report["norm"].skipped == 1
    expected = auc(guard.release(replace(cut, step=1)).grads.norm(dim=1), cut.labels)
    assert report["norm"].leak_auc == pytest.approx(max(expected, 1 - expected), abs=1e-12)


def _epochs(monitor, count, *, classes=2):
    guard = Guard("marvell(s=4)", seed=3, classes=classes, watch=monitor)
    for seed in range(count):
        cut = (
            low_rank_cut(256, 16, seed=seed)
            if classes == 2
            else many_class_cut(256, 16, classes=classes, seed=seed)
        )
        guard.release(replace(cut, ids=torch.arange(256), labels=cut.labels))


def test_memory_gives_one_score_per_example_and_recent_shows_it():
    monitor = LeakMonitor(["norm", "memory"], every=2)
    _epochs(monitor, 3)
    recent, report = monitor.recent(), monitor.report()
    assert list(recent) == list(report) == ["norm", "memory"]
    assert recent["memory"] == report["memory"]
    assert (report["memory"].batches, report["memory"].examples) == (1, 256)
    assert report["norm"].batches == 2
    assert monitor.recent() == {}
    assert monitor.report()["memory"] == report["memory"]


def test_memory_with_many_classes_follows_each_class():
    """An attack that knows a gradient of a class is one on that class, and follows it alone."""
    monitor = LeakMonitor(["memory(of=cosine)", "memory"], classes=3)
    guard = Guard("none", classes=3, watch=monitor)
    cut = many_class_cut(240, 16, classes=3)
    for _ in range(3):
        guard.release(replace(cut, ids=torch.arange(240)))
    report = monitor.report()
    assert report["memory(of=cosine)"].leak_auc > 0.9
    assert report["memory"].examples == 240


@pytest.mark.parametrize("ids", [torch.arange(7), torch.arange(64).int()])
def test_ids_that_do_not_fit_are_refused(ids):
    guard = Guard("none", watch=LeakMonitor(["memory"]))
    with pytest.raises(InputError, match=r"ids must be int64 of shape \(64,\)"):
        guard.release(replace(low_rank_cut(64, 8), ids=ids))


def test_releases_that_are_all_zero_are_warned_about():
    monitor = LeakMonitor(["norm"])
    guard = Guard("none", watch=monitor)
    cut = low_rank_cut()
    guard.release(replace(cut, grads=torch.zeros_like(cut.grads)))
    with pytest.warns(UserWarning, match="all 1 releases are zero"):
        monitor.report()
    guard.release(cut)
    assert monitor.report()["norm"].leak_auc > 0.5
