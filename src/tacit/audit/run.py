"""The audit: attacks on a tape, judged against the labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from torch import Tensor

from tacit.attack import Attack
from tacit.audit.attack_choice import choose
from tacit.audit.attack_run import AttackRun, confusions, start_run
from tacit.audit.feature_table import FeatureTable
from tacit.audit.gallery import Gallery, Images, RecoveredLabels
from tacit.audit.inputs import inputs_only, inputs_record
from tacit.audit.result import FORMAT, AuditResult, histogram, roc
from tacit.audit.row_window import Features, RowWindow, baseline_of, read_features
from tacit.audit.table import AuditClaim, row_of, supervised_row
from tacit.audit.truth import Labels, TapeSummary, Truth, summarise
from tacit.audit.verdict import advice, headline, severity
from tacit.errors import UsageError
from tacit.tape.columns import ViewTape
from tacit.tape.imports import open_tape
from tacit.tape.tape import Recording
from tacit.types import Certificate, Known, Tape

Progress = Callable[[str, int, int], None]
"""Called with the current task, the rows that are done and the rows in all."""


def run_audit(
    tape: Tape | Path | str,
    truth: Labels | None = None,
    attacks: Sequence[str | Attack] | None = None,
    *,
    inputs: FeatureTable | None = None,
    certificate: Certificate | Mapping[str, Any] | None = None,
    features: Features | None = None,
    images: Images | None = None,
    threshold: float | None = None,
    seconds: float = 120.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> AuditResult:
    """Return how much a tape leaks, by which attack and from which epoch on.

    Args:
        tape: what the feature party saw: a path, or any iterable of views.
        truth: the labels: a path, a mapping from id to label, or an array in row order; it may
            be left out where only ``inputs`` are audited.
        attacks: specs; by default all that apply.
        inputs: features by column: the record also says how well embeddings show them.
        certificate: what the protection claims of one release; a mapping may name the label
            mechanism beside it, as ``labels``.
        features: the raw features for the prediction baseline, row ``i`` for example ``i``;
            without them, the embeddings of the first epoch stand in.
        images: pictures of the examples, for the page to show some with the labels recovered.
        threshold: the leak AUC to judge by; by default what features alone predict.
        seconds: the time for each attack; one that takes longer is judged by what it has seen.
        seed: of side information, folds and intervals.
        progress: called as the audit goes on.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(512) % 4 == 0
    >>> grads = np.outer(np.where(y, -3.0, 1.0), np.ones(8)) + 0.1 * rng.normal(size=(512, 8))
    >>> from tacit.tape import ColumnTape
    >>> result = run_audit(ColumnTape.of({"grads": grads}), y, attacks=["norm"])
    >>> result.worst()["attack"], result.worst()["leak_auc"], result.worst()["state"]
    ('norm', 1.0, 'leaks')
    """
    _check_settings(threshold, seconds, seed)
    recording = _recording(tape)
    report = progress or (lambda _what, _done, _of: None)
    report("reading", 0, 1)
    if truth is None:
        if inputs is None:
            raise UsageError("an audit needs the labels or the features of the tape's examples")
        alone = inputs_record(recording, inputs, seed=seed, progress=report)
        return AuditResult({"format": FORMAT, **inputs_only(recording, alone)})
    summary = summarise(recording)
    labels = Truth.read(truth, recording, summary)
    chosen, skipped = choose(attacks, summary, labels)
    audit = _Audit(
        recording=recording,
        summary=summary,
        truth=labels,
        gallery=None if images is None else Gallery.over(images, recording, labels),
        claim=AuditClaim.of(certificate, releases=summary.per_example),
        threshold=threshold,
        seconds=seconds,
        seed=seed,
        progress=report,
    )
    result = audit.run(chosen, skipped, features)
    if inputs is None:
        return result
    shown = inputs_record(recording, inputs, seed=seed, progress=report)
    return replace(result, record={**result.record, **shown})


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Audit:
    """The inputs and settings of one audit, and its steps."""

    recording: Recording
    summary: TapeSummary
    truth: Truth
    gallery: Gallery | None
    claim: AuditClaim
    threshold: float | None
    seconds: float
    seed: int
    progress: Progress

    def run(
        self,
        chosen: list[Attack],
        skipped: list[dict[str, str]],
        features: Features | None,
    ) -> AuditResult:
        trained = [attack for attack in chosen if "labelled" in attack.needs]
        runs = [
            start_run(
                attack,
                budget=self.seconds,
                seed=self.seed,
                classes=self.truth.classes,
                epochs=self.summary.epochs,
            )
            for attack in chosen
            if attack not in trained
        ]
        window = self._run_over_tape(runs)
        self.progress("prediction baseline", 0, 1)
        base, after = self._baselines(window, features, skipped)
        rows, samples, recovered = [], {}, {}
        for run in runs:
            row = row_of(run, self.claim, baseline=base, threshold=self.threshold, truth=self.truth)
            if row is None:
                skipped.append({"attack": str(run.attack), "reason": "no batch could be judged"})
                continue
            rows.append(row)
            samples[row["attack"]] = run.sample()
            if (groups := run.clustering()) is not None:
                recovered[row["attack"]] = RecoveredLabels.of(groups)
        for attack in trained:
            self.progress(str(attack), 0, 1)
            try:
                row, sample, named = supervised_row(
                    attack,
                    window,
                    self.claim,
                    baseline=base,
                    threshold=self.threshold,
                    truth=self.truth,
                    seed=self.seed,
                    seconds=self.seconds,
                )
            except UsageError as error:  # too few rows of a class to train on
                skipped.append({"attack": str(attack), "reason": str(error)})
                continue
            rows.append(row)
            samples[row["attack"]] = sample
            if named is not None:
                recovered[row["attack"]] = named
        return self._result(rows, runs, samples, recovered, skipped, base, after)

    def _run_over_tape(self, runs: list[AttackRun]) -> RowWindow:
        """Show every attack each view of the tape once."""
        window, epoch, done = RowWindow(), None, 0
        known = Known(classes=self.truth.classes, prior=self.truth.prior())
        for view in self.recording:
            assert view.ids is not None  # noqa: S101 - recordings have them
            if epoch is not None and view.epoch != epoch:
                self._end_epoch(runs, epoch)
            epoch = view.epoch if view.epoch is not None else 0
            labels = self.truth.of(view.ids)
            view = replace(view, known=known)  # noqa: PLW2901
            for run in runs:
                run.add(view, labels)
            window.add(view, labels)
            done += len(labels)
            self.progress("attacking", done, len(self.summary.rows))
        self._end_epoch(runs, epoch or 0)
        return window

    def _end_epoch(self, runs: list[AttackRun], epoch: int) -> None:
        for run in runs:
            run.end_epoch(epoch, self.truth)

    def _baselines(
        self, window: RowWindow, features: Features | None, skipped: list[dict[str, str]]
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Return what features predict, and what the trained embeddings predict."""
        first = window.first_embeddings()
        view, labels = window.latest()
        base = after = None
        if features is not None:
            base = baseline_of(
                *read_features(features, self.truth), origin="features", seed=self.seed
            )
        elif first is not None:
            base = self._baseline(*first, "embeddings of the first epoch", skipped)
        if view.embeddings is not None and self.summary.epochs > 1:
            sent = view.embeddings.flatten(1)
            after = self._baseline(sent, labels, "embeddings of the last epoch", skipped)
        return base, after

    def _baseline(
        self, features: Tensor, labels: Tensor, origin: str, skipped: list[dict[str, str]]
    ) -> dict[str, Any] | None:
        """Return what embeddings predict, or None with too few rows or only one class."""
        try:
            return baseline_of(features, labels, origin=origin, seed=self.seed)
        except UsageError as error:
            skipped.append({"attack": f"baseline from {origin}", "reason": str(error)})
            return None

    def _result(
        self,
        rows: list[dict[str, Any]],
        runs: list[AttackRun],
        samples: dict[str, Any],
        recovered: dict[str, RecoveredLabels],
        skipped: list[dict[str, str]],
        base: dict[str, Any] | None,
        after: dict[str, Any] | None,
    ) -> AuditResult:
        overall = headline(rows)
        binary = self.truth.classes == 2
        shown = (
            (None, {}) if self.gallery is None else self.gallery.record(recovered, seed=self.seed)
        )
        return AuditResult(
            {
                "format": FORMAT,
                "verdict": overall.text,
                "state": overall.state,
                "tape": self._tape(),
                "truth": {
                    "source": self.truth.source,
                    "classes": self.truth.classes,
                    "positives": self.truth.positives,
                },
                "certificate": self.claim.certificate,
                "baseline": base,
                "trained": after,
                "table": rows,
                "worst": max(rows, key=severity)["attack"] if rows else None,
                "epochs": {str(t.attack): [asdict(e) for e in t.epochs] for t in runs if t.epochs},
                "reference": self.claim.reference(self.summary.numbers),
                "confusion": confusions(runs),
                "pictures": shown[0],
                "curves": {n: roc(*s) for n, s in samples.items() if binary},
                "histograms": {n: histogram(*s) for n, s in samples.items() if binary},
                "advice": [*self._warnings(), *advice(rows, baseline=base is not None)],
                "skipped": skipped,
            },
            shown[1],
        )

    def _warnings(self) -> list[str]:
        zeros, steps = self.summary.zeros, self.summary.steps
        if not zeros:
            return []
        return [
            f"All gradients are zero in {zeros:,} of {steps:,} steps, and nothing can be found in "
            "those: check that they were recorded after the backward pass."
        ]

    def _tape(self) -> dict[str, Any]:
        return {
            "source": self.recording.source,
            "rows": len(self.summary.rows),
            "examples": self.summary.examples,
            "steps": self.summary.steps,
            "epochs": self.summary.epochs,
            "width": self.summary.width,
            "embeddings": self.summary.embeddings,
            "damaged": self.recording.damaged,
        }


def _check_settings(threshold: float | None, seconds: float, seed: int) -> None:
    if threshold is not None and not 0.5 <= threshold <= 1:
        raise UsageError(f"threshold {threshold:g}: a leak AUC is between 0.5 and 1")
    if not seconds > 0:
        raise UsageError(f"seconds {seconds:g}: each attack needs some time, such as 120")
    if seed < 0:
        raise UsageError(f"seed {seed}: must be 0 or more")


def _recording(tape: Tape | Path | str) -> Recording:
    if isinstance(tape, Recording):
        return tape
    return open_tape(tape) if isinstance(tape, Path | str) else ViewTape(tape)
