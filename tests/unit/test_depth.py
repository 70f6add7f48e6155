"""Steps that overlap, in one process: the same bits as the long way round."""

import os
import subprocess
import sys
from unittest import mock

import pytest
import torch
from torch import nn

from stale import stale_training
from tacit import Guard
from tacit.cli import main
from tacit.errors import ReleaseError, UsageError
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import run
from tacit.nets import combine
from tacit.objective import get as get_objective
from tacit.party.cpu import cores, free_cores
from tacit.tape.tape import RecordedTape, TapeWriter
from tacit.training import (
    FeatureParty,
    Gradient,
    LabelEnd,
    LabelParty,
    RecordedFeatureParty,
    adam,
    train,
)
from tacit.training.party import frozen

N, BATCH, WIDTH = 256, 32, 6


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Bottom(nn.Module):
    """A table of categories and layers whose weights the backward pass needs."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(7, 3)
        self.layers = nn.Sequential(
            nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, WIDTH)
        )

    def forward(self, numeric, codes):
        return self.layers(torch.cat([numeric, self.table(codes).flatten(1)], dim=1))


class World:
    """One to eight bottoms, a top and their data, the same every time."""

    def __init__(self, spec, parties=1, depth=1):
        rng = torch.Generator().manual_seed(0)
        self.numeric = torch.randn(N, 5, generator=rng)
        self.codes = torch.randint(0, 7, (N, 1), generator=rng)
        self.labels = (self.numeric[:, 0] + 0.2 * self.codes[:, 0] > 1).long()
        self.parts = [
            [torch.randperm(N, generator=rng)[:BATCH] for _ in range(steps)]
            for steps in (7, 1, 2, 5)
        ]
        self.bottoms = [Bottom(seed) for seed in range(parties)]
        torch.manual_seed(99)
        self.top = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0))
        self.guard = Guard(spec, seed=9)
        self.depth = depth

    def source(self, rows):
        return self.numeric[rows], self.codes[rows]

    def session(self, wrap=lambda party: party):
        features = [
            wrap(FeatureParty(b, self.source, optimizer=adam(b, 1e-2), depth=self.depth))
            for b in self.bottoms
        ]
        label = LabelParty(
            self.top,
            self.labels,
            guard=self.guard,
            objective=get_objective("bce"),
            optimizer=adam(self.top, 1e-2),
        )
        first, losses = 0, []
        for batches in self.parts:
            steps = train(batches, features=features, label=label, first=first, depth=self.depth)
            losses += [step.loss for step in steps]
            first += len(batches)
        return losses

    def long_way(self):
        losses = []

        def loss_of(z, rows):
            outputs = self.top(self.guard(combine(z, "sum"), self.labels[rows], ids=rows))
            loss = nn.functional.binary_cross_entropy_with_logits(
                outputs, self.labels[rows].float()
            )
            losses.append(float(loss.detach()))
            return loss

        stale_training(
            self.bottoms,
            [adam(model, 1e-2) for model in (*self.bottoms, self.top)],
            self.parts,
            depth=self.depth,
            embed=lambda bottoms, rows: [b(*self.source(rows)) for b in bottoms],
            loss_of=loss_of,
        )
        return losses

    def weights(self):
        models = (*self.bottoms, self.top)
        return torch.cat([p.detach().flatten() for m in models for p in m.parameters()])


@pytest.mark.parametrize("parties", [1, 2])
@pytest.mark.parametrize("spec", ["none", "marvell(s=4)"])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_session_is_the_long_way_round(depth, spec, parties):
    ours, wanted = World(spec, parties, depth), World(spec, parties, depth)
    assert ours.session() == wanted.long_way()
    assert torch.equal(ours.weights(), wanted.weights())


def test_every_depth_comes_out_elsewhere():
    """What the test above compares does depend on the depth."""
    found = [World("none", depth=depth) for depth in (1, 2, 3, 4)]
    losses = [world.session() for world in found]
    assert len({tuple(each) for each in losses}) == 4
    assert len({each[0] for each in losses}) == 1


class Watched(LabelEnd):
    """Notes when it hears of embeddings and when their step comes."""

    def __init__(self):
        self.heard, self._now = [], 0

    def offer(self, embeddings):
        self.heard.append(("offer", embeddings[0].step))

    def step(self, rows, embeddings):
        self._now = embeddings[0].step
        self.heard.append(("step", self._now))
        return [Gradient(step=self._now, values=torch.zeros_like(embeddings[0].values))]

    def update(self):
        return 0.0

    def predict(self, rows, embeddings):
        raise NotImplementedError


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_so_many_steps_are_under_way_and_none_where_the_batches_end(depth):
    world, label = World("none", depth=depth), Watched()
    party = FeatureParty(
        world.bottoms[0], world.source, optimizer=adam(world.bottoms[0], 0.1), depth=depth
    )
    done = [s.step for s in train(world.parts[0], features=[party], label=label, depth=depth)]
    assert done == list(range(7))
    under_way = [
        sum(1 if what == "offer" else -1 for what, _ in label.heard[: at + 1])
        for at in range(len(label.heard))
    ]
    assert max(under_way) == depth
    assert under_way[-1] == 0
    assert [s for what, s in label.heard if what == "step"] == list(range(7))


def test_a_feature_party_begins_no_more_than_its_depth():
    world = World("none")
    party = FeatureParty(
        world.bottoms[0], world.source, optimizer=adam(world.bottoms[0], 0.1), depth=2
    )
    rows, zero = torch.arange(BATCH), torch.zeros(BATCH, WIDTH)
    for step in (5, 6):
        party.forward(step, rows)
    with pytest.raises(ReleaseError, match="2 steps may be under way at once and step 7 is one"):
        party.forward(7, rows)
    with pytest.raises(ReleaseError, match="step 6 came without its embedding"):
        party.backward(Gradient(step=6, values=zero))
    party.forward(5, rows)  # begun again, so step 6 will be too
    party.backward(Gradient(step=5, values=zero))
    with pytest.raises(ReleaseError, match="step 6 came without its embedding"):
        party.backward(Gradient(step=6, values=zero))


def test_without_a_copy_the_old_weights_would_be_gone():
    """The reason for the copies: torch notices, and the gradients would be of other weights."""
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)), torch.ones(2, 3)
    out = model(x).sum()
    with torch.no_grad():
        model[1].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_large_tables_are_not_copied():
    copied, big, last = [], nn.Embedding(1000, 64), nn.Linear(64, 1)
    clone = torch.Tensor.clone
    with (
        mock.patch.object(torch.Tensor, "clone", lambda t: copied.append(t.numel()) or clone(t)),
        frozen(nn.Sequential(big, last)),
    ):
        last(big(torch.arange(3)))
    assert copied == [64]


def test_a_recording_has_every_step_with_its_own_embeddings(tmp_path):
    plain, taped = World("none", depth=3), World("none", depth=3)
    with TapeWriter(tmp_path / "seen.tape") as tape:
        assert taped.session(lambda party: RecordedFeatureParty(party, tape)) == plain.session()
    assert torch.equal(plain.weights(), taped.weights())
    views = list(RecordedTape(tmp_path / "seen.tape"))
    rows = [rows for batches in plain.parts for rows in batches]
    assert [view.ids.tolist() for view in views] == [r.tolist() for r in rows]


SMALL = {
    "dataset": "ads",
    "rows": 1500,
    "model": "mlp",
    "epochs": 2,
    "batch_size": 128,
    "lr": 1e-3,
    "protect": "marvell(s=4)",
}


def test_a_trial_at_depth_1_is_what_it_was_and_others_are_not():
    plain, deep = (run(TrainConfig.of({**SMALL, **more}))[1] for more in ({}, {"depth": 2}))
    named = run(TrainConfig.of({**SMALL, "depth": 1}))[1]
    assert plain["history"] == named["history"]
    assert (plain["depth"], deep["depth"]) == (1, 2)
    assert plain["train"]["loss"] != deep["train"]["loss"]
    assert plain["steps"] == deep["steps"]


def test_layers_are_attacked_with_the_graphs_of_their_own_step():
    """Without protection the last layer's gradient is the cut's: same attack, same score."""
    settings = {**SMALL, "protect": "none", "layers": True, "monitor_every": 1, "depth": 3}
    found = run(TrainConfig.of(settings))[1]
    last = list(found["layers"])[-1]
    assert found["layers"][last]["norm"]["mean"] == pytest.approx(found["leak"]["norm"]["mean"])


@pytest.mark.parametrize("depth", [0, 5, -1])
def test_a_depth_that_is_none_is_refused_in_one_line(capsys, depth):
    assert main(["train", "--depth", str(depth)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"depth = {depth}" in err
    assert "greater than or equal to 1" in err or "less than or equal to 4" in err
    with pytest.raises(UsageError, match="depth"):
        TrainConfig.of({"depth": depth})


# --- cores ---


def groups(root, line, **files):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(line)
    for name, text in files.items():
        place = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_at_", ".")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return root


@pytest.mark.parametrize(
    ("line", "files", "share"),
    [
        ("0::/unit", {"unit__cpu_at_max": "250000 100000\n"}, 2),
        ("0::/unit", {"unit__cpu_at_max": "max 100000\n"}, 64),
        ("0::/a/b", {"a__cpu_at_max": "300000 100000\n", "a__b__cpu_at_max": "max 100000\n"}, 3),
        ("0::/", {"cpu_at_max": "50000 100000\n"}, 1),
        (
            "4:cpu,cpuacct:/x",
            {"cpu__x__cpu_at_cfs_quota_us": "200000\n", "cpu__x__cpu_at_cfs_period_us": "100000\n"},
            2,
        ),
        (
            "4:cpu:/x",
            {"cpu__x__cpu_at_cfs_quota_us": "-1\n", "cpu__x__cpu_at_cfs_period_us": "100000\n"},
            64,
        ),
        ("5:memory:/x", {"x__cpu_at_max": "100000 100000\n"}, 64),
        ("", {}, 64),
    ],
)
def test_cores_are_those_that_the_group_was_given(tmp_path, monkeypatch, line, files, share):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    root = groups(tmp_path, line, **files)
    assert cores(root) == share
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert cores(root) == 1


@pytest.mark.parametrize("words", ["'party', '/nowhere.toml'", "'train', '--epochs', 'x'"])
def test_commands_wait_without_spinning_unless_told_otherwise(words):
    """The command sets it before torch is loaded, which is when it is read."""
    code = (
        f"import os, sys; from tacit.cli import main; main([{words}]); "
        "print(os.environ['OMP_WAIT_POLICY'], os.environ['KMP_BLOCKTIME'])"
    )
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "KMP_"))}
    for given, wanted in (({}, "PASSIVE 0"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE 0")):
        said = subprocess.run(  # noqa: S603
            [sys.executable, "-c", code],
            env={**bare, **given},
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stdout.split("\n")[0] == wanted


@pytest.mark.parametrize(
    ("running", "free"),
    [([1] * 7, 8), ([3, 3, 9, 3, 3, 1, 3], 6), ([40] * 7, 1), ([0] * 7, 8)],
)
def test_free_cores_are_those_that_nothing_else_computes_on(tmp_path, monkeypatch, running, free):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "proc").mkdir()
    stat = tmp_path / "proc/stat"
    looks = iter(running)

    def look(_seconds=0):
        stat.write_text(f"cpu 1 2\nprocs_running {next(looks)}\nprocs_blocked 0\n")

    look()
    monkeypatch.setattr("tacit.party.cpu.sleep", look)
    assert free_cores(tmp_path) == free
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2})
    monkeypatch.setattr("tacit.party.cpu.sleep", lambda _seconds: None)
    assert free_cores(tmp_path) == min(2, max(1, 8 - max(0, running[-1] - 1)))


def test_without_a_count_of_threads_the_load_average_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "getloadavg", lambda: (2.6, 0.0, 0.0))
    assert free_cores(tmp_path) == 5
