"""How many releases a budget has room for, settled before the first step.

Where a training ends must not depend on labels: the peer sees it. So a budget is planned from what
both sides may know (how often each example is released) and from what the protection claims of any
release, whatever the batch. What cannot be planned is refused before the first step.
"""

from __future__ import annotations

from tacit.accounting import Budget, Forecast, Ledger, forecast
from tacit.accounting.budget import label_epsilon, rounded_down
from tacit.errors import BudgetError, UsageError
from tacit.guard import Guard
from tacit.party.config import PartyConfig
from tacit.protect import Chain, get
from tacit.protect.gaussian import Gaussian, Iso
from tacit.protect.marvell.protection import Marvell


def claim_ahead(protection: Chain) -> float | None:
    """Return the ``sum_kl`` that no release with a claim exceeds, whatever the batch.

    ``marvell(sum_kl=...)`` and ``marvell(error=...)`` with full covariances reach their target in
    every batch. Noise before them keeps classes Gaussian only if it is the same for all rows, and
    a stage after them that looks at labels voids what they claim.

    >>> claim_ahead(get("marvell(sum_kl=0.1, covariance=full)"))
    0.1
    >>> claim_ahead(get("marvell(s=4, covariance=full)")) is None
    True
    """
    claim: float | None = None
    gaussian = True
    for stage in protection.stages:
        if "labels" in stage.needs:
            claim = _target(stage) if isinstance(stage, Marvell) and gaussian else None
        gaussian = gaussian and isinstance(stage, Gaussian | Iso)
    return claim


def plan_budget(
    budget: str | None, *, protect: str, labels: str | None, classes: int, releases: int
) -> Forecast | None:
    """Return what a training may release, or refuse it; None where nothing adds up over releases.

    Args:
        budget: such as ``"auc=0.7"``; without, there is nothing to plan.
        protect: the protection.
        labels: the label mechanism; it is charged once and covers all that its labels give.
        classes: how many there are.
        releases: how often each example is to be released.
    """
    if budget is None:
        return None
    limit = Budget.parse(budget)
    if labels is not None:
        _check_labels(limit, labels, classes)
        return None
    each = claim_ahead(get(protect))
    plan = forecast(releases, 1.0 if each is None else each, budget=limit)
    if limit.kind == "epsilon":
        raise UsageError(
            f"budget {limit}: {protect} has no epsilon: set the budget as auc= or sum_kl=, or "
            f"randomise the labels once with labels rr(epsilon={plan.epsilon:g})"
        )
    if each is None:
        raise UsageError(f"budget {limit}: {_unplanned(get(protect))}: {plan.way}")
    if plan.allowed == 0:
        raise UsageError(
            f"budget {limit}: one release of {protect} costs sumKL {each:g}, so not even the first "
            f"step fits: {plan.way}"
        )
    return plan


def plan_party(config: PartyConfig, *, classes: int, repeats: int = 0) -> Forecast | None:
    """Return what a label party may release; its budget must have room for all that was agreed on.

    The number of epochs is in the plan that both sides compare, so the run ends where both know it
    will, and a label party that cannot go so far does not begin. ``repeats`` is how many steps its
    operator has allowed to be released again: each may be one more release of the same examples.
    """
    assert config.protect is not None  # noqa: S101 - a label party has one
    plan = plan_budget(
        config.budget,
        protect=config.protect,
        labels=config.labels,
        classes=classes,
        releases=config.epochs + repeats,
    )
    if plan is None or plan.allowed == plan.epochs:
        return plan
    again = f" and {repeats} step{'s' * (repeats > 1)} allowed again" if repeats else ""
    fewer = plan.allowed - repeats
    shorter = f"set epochs = {fewer} on both sides, or " if fewer > 0 else ""
    raise UsageError(
        f"budget {plan.budget}: it lets each example be released at most {plan.allowed} times by "
        f"{config.protect}, and there are {config.epochs} epochs{again}: {shorter}{plan.way}"
    )


def _target(stage: Marvell) -> float | None:
    return stage.target if stage.covariance == "full" else None


def _unplanned(protection: Chain) -> str:
    """Return why nothing can be said of a release before its batch is there."""
    last = next((s for s in reversed(protection.stages) if "labels" in s.needs), None)
    if isinstance(last, Marvell) and last.s is not None:
        return (
            f"what a release of {protection} costs depends on the labels of its batch, so that "
            "where the budget ends would tell something of them"
        )
    if isinstance(last, Marvell) and last.covariance != "full":
        return (
            f"{protection} claims nothing where gradients lie near a few directions, and whether "
            "they do depends on the labels of each batch"
        )
    return f"{protection} claims nothing that a budget could count"


def _check_labels(budget: Budget, labels: str, classes: int) -> None:
    """Refuse a label mechanism that alone is more than the budget."""
    claim = Guard("none", labels=labels, classes=classes, seed=0).label_certificate()
    try:
        Ledger(run="plan", budget=budget).charge_labels([0], claim, tag="plan")
    except BudgetError:
        costs = "no epsilon" if claim.epsilon is None else f"epsilon {claim.epsilon:g}"
        epsilon = rounded_down(label_epsilon(budget))
        raise UsageError(
            f"budget {budget}: {labels} alone is more, with {costs} and sumKL {claim.sum_kl:.3g}: "
            f"use labels rr(epsilon={epsilon:g}), which fits two classes, or a larger budget"
        ) from None
