"""A guard with several watchers, one of which records what is released."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from tacit import Guard, LeakMonitor, TapeWriter, run_audit
from tacit.errors import InputError, ParameterError
from tacit.tape import RecordedTape

DOCS = Path(__file__).parents[2] / "docs" / "audit.md"
ROWS, BATCH = 768, 128


def data():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 10, generator=rng)
    return x, (x[:, 0] + torch.randn(ROWS, generator=rng) > 1).long()


def models():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU()), nn.Linear(16, 1)


def train(guard, *, epochs, ids=True):
    """Train as the README does; return every gradient that arrived at the bottom model."""
    (x, y), (bottom, top) = data(), models()
    optimizer = torch.optim.Adam([*bottom.parameters(), *top.parameters()], lr=1e-3)
    order, arrived = torch.Generator().manual_seed(1), []
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(ROWS, generator=order), BATCH):
            sent = bottom(x[rows])
            sent.retain_grad()
            z = guard(sent, y[rows], **({"ids": rows} if ids else {}))
            loss = nn.functional.binary_cross_entropy_with_logits(top(z)[:, 0], y[rows].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            arrived.append((rows, sent.detach(), sent.grad))
    return arrived


def test_the_tape_has_what_is_released(tmp_path):
    monitor, tape = LeakMonitor(["norm"]), TapeWriter(tmp_path / "run.tape")
    guard = Guard("marvell(s=4, covariance=full)", seed=1, watch=[monitor, tape])
    arrived = train(guard, epochs=2)
    views = list(RecordedTape(tmp_path / "run.tape"))  # before the writer is closed, too
    tape.close()
    assert [view.step for view in views] == list(range(12))
    assert [view.epoch for view in views] == [0] * 6 + [1] * 6
    for view, (rows, sent, grads) in zip(views, arrived, strict=True):
        assert torch.equal(view.ids, rows)
        assert torch.equal(view.embeddings, sent)
        assert torch.equal(view.grads, grads)
    assert monitor.report()["norm"].batches == 12


def test_memory_in_the_monitor_is_the_audit_of_the_same_run(tmp_path):
    _, y = data()
    attacks = ["memory", "memory(of=norm)"]
    monitors = [LeakMonitor(attacks, every=every) for every in (1, 5)]
    with TapeWriter(tmp_path / "run.tape") as tape:
        guard = Guard("marvell(s=1, covariance=full)", seed=1, watch=[*monitors, tape])
        train(guard, epochs=6)
    audit = run_audit(tmp_path / "run.tape", y.numpy(), attacks)
    found = {row["attack"]: row["leak_auc"] for row in audit.table}
    for monitor in monitors:
        report = monitor.report()
        assert list(report) == attacks
        for name in attacks:
            assert report[name].leak_auc == pytest.approx(found[name], abs=1e-12)
            assert report[name].examples == ROWS


def test_training_is_blind_to_the_watchers(tmp_path):
    plain = train(Guard("marvell(s=4)", seed=1), epochs=1)
    watch = [LeakMonitor(["memory"]), TapeWriter(tmp_path / "run.tape")]
    for (_, _, one), (_, _, other) in zip(
        plain, train(Guard("marvell(s=4)", seed=1, watch=watch), epochs=1), strict=True
    ):
        assert torch.equal(one, other)


def test_the_gradient_of_what_the_guard_returned_is_not_taken_for_the_release(tmp_path):
    (x, y), (bottom, top) = data(), models()
    guard, tape = Guard("marvell(s=4)", seed=1), TapeWriter(tmp_path / "run.tape")
    z = guard(bottom(x), y)
    z.retain_grad()
    top(z).square().mean().backward()
    with pytest.raises(InputError, match=r"the clean one.*watch=TapeWriter"):
        tape.append(torch.arange(ROWS), z.grad, embeddings=z)
    own = bottom(x)
    own.retain_grad()
    top(guard(own, y)).square().mean().backward()
    tape.append(torch.arange(ROWS), own.grad, embeddings=own)
    (view,) = RecordedTape(tmp_path / "run.tape")
    assert torch.equal(view.grads, own.grad)


@pytest.mark.parametrize("watcher", [LeakMonitor, TapeWriter])
def test_examples_without_ids_are_refused(tmp_path, watcher):
    watch = LeakMonitor(["norm", "memory"]) if watcher is LeakMonitor else watcher(tmp_path / "x")
    with pytest.raises(InputError, match="pass ids= with every batch"):
        train(Guard("marvell(s=4)", seed=1, watch=watch), epochs=1, ids=False)


def test_watchers_are_called_in_order():
    seen = []
    watch = [lambda _c, _r, n=n: seen.append(n) for n in range(3)]
    train(Guard("none", watch=watch), epochs=1)
    assert seen == [0, 1, 2] * 6
    with pytest.raises(ParameterError, match="watch takes what can be called"):
        Guard("none", watch=[3])


def noting(arrived):
    def hook(_module, _inputs, output):
        output.register_hook(arrived.append)

    return hook


def test_the_ways_of_the_guide_record_what_is_released(tmp_path, monkeypatch):
    """Each snippet of the guide runs, and what arrives at the bottom model is on its tape."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    assert len(blocks) == 2
    for block in blocks:
        (x, y), (bottom, top), arrived = data(), models(), []
        bottom.register_forward_hook(noting(arrived))
        space = {
            "x": x,
            "y": y,
            "bottom": bottom,
            "top": top,
            "batches": torch.split(torch.randperm(ROWS), BATCH),
            "optimizer": torch.optim.Adam([*bottom.parameters(), *top.parameters()]),
            "their_protection": Guard("gaussian(sigma=0.1)", seed=1),
        }
        exec(compile("import torch, tacit\n" + block, str(DOCS), "exec"), space)  # noqa: S102
        (name,) = re.findall(r'TapeWriter\("(.*?)"\)', block)
        recorded = [view.grads for view in RecordedTape(tmp_path / name)]
        assert len(recorded) == len(arrived) == ROWS // BATCH
        assert all(map(torch.equal, recorded, arrived))
