"""Gradient matching: replay the training with a surrogate top model and surrogate labels.

:func:`replay` runs one replay by gradient descent. :class:`Trials` runs several with different
settings and chooses one of them without any label.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.attack.learned._surrogate import (
    Rows,
    fully_connected,
    input_gradient,
    logits_and_masks,
    unit,
)

TIE_BREAK: Final = 1e-6  # a weight so small that it decides only between equal costs
_FLOOR: Final = 1e-9  # a class's share in a batch counts as at least this


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """The hyperparameters of one replay.

    Attributes:
        lambda_ce: weight of the cross-entropy over the prior's entropy, 0 for none.
        lambda_p: weight of the divergence of the labels' shares from the prior, 0 for none.
        rate_net: learning rate of the surrogate's weights.
        rate_labels: learning rate of the surrogate labels' logits.
        batch: rows per step.
        epochs: passes over the rows.
        raw: match gradients as they are by their mean squared error, not their directions.
        spread: standard deviation of the labels' logits at the start.
        lift: added to the hidden biases at the start. It switches the hidden units on, so that the
            surrogate starts out almost linear. Otherwise its sign may differ from region to region:
            with two classes, a surrogate and labels that are both reversed in one region explain
            the gradients there just as well.
    """

    lambda_ce: float = 3.0
    lambda_p: float = 10.0
    rate_net: float = 3e-4
    rate_labels: float = 0.3
    batch: int = 128
    epochs: int = 200
    raw: bool = False
    spread: float = 0.1
    lift: float = 0.0


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayData:
    """The rows that a replay explains.

    Attributes:
        rows: embeddings and gradients in the surrogate's coordinates.
        group: ``[n]``, the same number for equal rows; they share one label.
        prior: ``[classes]``, how frequent each class is.
        start: ``[n, classes]`` logits that the labels start from besides a random draw, or None.
        hidden: widths of the surrogate's hidden layers.
    """

    rows: Rows
    group: Tensor
    prior: Tensor
    start: Tensor | None
    hidden: tuple[int, ...]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """The outcome of one replay.

    Attributes:
        net: the surrogate.
        labels: ``[n, classes]``, the surrogate labels' logits.
        gradient_loss: the mean distance of the gradients over the last epoch.
        objective: Eq. 9 with both weights at 1, over all rows at the end.
        settings: its hyperparameters.
        prior: ``[classes]``, how frequent each class is.
        late: whether it ran out of time.
    """

    net: nn.Sequential
    labels: Tensor
    gradient_loss: float
    objective: float
    settings: Settings
    prior: Tensor
    late: bool

    def costs(self, rows: Rows, *, weight: float = TIE_BREAK) -> Tensor:
        """Return what each label would cost each row ``[n, classes]``: Eq. 9 at one-hot labels.

        ``||g'_c - g|| + weight * H(e_c, p') / H(P)``, both gradients at length one. The default
        weight decides only where a gradient is zero.
        """
        with torch.no_grad():
            far, chances = self.distances(rows)
            return far - weight * chances / _entropy(self.prior)

    def distances(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the distance of the gradients under each label, and the log-probabilities."""
        scaled = _as_is if self.settings.raw else unit
        with torch.no_grad():
            net, rows = copy.deepcopy(self.net).double(), rows.double()
            logits, masks = logits_and_masks(net, rows.embeddings)
            chances = functional.log_softmax(logits, dim=1)
            seen, found = scaled(rows.gradients), []
            for label in range(logits.shape[1]):
                residual = chances.exp()
                residual[:, label] = torch.expm1(chances[:, label])  # exact where p is nearly 1
                near = scaled(input_gradient(net, residual, masks))
                found.append(torch.linalg.vector_norm(near - seen, dim=1))
            return torch.stack(found, dim=1), chances


