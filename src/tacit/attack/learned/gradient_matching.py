"""Attacks by gradient matching: they look for labels that explain the gradients."""

from __future__ import annotations

import copy
import dataclasses
import time
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, final, get_args

import torch
from torch import Tensor

from tacit.attack.base import ATTACKS, classes_of
from tacit.attack.clustering import KMeans
from tacit.attack.learned._gradient_replay import ReplayData, Settings, replay
from tacit.attack.learned._per_epoch import RowClassifier, SurrogateAttack
from tacit.attack.learned._replay_classifiers import ByLabels, ByLeastCost
from tacit.attack.learned._surrogate import Rows, RowTransform, content_order, hidden_widths
from tacit.attack.learned._trials import Choose, Ranges, TrialLog, Trials
from tacit.spec import require
from tacit.types import Known, View

_GROUP_LOGIT: Final = 2.0  # logits of a label that clusters start from, above all others
_PAPER_TRIALS: Final = 500
_EXAMPLES: Final = 2000
_PROBE: Final = 10  # steps that are timed to estimate how long all take

_OURS, _PUBLISHED = (
    Settings(),
    Settings(
        lambda_ce=0.15,
        lambda_p=0.5,
        rate_net=1e-4,
        rate_labels=0.1,
        batch=128,
        epochs=1000,
        match="distance",
        momentum=True,
        converge=True,
        spread=1.0,
    ),
)

Loss = Literal["direction", "published"]
Start = Literal["cold", "kmeans"]
Prior = Literal["known", "uniform", "groups"]
Decode = Literal["labels", "gradient"]
_WORDS: Final = {
    "loss": Loss,
    "start": Start,
    "choose": Choose,
    "prior": Prior,
    "ranges": Ranges,
}


