"""Classifiers of scikit-learn as heads: found by name, built from literals, saved with skops."""

from __future__ import annotations

import ast
import importlib
import re
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from tacit import measure
from tacit.errors import InputError, SpecError
from tacit.heads.base import (
    EmbeddedRows,
    Fitted,
    FittedHead,
    Head,
    HeadEpoch,
    HeadSettings,
    OnEpoch,
    held_out_score,
)
from tacit.nets import Inputs
from tacit.spec import nearest

PREFIX = "sklearn:"
_CHUNK = 8192
_FEW_VALUES = 32
"""A category with more values is one column of codes, not a column for each value."""
_JUDGED = 10_000
"""How many training rows the training loss is taken from: neighbours are slow to look up."""

_ALLOWED = frozenset(
    {
        "sklearn.calibration._CalibratedClassifier",
        "sklearn.calibration._SigmoidCalibration",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
        "sklearn.gaussian_process.kernels.ConstantKernel",
        "sklearn.gaussian_process.kernels.Product",
        "sklearn.gaussian_process.kernels.RBF",
        "sklearn.metrics._dist_metrics.EuclideanDistance64",
        "sklearn.metrics._dist_metrics.ManhattanDistance64",
        "sklearn.metrics._dist_metrics.MinkowskiDistance64",
        "sklearn.neighbors._ball_tree.BallTree",
        "sklearn.neighbors._ball_tree.BallTree64",
        "sklearn.neighbors._kd_tree.KDTree",
        "sklearn.neighbors._kd_tree.KDTree64",
        "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
        "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
        "sklearn.tree._tree.Tree",
    }
)
"""What a saved estimator may hold beside the types that skops itself trusts."""