@final
class _Labels:
    """Logits of the surrogate labels, one row per group of equal rows, each with its own Adam.

    Only the rows of a batch move: ``torch.optim.Adam`` would go on pushing all others by their
    momentum. ``torch.optim.SparseAdam`` moves these rows alone too, but corrects its averages by
    the number of all steps, not by how often a row has moved.
    """

    def __init__(self, start: Tensor, rate: float, *, shared: bool) -> None:
        self.logits, self._rate, self._shared = start, rate, shared
        self._mean, self._square = torch.zeros_like(start), torch.zeros_like(start)

    def step(self, positions: Tensor, grads: Tensor, passes: int) -> None:
        """Move the labels of a batch; equal rows are one label and their gradients add up."""
        if self._shared:
            positions, member = torch.unique(positions, return_inverse=True)
            grads = torch.zeros(len(positions), grads.shape[1]).index_add_(0, member, grads)
        mean = self._mean[positions].lerp_(grads, 0.1)
        square = self._square[positions].mul_(0.99).addcmul_(grads, grads, value=0.01)
        self._mean[positions], self._square[positions] = mean, square
        near, spread = mean / (1 - 0.9**passes), (square / (1 - 0.99**passes)).sqrt()
        self.logits[positions] -= self._rate * near / (spread + _FLOOR**2)


def replay(
    data: ReplayData, settings: Settings, *, rng: torch.Generator, until: float | None = None
) -> Replay:
    """Return the surrogate and the labels that explain the rows best, found by gradient descent."""
    classes, rows = len(data.prior), data.rows
    widths = [rows.embeddings.shape[1], *data.hidden, classes]
    net = fully_connected(widths, rng, lift=settings.lift)
    start = _start(data, settings, rng)
    labels = _Labels(start, settings.rate_labels, shared=len(start) < len(rows))
    # Fused takes 48 microseconds a step, the default 164: most of it is overhead of small tensors.
    optimiser = torch.optim.Adam(net.parameters(), lr=settings.rate_net, fused=True)
    loss, found, late = 0.0, _loss(data, settings), False
    for passes in range(1, settings.epochs + 1):
        total = 0.0
        for batch in torch.split(torch.randperm(len(rows), generator=rng), settings.batch):
            positions = data.group[batch]
            with torch.enable_grad():
                logits = labels.logits[positions].requires_grad_()
                terms = found(net, rows[batch], logits)
            optimiser.zero_grad()
            torch.autograd.backward(terms[0])
            optimiser.step()
            assert logits.grad is not None  # noqa: S101 - every loss depends on the labels
            labels.step(positions, logits.grad, passes)
            total += float(terms[1].detach()) * len(batch)
        loss = total / len(rows)
        if until is not None and time.perf_counter() > until and passes < settings.epochs:
            late = True
            break
    return Replay(
        net=net,
        labels=labels.logits[data.group],
        gradient_loss=loss,
        objective=_objective(data, net, labels.logits[data.group]),
        settings=settings,
        prior=data.prior,
        late=late,
    )


def _start(data: ReplayData, settings: Settings, rng: torch.Generator) -> Tensor:
    groups = int(data.group.max()) + 1
    start = settings.spread * torch.randn(groups, len(data.prior), generator=rng)
    if data.start is not None:
        start[data.group] += data.start
    return start


def _loss(
    data: ReplayData, settings: Settings
) -> Callable[[nn.Sequential, Rows, Tensor], tuple[Tensor, Tensor]]:
    """Return Eq. 9 as a function of the surrogate, a batch and its labels' logits."""
    prior, entropy = data.prior, _entropy(data.prior)

    def found(net: nn.Sequential, rows: Rows, logits: Tensor) -> tuple[Tensor, Tensor]:
        guessed, masks = logits_and_masks(net, rows.embeddings)
        chances, labels = functional.log_softmax(guessed, dim=1), logits.softmax(dim=1)
        if settings.raw:
            near = input_gradient(net, chances.exp() - labels, masks)
            match = functional.mse_loss(near, rows.gradients)
        elif len(prior) == 2:
            match = _two_sided(net, masks, unit(rows.gradients), labels)
        else:
            near = unit(input_gradient(net, chances.exp() - labels, masks))
            match = torch.linalg.vector_norm(near - unit(rows.gradients), dim=1).mean()
        loss = match
        if settings.lambda_ce:
            loss = loss - settings.lambda_ce * (labels * chances).sum(dim=1).mean() / entropy
        if settings.lambda_p:
            loss = loss + settings.lambda_p * _divergence(prior, labels.mean(dim=0))
        return loss, match

    return found


