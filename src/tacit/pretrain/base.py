"""What a pretrainer is: a bottom model out of one feature party's columns, without labels.

The bottom is frozen: its embeddings can be sent once, a head is trained on them where the labels
are, and no gradient is ever sent back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self, final

import torch
from torch import Tensor, nn

from tacit.errors import InputError
from tacit.nets import Inputs
from tacit.nets.initial_weights import Seed
from tacit.pretrain.progress import FitProgress, Kept, OnProgress, SavedTraining, State
from tacit.rng import Key
from tacit.spec import Registry, Specified

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)
_SIGNATURE = "fitted_on"


class FrozenBottom(nn.Module, ABC):
    """A bottom whose weights never change: ``(numeric [B, n], categorical [B, c]) -> [B, width]``.

    It has buffers and parameters without gradients, stays in evaluation mode, and its
    ``state_dict`` holds tensors only, with the columns that it was fitted on.
    """

    fitted_on: Tensor

    def __init__(self, inputs: Inputs, width: int) -> None:
        super().__init__()
        self.inputs, self.width = inputs, width
        self.register_buffer(_SIGNATURE, _signature(inputs))

    @abstractmethod
    def embed(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        """Return the embedding of rows that were checked."""

    def forward(self, numeric: Tensor | None, categorical: Tensor | None = None) -> Tensor:
        """Return embeddings ``[B, width]`` in ``float32``; a kind that the party lacks may be None.

        A category that was not in the fitted rows counts as no category where the method knows
        single values; one outside the column's range is refused.
        """
        numbers, codes = check_columns(self.inputs, numeric, categorical)
        with torch.no_grad():
            return self.embed(numbers, codes)

    @final
    def train(self, mode: bool = True) -> Self:  # noqa: ARG002 - a frozen model has one mode
        """Stay in evaluation mode: statistics of batches must not change a frozen model."""
        return super().train(False)

    @final
    def freeze(self, state: State) -> Self:
        """Take the tensors of a state, all of them and no others, and stop all gradients."""
        given = {name: tensor for name, tensor in state.items() if name != _SIGNATURE}
        wanted = {name for name in self.state_dict() if name != _SIGNATURE}
        if given.keys() != wanted:
            odd = ", ".join(sorted(given.keys() ^ wanted))
            raise InputError(f"the saved tensors are not those of {type(self).__name__}: {odd}")
        signature = state.get(_SIGNATURE, self.fitted_on)
        if not torch.equal(signature.cpu(), self.fitted_on):
            raise InputError(
                "this bottom was fitted on other columns: it has the counts "
                f"{signature.tolist()[:8]}, these columns {self.fitted_on.tolist()[:8]}"
            )
        self.load_state_dict(given, strict=False, assign=True)
        return self.requires_grad_(False).eval()


class Pretrainer(Specified, ABC):
    """A way to make a bottom out of columns alone.

    Subclasses are frozen dataclasses registered in ``PRETRAINERS``; their fields are parameters.
    ``learn`` makes tensors out of rows, ``bottom`` a module out of tensors: a saved bottom is the
    spec, the columns and these tensors. Labels have no way in.
    """

    images: ClassVar[bool] = False
    """Whether the numbers must be the pixels of images."""

    @abstractmethod
    def embedding_width(self, inputs: Inputs) -> int:
        """Return the width of the embedding for these columns."""

    def passes(self, inputs: Inputs) -> int:  # noqa: ARG002
        """Return how many passes over the rows ``learn`` reports, the last one at its end."""
        return 1

    @abstractmethod
    def learn(
        self,
        inputs: Inputs,
        numeric: Tensor,
        categorical: Tensor,
        *,
        key: Key,
        progress: FitProgress,
    ) -> State:
        """Return the tensors of the bottom, from rows that were checked."""

    @abstractmethod
    def bottom(self, inputs: Inputs, state: State) -> FrozenBottom:
        """Return the frozen bottom of these tensors."""

    @final
    def fit(
        self,
        inputs: Inputs,
        numeric: Tensor | None,
        categorical: Tensor | None = None,
        *,
        seed: Seed,
        progress: OnProgress | None = None,
        kept: Kept | None = None,
        save_seconds: float = 10.0,
    ) -> FrozenBottom:
        """Return a frozen bottom, learned from one party's rows; the same one for the same seed.

        With ``kept``, a call that was interrupted goes on at the next one: the bottom is, on the
        same machine with as many threads, bit for bit the one of a call that was not.

        Args:
            inputs: what the columns are.
            numeric: ``[N, n]``, or None for a party without numbers.
            categorical: ``[N, c]`` codes, or None for a party without categories.
            seed: of an experiment, or a key.
            progress: called after each pass over the rows.
            kept: where an unfinished training is saved after a pass, and looked for at the start.
            save_seconds: there is at most one save in so many seconds.
        """
        key = seed if isinstance(seed, Key) else Key.from_seed(seed)
        saved = None
        if kept is not None:
            columns = check_columns(inputs, numeric, categorical)
            saved = SavedTraining(kept, self._training(inputs, columns, key), seconds=save_seconds)
        state = self.learn_checked(
            inputs,
            numeric,
            categorical,
            key=key,
            progress=FitProgress(progress or _say_nothing, saved),
        )
        return self.bottom(inputs, state)

    def _training(self, inputs: Inputs, columns: tuple[Tensor, Tensor], key: Key) -> bytes:
        """Return a digest of all that decides which bottom is learned."""
        tags = b"".join(key.tag(part) for part in (_signature(inputs), *columns))
        return key.digest(f"pretraining 1 {self} ".encode() + tags)

    @final
    @torch.no_grad()
    def learn_checked(
        self,
        inputs: Inputs,
        numeric: Tensor | None,
        categorical: Tensor | None,
        *,
        key: Key,
        progress: FitProgress,
    ) -> State:
        """Return what ``learn`` makes of rows that this method can use; refuse others."""
        if self.images and inputs.image is None:
            raise InputError(
                f"{self} needs images, these columns are not pixels: take masked, pca or svd"
            )
        numbers, codes = check_columns(inputs, numeric, categorical)
        rows, width = len(numbers), self.embedding_width(inputs)
        if rows < width:
            raise InputError(
                f"{self}: an embedding of width {width} needs {width} rows or more, got {rows}"
            )
        if constant(numbers).all() and constant(codes).all():
            raise InputError(f"{self}: every column is constant, there is nothing to learn from")
        return self.learn(inputs, numbers, codes, key=key, progress=progress)


PRETRAINERS: Registry[Pretrainer] = Registry("pretrainer")


def check_columns(
    inputs: Inputs, numeric: Tensor | None, categorical: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return numbers as ``float32`` and categories as ``int64``, or say what is wrong with them.

    >>> [part.shape for part in check_columns(Inputs(2), torch.zeros(3, 2), None)]
    [torch.Size([3, 2]), torch.Size([3, 0])]
    """
    given = [part for part in (numeric, categorical) if part is not None]
    if not given:
        raise InputError("a bottom needs numeric or categorical columns, got neither")
    rows, device = len(given[0]), given[0].device
    if numeric is None:
        numeric = torch.zeros(rows, 0, device=device)
    if categorical is None:
        categorical = torch.zeros(rows, 0, dtype=torch.int64, device=device)
    for kind, part, count in (
        ("numeric", numeric, inputs.numeric),
        ("categorical", categorical, len(inputs.cardinalities)),
    ):
        if part.shape != (rows, count):
            raise InputError(
                f"{kind} must be [{rows}, {count}], the columns that the bottom is for, "
                f"got {tuple(part.shape)}"
            )
    _check_numbers(numeric)
    _check_codes(inputs, categorical)
    return numeric.detach().float(), categorical.long()