@final
@dataclass(frozen=True)
class Estimator(Head):
    """A classifier of scikit-learn, on embeddings and the label party's own columns.

    Written ``sklearn:Name(parameter=literal, ...)``, or ``sklearn:package.Name(...)`` for a class
    that is not in scikit-learn's own list. A ``random_state`` that is not given is the seed.
    """

    suffix = "skops"

    name: str
    arguments: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Estimator:
        """Return the head of a spec, with its estimator made once to see that it can be.

        >>> str(Estimator.parse("sklearn:LogisticRegression( C = 0.1 )"))
        'sklearn:LogisticRegression(C=0.1)'
        """
        head = cls(*_parsed(text))
        head.make(seed=0)
        return head

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.arguments)
        return f"{PREFIX}{self.name}({said})" if said else f"{PREFIX}{self.name}"

    def make(self, *, seed: int) -> Any:  # noqa: ANN401 - scikit-learn has no types
        """Return the estimator before it is trained, or say why there is none."""
        found = _class_of(self.name)
        known = sorted(found._get_param_names())
        for name, _ in self.arguments:
            if name not in known:
                raise SpecError(f"head {self}: no parameter {name!r}: {_nearest(name, known)}")
        try:
            made = found(**dict(self.arguments))
            if "random_state" in known and "random_state" not in dict(self.arguments):
                made.set_params(random_state=seed % 2**32)
            made._validate_params()
        except (TypeError, ValueError) as error:
            raise SpecError(f"head {self}: {' '.join(str(error).split())}") from None
        if not hasattr(made, "predict_proba"):
            raise SpecError(
                f"head {self}: it predicts no probabilities: take LogisticRegression or "
                "HistGradientBoostingClassifier, or a parameter that switches them on"
            )
        return made

    def check(self) -> None:
        """Refuse, before any row is there, an estimator that could not be saved.

        A few rows of noise show which types it holds when it is trained. One that cannot be trained
        on them may be on others.
        """
        numbers = np.random.default_rng(0).random((64, 4), dtype=np.float32)
        model = self.make(seed=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model.fit(numbers, np.arange(64) % 2)
            except (ValueError, np.linalg.LinAlgError):
                return
        FittedEstimator(model, 2, Fitted(epochs=1)).to_bytes()

    def fit(
        self,
        examples: EmbeddedRows,
        labels: Tensor,
        *,
        train: Tensor,
        held: Tensor,
        classes: int,
        settings: HeadSettings,
        done: OnEpoch,
    ) -> FittedEstimator:
        """Train once; ``held`` judges what came of it and chooses nothing."""
        model = self.make(seed=settings.seed)
        try:
            model.fit(np.concatenate([*_columns(examples, train)]), labels[train].numpy())
        except (ValueError, np.linalg.LinAlgError, MemoryError) as error:
            said = " ".join(str(error).split())
            raise InputError(f"head {self} cannot be trained on these rows: {said}") from None
        judged = train[:_JUDGED]
        head = FittedEstimator(model, classes, Fitted(epochs=1))
        loss = float(
            measure.log_loss(head.predict(examples, judged).numpy(), labels[judged].numpy())
        )
        name, score = None, None
        if len(held):
            found = head.predict(examples, held).numpy()
            name, score = held_out_score(found, labels[held].numpy())
        head.fitted = Fitted(epochs=1, measure=name, score=score, losses=(loss,))
        done(HeadEpoch(number=1, most=1, loss=loss, head=head))
        return head

    def load(
        self, content: bytes, *, width: int, inputs: Inputs | None, classes: int
    ) -> FittedEstimator:
        """Return the estimator of these bytes, of this class and for such columns only."""
        from skops import io  # noqa: PLC0415 - loads only when used

        try:
            strange = _strange_types(content)
            if strange:
                raise InputError(
                    f"this saved head holds {strange[0]}, which no head that tacit saves holds: "
                    "it is not read"
                )
            found = io.loads(content, trusted=sorted(_ALLOWED))
            model, fitted = found["estimator"], found["fitted"]
            record = Fitted(**{**fitted, "losses": tuple(fitted["losses"])})
        except (zipfile.BadZipFile, KeyError, TypeError, ValueError, AttributeError) as error:
            said = " ".join(str(error).split())
            raise InputError(f"this is no saved head {self}: {said}") from None
        wanted = width + _own_width(inputs)
        if type(model) is not _class_of(self.name):
            raise InputError(f"this saved head is a {type(model).__name__}, not {self}")
        if getattr(model, "n_features_in_", wanted) != wanted:
            raise InputError(
                f"this saved head takes {model.n_features_in_} columns, these rows have {wanted}: "
                "it was trained on others"
            )
        return FittedEstimator(model, classes, record)


@final
class FittedEstimator(FittedHead):
    """A trained estimator."""

    def __init__(self, model: Any, classes: int, fitted: Fitted) -> None:  # noqa: ANN401
        self.model, self.fitted, self._classes = model, fitted, classes

    def predict(self, examples: EmbeddedRows, rows: Tensor) -> Tensor:
        """Return probabilities; a class that no training row had has none."""
        probs = np.zeros((len(rows), self._classes))
        at = 0
        for part in _columns(examples, rows):
            found = self.model.predict_proba(part)
            probs[at : at + len(part), self.model.classes_.astype(int)] = found
            at += len(part)
        every = torch.from_numpy(probs).float()
        return every[:, 1] if self._classes == 2 else every

    def to_bytes(self) -> bytes:
        """Return estimator and record in skops' format."""
        from skops import io  # noqa: PLC0415 - loads only when used

        content: bytes = io.dumps({"estimator": self.model, "fitted": asdict(self.fitted)})
        strange = _strange_types(content)
        if strange:
            raise InputError(
                f"{type(self.model).__name__} with these parameters holds {strange[0]}, which is "
                "not on the list of types that a saved head may hold: take other parameters"
            )
        return content


def _strange_types(content: bytes) -> list[str]:
    """Return the types in a file of skops that are on no list."""
    from skops import io  # noqa: PLC0415 - loads only when used

    return [name for name in io.get_untrusted_types(data=content) if name not in _ALLOWED]


def _parsed(text: str) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """Return the name of the estimator and its parameters."""
    body = text.removeprefix(PREFIX).strip()
    way = "write sklearn:Name(parameter=value, ...), such as sklearn:LogisticRegression(C=0.1)"
    try:
        node = ast.parse(body, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError(f"head {text!r} is not written as a head: {way}") from None
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    name = ast.unparse(call.func)
    if re.fullmatch(r"\w+(\.\w+)*", name) is None:
        raise SpecError(f"head {text!r} has no name: {way}")
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        raise SpecError(f"head {text!r}: a parameter needs its name: {way}")
    found: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg in found:
            raise SpecError(f"head {text!r}: {keyword.arg} is given twice")
        try:
            found[str(keyword.arg)] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, RecursionError, MemoryError):
            given = ast.unparse(keyword.value)
            raise SpecError(
                f"head {text!r}: {keyword.arg}={given}: values are literals: a number, a text in "
                "quotes, True, False, None, or lists of them"
            ) from None
    return name, tuple(found.items())


@cache
def _class_of(name: str) -> Any:  # noqa: ANN401 - as above
    """Return a classifier by its name, or by its path in the package sklearn."""
    from sklearn.base import ClassifierMixin  # noqa: PLC0415 - slow to import
    from sklearn.utils import all_estimators  # noqa: PLC0415 - as above

    known = dict(all_estimators())
    found = known.get(name) or _imported(name)
    if found is None:
        short = name.rpartition(".")[2]
        raise SpecError(
            f"head {PREFIX}{name}: scikit-learn has no such estimator: "
            f"{_nearest(short, [n for n in known if issubclass(known[n], ClassifierMixin)])}"
        )
    if not issubclass(found, ClassifierMixin):
        raise SpecError(
            f"head {PREFIX}{name}: labels need a classifier, which this is not: take "
            "HistGradientBoostingClassifier or another one"
        )
    return found


def _imported(name: str) -> Any | None:  # noqa: ANN401 - as above
    """Return a class of scikit-learn by its path; None for anything else."""
    from sklearn.base import BaseEstimator  # noqa: PLC0415 - slow to import

    package, _, last = name.removeprefix("sklearn.").rpartition(".")
    if not package:
        return None
    try:
        found = getattr(importlib.import_module(f"sklearn.{package}"), last, None)
    except ImportError:
        return None
    ours = isinstance(found, type) and issubclass(found, BaseEstimator)
    return found if ours and found.__module__.startswith("sklearn.") else None


def _nearest(name: str, known: list[str]) -> str:
    """Return the way out for an unknown name, whatever its case."""
    plain = {one.lower(): one for one in known}
    way = nearest(name, list(plain))
    return re.sub(r"\w+", lambda word: plain.get(word[0], word[0]), way)


def _columns(examples: EmbeddedRows, rows: Tensor) -> Iterator[npt.NDArray[np.float32]]:
    """Yield embeddings, own numbers and own categories side by side, piece by piece."""
    for part in torch.split(rows, _CHUNK):
        cut, numeric, codes = examples.take(part)
        if examples.inputs is None or numeric is None or codes is None:
            yield cut.numpy()
            continue
        categories = [
            one_hot(column, size).float() if size <= _FEW_VALUES else column[:, None] / size
            for column, size in zip(codes.T, examples.inputs.cardinalities, strict=True)
        ]
        yield torch.cat([cut, numeric.float(), *categories], dim=1).numpy()


def _own_width(inputs: Inputs | None) -> int:
    """Return how many columns the label party's own ones become."""
    if inputs is None:
        return 0
    return inputs.numeric + sum(size if size <= _FEW_VALUES else 1 for size in inputs.cardinalities)