def _two_sided(net: nn.Sequential, masks: list[Tensor], seen: Tensor, labels: Tensor) -> Tensor:
    """Return the expected distance of the gradients under soft labels of two classes.

    With two classes ``p - y`` is ``(-a, a)``: at length one, a soft label can only reverse the
    gradient or leave it, so the distance has no derivative by the label. The distances under both
    hard labels, weighted by their probabilities, have one.
    """
    turned = torch.tensor([-1.0, 1.0]).expand(len(seen), 2)
    near = unit(input_gradient(net, turned, masks))
    far = [torch.linalg.vector_norm(side - seen, dim=1) for side in (near, -near)]
    return (labels * torch.stack(far, dim=1)).sum(dim=1).mean()


def _objective(data: ReplayData, net: nn.Sequential, logits: Tensor) -> float:
    """Return Eq. 9 over all rows with both weights at 1."""
    with torch.no_grad():
        equal = _loss(data, Settings(lambda_ce=1.0, lambda_p=1.0))
        return float(equal(net, data.rows, logits)[0])


def _as_is(rows: Tensor) -> Tensor:
    return rows


def _entropy(prior: Tensor) -> float:
    return max(float(-torch.xlogy(prior, prior).sum()), _FLOOR)


def _divergence(prior: Tensor, shares: Tensor) -> Tensor:
    """Return ``KL(prior || shares)``."""
    return (torch.xlogy(prior, prior) - prior * shares.clamp_min(_FLOOR).log()).sum()


# --- several replays, and which one to choose -----------------------------------------------------

Choose = Literal["margin", "gradient", "objective"]
Ranges = Literal["ours", "paper"]
_RATES: Final = ("rate_net", "rate_labels", "lambda_ce", "lambda_p")
RANGES: Final[Mapping[Ranges, Mapping[str, tuple[float, float]]]] = {
    "ours": dict(zip(_RATES, ((1e-4, 1e-3), (0.1, 1.0), (1.0, 5.0), (3.0, 20.0)), strict=True)),
    "paper": dict(zip(_RATES, ((1e-5, 1e-4), (1e-2, 1e-1), (0.1, 3.0), (0.1, 3.0)), strict=True)),
}