@final
@ATTACKS.register("exploit")
@dataclass(frozen=True)
class Exploit(SurrogateAttack):
    """Replay the training with a surrogate top model and surrogate labels until gradients match.

    ``min over g', y' of E||u(g'_i) - u(g_i)|| + lambda_ce E[H(y'_i, p'_i)] / H(P) +
    lambda_p KL(P || E y')``, with ``u`` a vector at length one, ``g'_i`` the loss gradient of the
    surrogate at the embedding, ``p'_i`` its prediction, ``y'_i`` the softmax of free logits and
    ``P`` the label prior. A row's label is then the one-hot label at which its own loss is least
    (with two classes: whose gradient lies nearest), and the score is by how much, for the smallest
    class.

    ``loss=published`` is the paper's attack: Eq. 9 with gradients as they are, ``||g'_i - g_i||``,
    over all rows; softmax outputs for two classes as for many; weights and rates out of the ranges
    of section 5.1; until the loss has converged; Algorithm 1's choice among trials; and a row's
    label is its surrogate label.

    ``trials`` replays are run, the first with settings of ours and the others where a
    tree-structured Parzen estimator searches, and one of them is chosen. ``choose=margin`` takes
    the one that tells most clearly which label made the gradients of rows it has not learnt from;
    ``gradient`` the one with the least gradient loss (Algorithm 1); ``objective`` the one with the
    least loss at both weights 1 (section 6, under noise), which is then also the loss that a row's
    label is chosen by. ``ranges=paper`` searches the ranges of section 5.1, and ``trials=0`` stands
    for its 500. Where they are not given, ``choose`` and ``ranges`` are those of the loss.

    The weights of the first trial are 3 and 10, published 0.15 and 0.5 (what did best on models of
    other seeds, see docs/learned_attacks.md). ``lambda_ce=0`` and ``lambda_p=0`` leave a
    regulariser out (appendix C). ``start=kmeans`` starts from the groups of ``kmeans(by=both)``.
    ``prior=known`` takes ``known.prior`` where it is given and else the sizes of those groups
    (appendix B), ``uniform`` and ``groups`` ignore it. ``memory=true`` averages all releases of an
    example first.
    ``examples`` rows (2,000) are learnt from in at most ``epochs`` passes (200, published 1,000).
    ``seconds`` is the time of one call: what is best by then counts.

    Needs: embeddings; ``known.classes`` (or else 2) and ``known.prior`` where they are known.

    References:
        Kariyappa and Qureshi, "ExPLOit: Extracting Private Labels in Split Learning", Eq. 9,
        Algorithm 1, sections 5.1 and 6, appendices B and C.

    Departures of the default: gradients are compared at length one, wide rows in their principal
    directions, and with two classes, whose soft labels have no direction, under either label by its
    probability; labels are moved only when their row is in the batch; not all rows are learnt from;
    the rule that chooses; settings of our own (see ``docs/learned_attacks.md``). The paper leaves
    open what ``loss=published`` has to choose: Adam, for labels too, on batches of 128 rows; where
    the search starts; when a replay has converged; that a gradient is that of one example's loss.

    >>> from tacit.types import Known, View
    >>> rng = torch.Generator().manual_seed(0)
    >>> labels, z = torch.arange(60) % 2, torch.randn(60, 4, generator=rng)
    >>> z[:, 0] += 2 * labels  # the top model is a sigmoid of the sum
    >>> grads = (torch.sigmoid(z.sum(dim=1)) - labels).unsqueeze(1) * torch.ones(4)
    >>> found = Exploit().clusters(View(grads=grads, embeddings=z), rng)
    >>> bool((found == labels).all() or (found != labels).all())
    True
    """

    trials: int = 3
    start: Start = "cold"
    choose: Choose | None = None
    lambda_ce: float | None = None
    lambda_p: float | None = None
    prior: Prior = "known"
    ranges: Ranges | None = None
    examples: int | None = None
    epochs: int | None = None
    seconds: float | None = None
    memory: bool = False
    workers: int = 1
    loss: Loss = "direction"

    _log: ClassVar[TrialLog | None] = None

    def __post_init__(self) -> None:
        for name in ("examples", "epochs", "workers"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"exploit: {name} must be 1 or more", value)
        require(self.trials >= 0, "exploit: trials must be 1 or more, or 0 for 500", self.trials)
        for name in ("lambda_ce", "lambda_p"):
            value = getattr(self, name)
            require(value is None or value >= 0, f"exploit: {name} must be 0 or more", value)
        spent = self.seconds is None or self.seconds > 0
        require(spent, "exploit: seconds must be more than 0", self.seconds)
        for name, kind in _WORDS.items():
            value, words = getattr(self, name), get_args(kind)
            free = value is None and name in ("choose", "ranges")
            require(free or value in words, f"exploit: {name} must be one of {words}", value)
        published = self.loss == "published"
        if published:
            least = "exploit: loss=published learns from all rows: leave out"
            require(self.examples is None, f"{least} examples", self.examples)
            require(self.choose != "margin", f"{least} choose=margin", self.choose)
        for name in ("raw", "whole"):
            object.__setattr__(self, name, published)
        object.__setattr__(self, "scale_free", not published)
        for name in ("averages", "adds_up"):
            object.__setattr__(self, name, self.memory)

    def resumable(self, log: TrialLog) -> Exploit:
        """Return the same attack; it takes trials that are in the log as done and adds its own."""
        found = copy.copy(self)
        object.__setattr__(found, "_log", log)
        return found

    def limit(self) -> float | None:
        """Return the seconds that one call may take."""
        return self.seconds

    def seconds_at_most(self, *, rows: int, width: int, classes: int) -> float:
        """Return how long one call takes if every trial takes all its epochs, after a short probe.

        The time is that of this machine as it is now, on one processor.
        """
        settings, rng = self._settings(classes), torch.Generator().manual_seed(0)
        drawn = [torch.randn(_PROBE * settings.batch, width, generator=rng) for _ in range(2)]
        probe = ReplayData(
            rows=Rows(*drawn),
            group=torch.arange(_PROBE * settings.batch),
            prior=torch.full((classes,), 1 / classes),
            start=None,
            hidden=hidden_widths(classes),
        )
        with torch.no_grad():
            replay(probe, dataclasses.replace(settings, epochs=1), rng=rng)  # not timed
            began = time.perf_counter()
            replay(probe, dataclasses.replace(settings, epochs=1), rng=rng)
            step = (time.perf_counter() - began) / _PROBE
        learnt = rows if self.whole else min(rows, self.examples or _EXAMPLES)
        steps = -(-learnt // settings.batch) * settings.epochs * (self.trials or _PAPER_TRIALS)
        return steps * step

    def learn(
        self, rows: Rows, known: Known, *, rng: torch.Generator, until: float | None
    ) -> RowClassifier:
        """Return the surrogate of the best trial."""
        count = classes_of(known)
        order, group = content_order(rows)
        rows = rows[order]
        groups = self._groups(rows, count, rng)
        prior = self._prior(known, count, groups)
        mine, held = self._divided(len(rows), rng)
        transform = (
            RowTransform.identity(rows.embeddings.shape[1])
            if self.whole
            else RowTransform.fit(rows[mine])
        )
        start = None
        if self.start == "kmeans" and groups is not None:
            start = _logits_of_groups(groups[mine], prior)
        data = ReplayData(
            rows=transform(rows[mine]),
            group=torch.unique(group[mine], return_inverse=True)[1],
            prior=prior,
            start=start,
            hidden=hidden_widths(count),
        )
        trials = Trials(
            data=data,
            held=transform(rows[held]),
            settings=self._settings(count),
            count=self.trials or _PAPER_TRIALS,
            ranges=self._ranges,
            choose=self.choose or ("gradient" if self.whole else "margin"),
            workers=self.workers,
            log=self._log,
        )
        found = trials.best(rng, until=until)
        if self.whole:
            return ByLabels(found, rows)
        return ByLeastCost(found, transform, rows[mine], weight=self._weight(count))

    def _divided(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the rows to learn from and those to judge trials by: the same if none are left."""
        if self.whole:
            every = torch.arange(count)
            return every, every
        shuffled = torch.randperm(count, generator=rng)
        kept = min(self.examples or _EXAMPLES, count if self.trials == 1 else -(-4 * count // 5))
        mine = shuffled[:kept].sort().values
        return mine, shuffled[kept:].sort().values if kept < count else mine

    def _weight(self, count: int) -> float:
        """Return the weight of cross-entropy in the choice of a row's label.

        With two classes it is zero: their gradients point in opposite directions, which decides.
        """
        if self.choose == "objective":
            return 1.0
        return self._settings(count).lambda_ce if count > 2 else 0.0

    @property
    def _ranges(self) -> Ranges:
        return self.ranges or ("paper" if self.loss == "published" else "ours")

    def _settings(self, count: int) -> Settings:
        """Return what the settings of all trials start from."""
        base = _PUBLISHED if self.loss == "published" else _OURS
        return dataclasses.replace(
            base,
            lambda_ce=base.lambda_ce if self.lambda_ce is None else self.lambda_ce,
            lambda_p=base.lambda_p if self.lambda_p is None else self.lambda_p,
            epochs=self.epochs or base.epochs,
            lift=1.0 if count == 2 and self.loss == "direction" else 0.0,
        )

    def _groups(self, rows: Rows, count: int, rng: torch.Generator) -> Tensor | None:
        """Return the groups of k-means where the start or the prior needs them."""
        if self.start == "cold" and self.prior == "uniform":
            return None
        view = View(grads=rows.gradients, embeddings=rows.embeddings, known=Known(classes=count))
        return KMeans(by="both").clusters(view, rng)

    def _prior(self, known: Known, count: int, groups: Tensor | None) -> Tensor:
        if self.prior == "known" and known.prior is not None:
            shares = known.prior.detach().cpu().double()
        elif groups is None:
            shares = torch.ones(count).double()
        else:
            shares = torch.bincount(groups, minlength=count).double() + 1.0
        return (shares / shares.sum()).float()


@final
@ATTACKS.register("unsplit")
@dataclass(frozen=True)
class Unsplit(SurrogateAttack):
    """Replay the training with surrogates until the gradients' mean squared error is small.

    ``min over g', y' of MSE(g'_i, g_i)`` by Adam at rate 1e-3 for 50 epochs, gradients as they are
    and no regulariser. Published as an attack on top models of one layer; it finds little of
    deeper ones, and is here to be compared with.

    Needs: embeddings, and the number of classes: ``known.classes``, or else 2.

    References:
        Erdogan, Kupcu and Cicek, "UnSplit", as Kariyappa and Qureshi run it: "ExPLOit", section
        2.2 and appendix D.

    Departures: a row has the one-hot label whose gradient under the surrogate lies nearest, and the
    score is the difference of the distances.

    >>> from tacit.types import View
    >>> rng = torch.Generator().manual_seed(0)
    >>> z = torch.randn(40, 3, generator=rng)
    >>> Unsplit().clusters(View(grads=-z, embeddings=z), rng).shape
    torch.Size([40])
    """

    epochs: int = 50
    decode: Decode = "labels"

    raw: ClassVar[bool] = True
    whole: ClassVar[bool] = True
    scale_free: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(self.epochs >= 1, "unsplit: epochs must be 1 or more", self.epochs)
        words = get_args(Decode)
        require(self.decode in words, f"unsplit: decode must be one of {words}", self.decode)

    def learn(
        self, rows: Rows, known: Known, *, rng: torch.Generator, until: float | None
    ) -> RowClassifier:
        """Return the surrogate that was fitted."""
        count = classes_of(known)
        order, group = content_order(rows)
        data = ReplayData(
            rows=rows[order],
            group=group,
            prior=torch.full((count,), 1 / count),
            start=None,
            hidden=hidden_widths(count),
        )
        settings = Settings(
            lambda_ce=0.0,
            lambda_p=0.0,
            rate_net=1e-3,
            rate_labels=1e-3,
            batch=64,
            epochs=self.epochs,
            match="square",
            momentum=True,
            spread=1.0,
        )
        seed = int(torch.randint(2**31 - 1, (1,), generator=rng, device=rng.device))
        found = replay(data, settings, rng=torch.Generator().manual_seed(seed), until=until)
        if self.decode == "labels":
            return ByLabels(found, rows[order])
        return ByLeastCost(found, RowTransform.identity(rows.embeddings.shape[1]), rows)


def _logits_of_groups(groups: Tensor, prior: Tensor) -> Tensor:
    """Return logits of labels by group; the largest group is the most frequent class."""
    by_size = torch.bincount(groups, minlength=len(prior)).argsort(descending=True, stable=True)
    name = torch.empty_like(by_size)
    name[by_size] = prior.argsort(descending=True, stable=True)
    return _GROUP_LOGIT * torch.nn.functional.one_hot(name[groups], len(prior)).float()
