"""The guard's side of label mechanisms: labels randomised once, and no others accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.accounting import Ledger
from tacit.accounting._id_columns import ExampleColumns
from tacit.errors import InputError, ParameterError, ReleaseError
from tacit.measure import (
    bayes_combined_auc,
    flip_for_epsilon,
    gaussian_combined_auc,
    label_sum_kl,
    randomized_label_auc,
)
from tacit.protect.labels.keyed_draws import ExampleDraws, Examples, Ids
from tacit.protect.labels.mechanisms import LabelMechanism, Plan, get_labels
from tacit.protect.labels.randomized_labels import RandomizedLabels
from tacit.rng import Key
from tacit.rows import on_host
from tacit.types import Cut, Flips, LabelCertificate

Ints = npt.NDArray[np.int64]

_FORMAT = 2
_UNSEEN: Final = 2**16 - 1
_FILLS: dict[str, np.generic] = {"sealed": np.uint16(_UNSEEN), "hard": np.uint16(_UNSEEN)}


@final
class LabelGuard:
    """Randomises labels once per example and recognises them when they come back.

    It keeps, per example, the randomised class and the true one under a one-time pad from the label
    secret: enough to refuse a second, different label of an example and labels that are not the
    randomised ones. Without the secret the record tells nothing of true labels.
    """

    def __init__(self, spec: str | LabelMechanism, *, classes: int, key: Key) -> None:
        self.mechanism = get_labels(spec)
        self.mechanism.check_classes(classes)
        self.classes = classes
        self._key = key
        self._scope = repr((self.mechanism.randomisation, classes))
        self._record = ExampleColumns(_FILLS)
        self._plan: Plan | None = None

    @property
    def flips(self) -> Flips | None:
        """The channel for ``tacit.objective.corrected``; None where targets are all that it takes.

        Public: computed from the parameters of the mechanism.
        """
        return self.mechanism.flips(self.classes)

    @property
    def tag(self) -> str | None:
        """A digest of the secret, the randomisation and its plan; None before the first labels.

        Specs that differ in post-processing only have the same.
        """
        return None if self._plan is None else self._tag(self._plan)

    @property
    def secret_tag(self) -> str:
        """A digest of the label secret alone, to recognise it by; it stays at this party."""
        return self._key.digest(b"label secret tag").hex()

    def randomize(
        self, ids: Ids, labels: Tensor | npt.NDArray[Any], *, ledger: Ledger | None = None
    ) -> RandomizedLabels:
        """Return the randomised labels, the same for the same ids whenever it is asked.

        A ledger is charged first; what it refuses is not recorded here.
        """
        examples = Examples.of(ids, self._key)
        classes = _class_numbers(labels, self.classes)
        if len(classes) != len(examples):
            raise InputError(f"ids and labels must match, got {len(examples)} and {len(classes)}")
        draws = ExampleDraws(self._key, examples, scope=self._scope)
        sealed = self._seal(draws, classes)
        self._check_labels(examples.numbers, sealed)
        plan = self._plan
        if plan is None:
            plan = self.mechanism.prepare(classes, draws, classes=self.classes)
        values = self.mechanism.randomize(classes, draws, classes=self.classes, plan=plan)
        if ledger is not None:
            ledger.charge_labels(
                examples.numbers,
                replace(self.certificate(), spec=self.mechanism.randomisation),
                tag=self._tag(plan),
                secret=self.secret_tag,
            )
        places = self._record.find_or_add(examples.numbers)
        self._plan = plan
        self._record["sealed"][places] = sealed
        self._record["hard"][places] = self.mechanism.hard(values).numpy().astype(np.uint16)
        return RandomizedLabels.of(
            values.to(labels.device) if isinstance(labels, Tensor) else values,
            numbers=examples.numbers,
            mechanism=self.mechanism,
            classes=self.classes,
        )

    def admit(self, cut: Cut) -> Cut:
        """Return the cut with ids and randomised classes, or refuse labels that are not those.

        Labels that :meth:`randomize` returned know their examples; others need ``cut.ids``. Either
        way every label is compared with the one that was made for its example.
        """
        labels = cut.labels
        if not isinstance(labels, Tensor):
            raise InputError(f"labels must be a tensor, got {type(labels).__name__}")
        plain = labels.plain if isinstance(labels, RandomizedLabels) else labels
        numbers = self._numbers(cut)
        hard = self.mechanism.hard(plain.detach().cpu())
        expected = self._record.read("hard", numbers)
        if (expected == _UNSEEN).any():
            raise ReleaseError(
                "there is an example whose label was not randomised: call guard.labels(ids, y) for "
                "it first; nothing was released"
            )
        if not np.array_equal(hard.numpy(), expected):
            raise ReleaseError(
                f"these are not the labels that {self.mechanism} made for these examples: pass "
                "what guard.labels(ids, y) returned, not the true labels; nothing was released"
            )
        return replace(cut, labels=hard, ids=torch.from_numpy(numbers))

    def certificate(self, *, baseline_auc: float | None = None) -> LabelCertificate:
        """Return what is claimed of everything that is computed from the randomised labels."""
        claim = self.mechanism.claim(self.classes)
        both: float | None = None
        if claim.epsilon is not None:
            flip = flip_for_epsilon(claim.epsilon, classes=claim.channel)
            alone = randomized_label_auc(flip, classes=claim.channel)
            spent = label_sum_kl(epsilon=claim.epsilon, classes=claim.channel)
            if baseline_auc is not None:
                both = bayes_combined_auc(baseline_auc, flip=flip, classes=claim.channel)
        else:
            mu = claim.mu or 0.0
            alone, spent = gaussian_combined_auc(mu), label_sum_kl(mu=mu)
            if baseline_auc is not None:
                both = gaussian_combined_auc(mu, baseline_auc=baseline_auc)
        return LabelCertificate(
            spec=str(self.mechanism),
            classes=self.classes,
            epsilon=claim.epsilon,
            mu=claim.mu,
            sum_kl=spent,
            auc=alone,
            baseline_auc=baseline_auc,
            combined_auc=both,
            assumption=claim.assumption,
        )

    def to_state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Return the record as plain arrays and values, to refuse changed labels after a restart.

        True labels are in it under a one-time pad; it belongs to the label party all the same,
        because randomised labels are in it as they are.
        """
        keys = self._record.keys()
        arrays = {name: self._record[name].copy() for name in _FILLS}
        if keys is not None:
            arrays["keys"] = keys.copy()
        plan = None if self._plan is None else [list(part) for part in self._plan]
        return arrays, {
            "format": _FORMAT,
            "secret": self.secret_tag,
            "randomisation": self.mechanism.randomisation,
            "classes": self.classes,
            "tag": self.tag,
            "plan": plan,
        }

    def load_state(self, arrays: dict[str, npt.NDArray[Any]], values: dict[str, Any]) -> None:
        """Load the record of an earlier guard with the same secret and randomisation.

        Another post-processing, such as ``correction``, goes on with the same answers.
        """
        self._check_record(values)
        plan = values.get("plan")
        taken = None if plan is None else tuple(tuple(int(c) for c in part) for part in plan)
        if values.get("tag") != (None if taken is None else self._tag(taken)):
            raise InputError(
                f"this record of {self.mechanism} was changed: take up an earlier checkpoint"
            )
        self._record = ExampleColumns.restore(_FILLS, arrays, arrays.get("keys"))
        self._plan = taken

    def _check_record(self, values: dict[str, Any]) -> None:
        """Refuse the record of an earlier version, of another secret or another randomisation."""
        if values.get("format") != _FORMAT:
            raise InputError(
                f"a record of labels has format {_FORMAT}, got {values.get('format')!r:.20}: in "
                "the version that began it the coins depended on the correction too, and going on "
                "could release labels a second time; end the run with that version, or begin a new "
                "one"
            )
        if values.get("secret") != self.secret_tag:
            raise InputError(
                "this record of labels was made under another label secret: bring that one back"
            )
        made = values.get("randomisation"), values.get("classes")
        if made != (self.mechanism.randomisation, self.classes):
            raise InputError(
                f"this record of labels was not made by {self.mechanism} for {self.classes} "
                f"classes but by {made[0]} for {made[1]}: under one secret that would be a second "
                "release of the labels; use the mechanism that it was made with, or a new secret, "
                "whose epsilon adds to the first"
            )

    def _tag(self, plan: Plan) -> str:
        return self._key.digest(repr(("label tag", self._scope, plan)).encode()).hex()

    def _seal(self, draws: ExampleDraws, labels: Ints) -> npt.NDArray[np.uint16]:
        """Return the labels under a one-time pad: equal for equal labels of the same example."""
        pad = (draws.words("seal", 1)[:, 0] & np.uint64(_UNSEEN)).astype(np.int64)
        return ((labels + pad) % _UNSEEN).astype(np.uint16)

    def _check_labels(self, numbers: Ints, sealed: npt.NDArray[np.uint16]) -> None:
        """Refuse an example with two labels; with one coin for both they would both be revealed."""
        order = np.argsort(numbers, kind="stable")
        same = numbers[order][1:] == numbers[order][:-1]
        held = self._record.read("sealed", numbers)
        twice = (same & (sealed[order][1:] != sealed[order][:-1])).any()
        if twice or ((held != _UNSEEN) & (held != sealed)).any():
            raise InputError(
                "an example came with two different labels: each is randomised once, and a second "
                "label would undo that; keep its first label, or give the example a new id"
            )
        if self.mechanism.whole and self._plan is not None and (held == _UNSEEN).any():
            raise InputError(
                f"{self.mechanism} learns from the data set as a whole: pass all examples in the "
                "first call of guard.labels, got a new one later"
            )

    def _numbers(self, cut: Cut) -> Ints:
        """Return the ids of a cut: the labels' own, or those that came beside them."""
        if isinstance(cut.labels, RandomizedLabels):
            numbers = cut.labels.numbers
        elif cut.ids is None:
            raise ReleaseError(
                f"labels are protected by {self.mechanism}: pass what guard.labels(ids, y) "
                "returned, or ids= beside labels that were copied from it; nothing was released"
            )
        else:
            numbers = Examples.of(cut.ids, self._key).numbers
        if len(numbers) != len(cut.labels):
            raise InputError(f"ids must be [{len(cut.labels)}] like labels, got [{len(numbers)}]")
        return numbers