def held_out_margin(found: Replay, rows: Rows) -> float:
    """Return how clearly the surrogate tells which label made each gradient, on held-out rows.

    ``E[d_2 - d_1] - KL(P || P')`` with ``d_1 <= d_2`` the distances of a row's gradient, at length
    one, from those that its two best labels would have made, and ``P'`` the shares of the best
    labels. A surrogate that has only fitted free labels to gradients cannot tell them apart there.
    """
    far, _ = found.distances(rows)
    nearest = far.topk(2, dim=1, largest=False)
    margin = float((nearest.values[:, 1] - nearest.values[:, 0]).mean())
    shares = torch.bincount(nearest.indices[:, 0], minlength=far.shape[1]) / len(rows)
    # A class without any row counts as if it had half of one.
    ratio = found.prior / shares.clamp_min(0.5 / len(rows))
    return margin - float(torch.xlogy(found.prior, ratio).sum())


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Trials:
    """Several replays of the same rows, and the rule by which one is chosen.

    Attributes:
        data: the rows to explain.
        held: rows that no replay learns from.
        settings: of the first trial; a weight of 0 stays 0 in all.
        count: how many trials at most.
        ranges: the search space of the other trials' settings.
        choose: the rule.
        workers: how many processes to run trials in; 1 for the calling process.
    """

    data: ReplayData
    held: Rows
    settings: Settings
    count: int
    ranges: Ranges
    choose: Choose
    workers: int = 1

    def best(self, rng: torch.Generator, *, until: float | None) -> Replay:
        """Return the best replay by the rule; late if time did not suffice for all of them."""
        found: list[tuple[float, Replay]] = []
        began = time.perf_counter()
        for number, batch in enumerate(self._batches(rng, found)):
            spent = (time.perf_counter() - began) / max(1, number)
            if number and until is not None and time.perf_counter() + 0.7 * spent > until:
                break
            found += [(self._loss(one), one) for one in batch(_seconds_left(until))]
        chosen = min(found, key=lambda one: one[0])[1]
        return dataclasses.replace(chosen, late=chosen.late or len(found) < self.count)

    def _loss(self, found: Replay) -> float:
        if self.choose == "gradient":
            return found.gradient_loss
        return found.objective if self.choose == "objective" else -held_out_margin(found, self.held)

    def _batches(
        self, rng: torch.Generator, found: list[tuple[float, Replay]]
    ) -> Iterator[Callable[[float | None], list[Replay]]]:
        """Yield batches of trials, one trial per worker; the search knows all earlier results."""
        if self.count == 1:
            seed = _draw_seed(rng)
            yield partial(_run_trials, None, self.data, [(self.settings, seed)])
            return
        with _quiet_study(_draw_seed(rng)) as study, _pool(self.workers) as pool:
            first = {n: getattr(self.settings, n) for n in _RATES if getattr(self.settings, n) > 0}
            study.enqueue_trial(first, skip_if_exists=False)
            for start in range(0, self.count, self.workers):
                asked = [study.ask() for _ in range(min(self.workers, self.count - start))]
                plans = [(self._settings(trial), _draw_seed(rng)) for trial in asked]
                yield partial(_run_trials, pool, self.data, plans)
                for trial, (loss, _) in zip(asked, found[start:], strict=True):
                    study.tell(trial, loss)

    def _settings(self, trial: Any) -> Settings:  # noqa: ANN401 - optuna has no types
        ranges = RANGES[self.ranges]
        wanted = {
            name: trial.suggest_float(name, *_around(ranges[name], start), log=True)
            for name in _RATES
            if (start := getattr(self.settings, name)) > 0
        }
        return dataclasses.replace(self.settings, **wanted)


def _around(span: tuple[float, float], start: float) -> tuple[float, float]:
    """Return the range, widened to hold the value that the search starts from."""
    return min(span[0], start), max(span[1], start)


def _run(data: ReplayData, settings: Settings, seed: int, seconds: float | None) -> Replay:
    until = None if seconds is None else time.perf_counter() + seconds
    return replay(data, settings, rng=torch.Generator().manual_seed(seed), until=until)


def _run_trials(
    pool: ProcessPoolExecutor | None,
    data: ReplayData,
    plans: list[tuple[Settings, int]],
    seconds: float | None,
) -> list[Replay]:
    if pool is None:
        return [_run(data, *plan, seconds) for plan in plans]
    jobs = [pool.submit(_run, data, *plan, seconds) for plan in plans]
    return [job.result() for job in jobs]


def _seconds_left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.perf_counter())


def _draw_seed(rng: torch.Generator) -> int:
    return int(torch.randint(2**31 - 1, (1,), generator=rng, device=rng.device))


@contextmanager
def _quiet_study(seed: int) -> Iterator[Any]:
    """Yield a search by a tree-structured Parzen estimator that logs warnings only."""
    import optuna  # noqa: PLC0415 - a second to load

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor | None]:
    """Yield processes with one thread each, or None for a single worker."""
    if workers == 1:
        yield None
        return
    context = torch.multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        yield pool
