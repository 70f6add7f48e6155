"""The training plan: what both sides must have the same before they can train together.

Each side makes the plan from its own configuration and sends only its digest. What one side must
keep to itself (how gradients are protected, keys, labels) does not belong here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from reprlib import repr as shown
from typing import Literal, final

from tacit.errors import InputError
from tacit.wire.protocol.codec import canonical, parse
from tacit.wire.protocol.header import VERSION
from tacit.wire.protocol.messages import check_whole

PLAN_VERSION = 1
ORDER_VERSION = 1
MOST_CUT_DIMS = 3
MOST_DEPTH = 4
MOST_UPLOADS = 1000
MOST_WIDTH = 4096
EMBED_BITS = (32, 8, 4)
LATER: dict[str, object] = {
    "depth": 1,
    "workers": 1,
    "worker": 0,
    "embed_bits": 32,
    "upload_version": 1,
    "private_head": False,
}
"""Fields that a plan's text leaves out where they have these values, as it was before them."""


@final
@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What both sides must agree on, and nothing that only one may know.

    Args:
        epochs: passes over the training rows.
        batch_size: rows per step.
        order_seed: seed of the row order that both sides derive; it is no secret.
        cut: the shape of one example's embedding, one to three dimensions.
        purpose: train a model, predict with the one that was trained, or upload embeddings of a
            frozen bottom once and train nothing with each other.
        test_percent: how many of a hundred common examples are held out to evaluate on.
        save_every: steps from one checkpoint to the next; there is one after every epoch too.
        matching: of ids, in private or in the clear.
        depth: how many steps may be under way at once, 1 to 4. Embeddings of a step come from the
            weights after the step that many before it; 1 is training without staleness.
        wire_bits: 32 sends values as they are, 16 rounds them to bfloat16 on the way.
        embed_bits: of a number of an embedding that is uploaded.
        upload_version: of one feature party's uploads; a later one has new rows or a new bottom.
        private_head: whether embeddings of the trained bottom are uploaded in the end.
        workers: how many processes each party trains with.
        worker: the number of this one; only workers of the same number talk to each other.
        wire_version: the format of frames.
        order_version: the way an order follows from its seed.
        plan_version: the meaning of these fields.

    A depth of 1 is left out of the text, which is then what it was before there were others.

    >>> plan = TrainingPlan(epochs=2, batch_size=64, order_seed=7, cut=(16,))
    >>> plan.digest()[:12]
    'd770f0b867cb'
    >>> plan.difference(TrainingPlan(epochs=3, batch_size=32, order_seed=7, cut=(16,)))
    'the plans differ in epochs: 2 here, 3 there'
    """

    epochs: int
    batch_size: int
    order_seed: int
    cut: tuple[int, ...]
    purpose: Literal["train", "predict", "upload"] = "train"
    matching: Literal["private", "clear"] = "private"
    test_percent: int = 10
    save_every: int = 200
    depth: int = 1
    wire_bits: Literal[16, 32] = 32
    workers: int = 1
    worker: int = 0
    embed_bits: Literal[32, 8, 4] = 32
    upload_version: int = 1
    private_head: bool = False
    wire_version: int = VERSION
    order_version: int = ORDER_VERSION
    plan_version: int = PLAN_VERSION

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name not in ("cut", "purpose", "matching", "private_head"):
                low = 0 if field.name in ("order_seed", "test_percent", "worker") else 1
                check_whole(field.name, getattr(self, field.name), low=low)
        choices: dict[str, tuple[object, ...]] = {
            "purpose": ("train", "predict", "upload"),
            "matching": ("private", "clear"),
            "wire_bits": (16, 32),
            "embed_bits": EMBED_BITS,
            "private_head": (False, True),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} is one of {allowed}, got {shown(getattr(self, name))}")
        check_whole("test_percent", self.test_percent, high=90)
        check_whole("depth", self.depth, low=1, high=MOST_DEPTH)
        check_whole("upload_version", self.upload_version, low=1, high=MOST_UPLOADS)
        if type(self.private_head) is not bool:
            raise InputError(f"private_head is true or false, got {shown(self.private_head)}")
        if not isinstance(self.cut, tuple) or not 1 <= len(self.cut) <= MOST_CUT_DIMS:
            raise InputError(
                f"cut must be a tuple of 1 to {MOST_CUT_DIMS} sizes, got {shown(self.cut)}"
            )
        for size in self.cut:
            check_whole("a size of the cut", size, low=1)
        check_whole("worker", self.worker, high=self.workers - 1)
        if self.batch_size % self.workers:
            raise InputError(
                f"workers must divide batch_size, so that all have the same share of a step: got "
                f"{self.workers} workers and batch_size {self.batch_size}"
            )
        if self.workers > 1 < self.depth:
            raise InputError(
                f"steps of several workers do not overlap: set depth to 1 for "
                f"{self.workers} workers, got {self.depth}"
            )

    def to_json(self) -> str:
        """Return the plan's one JSON text: sorted keys, no spaces."""
        content = asdict(self)
        return canonical({n: v for n, v in content.items() if LATER.get(n) != v}).decode()

    @classmethod
    def from_json(cls, text: str) -> TrainingPlan:
        """Return the plan of a text that :meth:`to_json` wrote; any other text is refused."""
        written = parse(text.encode(errors="surrogatepass"))
        for name, value in LATER.items():
            if written.get(name) == value:
                raise InputError(f"a plan's {name} is left out where it is {value}, got it written")
        content = {**LATER, **written}
        wanted = {field.name for field in fields(cls)}
        if content.keys() != wanted:
            name = min(content.keys() ^ wanted)
            raise InputError(
                f"a plan has the fields {', '.join(sorted(wanted))}; {shown(name)} is "
                f"{'missing' if name in wanted else 'not one of them'}"
            )
        if not isinstance(content["cut"], list):
            raise InputError(f"cut must be a list of sizes, got {shown(content['cut'])}")
        return cls(**{**content, "cut": tuple(content["cut"])})

    def described(self) -> str:
        """Return every field for people to read, also what :meth:`to_json` leaves out."""
        return canonical(asdict(self)).decode()

    def digest(self) -> str:
        """Return the SHA-256 of the JSON text, in hexadecimal."""
        return sha256(self.to_json().encode()).hexdigest()

    def difference(self, other: TrainingPlan) -> str | None:
        """Return one line on the first field in which two plans differ, None if they are equal."""
        for field in fields(self):
            here, there = getattr(self, field.name), getattr(other, field.name)
            if here != there:
                return f"the plans differ in {field.name}: {here} here, {there} there"
        return None

    def named_difference(self, digest: str) -> str | None:
        """Return the one setting in which the plan of a digest differs, None if it is not one.

        Only plans of an upload are few enough to be tried: a digest tells nothing by itself.
        """
        if self.purpose != "upload":
            return None
        tried: dict[str, Iterable[object]] = {
            "embed_bits": EMBED_BITS,
            "matching": ("private", "clear"),
            "wire_bits": (16, 32),
            "upload_version": range(1, 17),
            "cut": ((width,) for width in range(1, MOST_WIDTH + 1)),
        }
        for name, values in tried.items():
            for value in values:
                other = replace(self, **{name: value})  # type: ignore[arg-type]
                if other.digest() == digest:
                    return self.difference(other)
        return None