def _check_numbers(numeric: Tensor) -> None:
    if not numeric.dtype.is_floating_point:
        raise InputError(f"numeric must hold floats, got {numeric.dtype}: convert with .float()")
    if not numeric.isfinite().all():
        row, column = (~numeric.isfinite()).nonzero()[0].tolist()
        raise InputError(
            f"numbers must be finite, got {float(numeric[row, column])} in row {row} of numeric "
            f"column {column}: fill missing values first"
        )


def _check_codes(inputs: Inputs, categorical: Tensor) -> None:
    if categorical.dtype not in _INTEGERS:
        raise InputError(f"categorical must hold whole codes, got {categorical.dtype}")
    sizes = torch.tensor(inputs.cardinalities, dtype=torch.int64, device=categorical.device)
    outside = (categorical < 0) | (categorical >= sizes)
    if outside.any():
        row, column = outside.nonzero()[0].tolist()
        raise InputError(
            f"categories of column {column} go from 0 to {inputs.cardinalities[column] - 1}, "
            f"got {int(categorical[row, column])} in row {row}: map unknown values to a known code"
        )


def constant(columns: Tensor) -> Tensor:
    """Return which columns have one value only.

    >>> constant(torch.tensor([[1, 2], [1, 3]])).tolist()
    [True, False]
    """
    return (columns == columns[:1]).all(0)


def generator(key: Key, purpose: str, step: int = 0) -> torch.Generator:
    """Return a torch generator of this purpose and step.

    It keeps few bits of the key; nothing secret hangs on it, since the bottom's owner draws.
    """
    seed = int.from_bytes(key.digest(f"{purpose} {step}".encode())[:7], "big")
    return torch.Generator().manual_seed(seed)


def _signature(inputs: Inputs) -> Tensor:
    image = inputs.image or (0, 0, 0)
    return torch.tensor([inputs.numeric, *image, *inputs.cardinalities], dtype=torch.int64)


def _say_nothing(_done: int, _total: int) -> None:
    """Take a report of progress that nobody asked for."""