def label_key(secret: bytes | None, seed: int | None) -> Key:
    """Return the key of the label secret: given, from an experiment's seed, or fresh."""
    if secret is not None:
        if not isinstance(secret, bytes) or len(secret) != 32:
            raise ParameterError(
                "label_secret must be 32 bytes: make one with secrets.token_bytes(32) and keep it "
                "with the data set"
            )
        return Key(secret)
    if seed is None:
        return Key.fresh()
    base = Key.from_seed(seed)  # the noise key; the label secret must not be the same
    return Key(base.digest(b"label secret 0") + base.digest(b"label secret 1"))


def _class_numbers(labels: Tensor | npt.NDArray[Any], classes: int) -> Ints:
    """Return labels as classes from 0 on, or say which one is none."""
    if isinstance(labels, RandomizedLabels):
        raise InputError("these labels are randomised already: pass the true ones, once")
    array = on_host(labels) if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise InputError(
            f"labels must be one class per example, got {array.dtype} of shape {array.shape}"
        )
    wrong = array[~((array >= 0) & (array < classes) & (array == np.floor(array)))]
    if len(wrong):
        raise InputError(
            f"labels must be whole numbers from 0 to {classes - 1}, got {wrong[0]:g}: map them, or "
            "set classes= to their number"
        )
    return array.astype(np.int64)
