"""The shipped contract holds for every registered attack and catches attacks that break it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from attack_examples import QUICK
from tacit import attack as attacks
from tacit.attack import Attack, AuditForm, PreparedView
from tacit.rows import norms
from tacit.testing.attack_contract import AttackContract, null_band, pooled_auc

VARIANTS = ["hint(by=cosine)", "hint(by=distance)", "hint(k=1)", "hint(k=2)"]
VARIANTS += ["mean(hard=true)", "median(hard=true)", "energy(share=0.9)"]
VARIANTS += ["median(split=all)", "median(hard=true, split=all)", "hint(use=longest)"]


@pytest.mark.parametrize("check", AttackContract.checks())
@pytest.mark.parametrize("spec", [*(QUICK.get(n, n) for n in attacks.names()), *VARIANTS])
def test_contract(spec: str, check: str) -> None:
    getattr(AttackContract(attacks.get(spec)), check)()


class Broken(Attack):
    spec_name = "broken"


@dataclass(frozen=True)
class Mutates(Broken):
    """Normalises what it was handed, in place."""

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        lengths = norms(prepared.rows)
        prepared.view.grads.detach().div_(2.0)
        return lengths


@dataclass(frozen=True)
class IgnoresRng(Broken):
    """Breaks ties with global randomness."""

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        return norms(prepared.rows) + torch.rand(len(prepared.rows))


@dataclass(frozen=True)
class LeaksScale(Broken):
    """Computes on the raw gradients, whose squares vanish when they are small."""

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        return prepared.view.grads.float().flatten(1).square().sum(dim=1).clamp(max=1e30)


@dataclass(frozen=True)
class ByPlace(Broken):
    """Prefers rows that come first."""

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        return -torch.arange(len(prepared.rows), dtype=torch.float64)


@dataclass(frozen=True)
class ByShape(Broken):
    """Reads only the first slice of a row that is not flat."""

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        grads = prepared.view.grads
        return grads.double().reshape(len(grads), -1)[:, : grads.shape[-1]].sum(dim=1)


@dataclass(frozen=True)
class Coarse(Broken):
    """Works in the type it was handed."""

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        return prepared.rows.to(prepared.view.grads.dtype).sum(dim=1)


@dataclass(frozen=True)
class DividesByZero(Broken):
    """Forgets that lengths and spreads may be zero."""

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        return prepared.rows.sum(dim=1) / norms(prepared.rows)


@dataclass(frozen=True)
class CountsItself(Broken):
    """Compares rows with the known positive rows, themselves included."""

    needs = frozenset({"hints"})

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        return (prepared.rows @ prepared.rows[prepared.hints].T).amax(dim=1)


@dataclass(frozen=True)
class UnknownNeed(Broken):
    """Asks for what no view has."""

    needs = frozenset({"labels"})

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        return prepared.rows[:, 0]


@dataclass(frozen=True)
class ReadsInSecret(Broken):
    """Needs embeddings without saying that it reads them."""

    needs = frozenset({"embeddings"})

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        return prepared.rows[:, 0]


@dataclass(frozen=True)
class ReadsWeights(Broken):
    """Says that it reads what no feature party sees."""

    reads = frozenset({"weights"})

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        return prepared.rows[:, 0]


@dataclass(frozen=True)
class UnknownForm(Broken):
    """Is to be audited in a form that does not exist."""

    audit_forms = (AuditForm("memory(of=nothing)"),)

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        return prepared.rows[:, 0]


@dataclass(frozen=True)
class WrongShape(Broken):
    """Returns a column."""

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        return prepared.rows[:, :1]


@pytest.mark.parametrize(
    ("attack", "check", "words"),
    [
        (Mutates(), "check_inputs_untouched", "grads was changed"),
        (IgnoresRng(), "check_reproducible", "same rng seed"),
        (LeaksScale(), "check_scale", r"2\*\*-80"),
        (ByPlace(), "check_row_order", "order of the rows"),
        (ByPlace(), "check_constant_batch", "equal rows"),
        (ByPlace(), "check_zero_batch", "equal rows"),
        (ByShape(), "check_trailing_shape", "shape behind the batch"),
        (Coarse(), "check_dtypes", "unlike the same float64 values"),
        (DividesByZero(), "check_zero_rows", "finite"),
        (DividesByZero(), "check_zero_batch", "finite"),
        (DividesByZero(), "check_single_row", "finite"),
        (CountsItself(), "check_finds_nothing", "outside the band"),
        (UnknownNeed(), "check_missing_knowledge", "labels, which no view has"),
        (ReadsInSecret(), "check_declarations", "`reads` does not say so"),
        (ReadsWeights(), "check_declarations", "reads is {'weights'}"),
        (UnknownForm(), "check_declarations", "cannot build its form"),
        (WrongShape(), "check_output", "each of 48 rows"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Attack) else str(value),
)
def test_a_broken_attack_fails_the_contract(attack: Attack, check: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        getattr(AttackContract(attack), check)()
    with pytest.raises(AssertionError, match=r"^check_\w+ of "):
        AttackContract(attack).check_all()


def test_check_all_runs_every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    for name in AttackContract.checks():
        monkeypatch.setattr(AttackContract, name, lambda _self, name=name: ran.append(name))
    AttackContract(attacks.get("norm")).check_all()
    assert ran == AttackContract.checks()
    assert "check_all" not in ran
    assert len(ran) == 16


def test_pooled_auc_is_the_share_of_pairs_in_order() -> None:
    scores, labels = torch.tensor([0.1, 0.4, 0.4, 0.9]), torch.tensor([0, 1, 0, 1])
    assert pooled_auc(scores, labels) == (1 + 0.5 + 1 + 1) / 4


def test_null_band_holds_pure_noise() -> None:
    rng = torch.Generator().manual_seed(0)
    labels = (torch.arange(400) % 5 == 0).long()
    low, high = null_band(labels, level=0.05)
    found = [pooled_auc(torch.randn(400, generator=rng), labels) for _ in range(1000)]
    outside = sum(not low <= value <= high for value in found)
    # Binomial(1000, 0.05) leaves 20..85 with probability below 1e-5.
    assert 20 <= outside <= 85
