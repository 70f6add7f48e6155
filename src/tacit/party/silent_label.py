"""A label party that gets embeddings once and sends nothing that depends on labels.

It matches ids, stores what comes, and lets every feature party go. Only then, with no connection
and no open port, are labels used: a head is trained, measured and kept.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, final

from tacit.errors import PeerError, UsageError
from tacit.party.acceptor import Acceptor, Accepts, PeerSession
from tacit.party.alignment_cache import keep_matching, matching_of, rounds_of
from tacit.party.config import PartyConfig
from tacit.party.embeddings import StoredEmbeddings, UploadForm
from tacit.party.label_head import HeadRows, head_of, keep_head, train_head
from tacit.party.label_session import acceptor_of
from tacit.party.metrics import HISTORY
from tacit.party.silent_results import silent_results
from tacit.party.state_files import Log, check_rows, encoding_of, table_of
from tacit.party.upload import receive_embeddings
from tacit.state_dir import StateFolder
from tacit.wire.protocol.messages import Bye
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.psi.align import Alignment, Matching, find_common


@final
class SilentLabelSession:
    """The label party of a run in which nothing that depends on labels is sent.

    Args:
        config: of this party.
        folder: the state folder of this version.
        log: hears what happens, line by line.
    """

    def __init__(self, config: PartyConfig, folder: StateFolder, *, log: Log) -> None:
        self.config, self.folder, self._log = config, folder, log
        self.head = head_of(config)
        self.table = table_of(config, folder)
        assert self.table.classes is not None  # noqa: S101 - a label party's table has labels
        self.classes: int = self.table.classes
        self.plan: TrainingPlan = config.plan(classes=self.classes)
        check_rows(config, len(self.table))
        encoding_of(folder, self.table)
        with ExitStack() as opened:
            self.rounds = opened.enter_context(rounds_of(folder, self.table))
            self._open = opened.pop_all()
        self.common = self._matching(config.peers).held
        if self.common is not None:
            self._take(self.common)

    def close(self) -> None:
        """Close the record of what was matched."""
        self._open.close()

    @property
    def awaits_peers(self) -> bool:
        """Whether any feature party still has something to do here."""
        return bool(self._awaited())

    def run(self, listener: Accepts, done: Callable[[int, int], None]) -> dict[str, Any]:
        """Serve the feature parties to the end, then train the head; return what is known."""
        return self.finish(self.receive(listener, done))

    def receive(self, listener: Accepts, done: Callable[[int, int], None]) -> str:
        """Store what feature parties upload, and let them go; return how it ended.

        ``done`` hears how many parts of all there are here, of how many.
        """
        if not self.awaits_peers:
            return "finished"
        acceptor = acceptor_of(self.config, self.plan, listener, self._log)
        return acceptor.serve(
            lambda peers: self._converse(acceptor, peers, done),
            finished=self._complete,
            awaited=self._awaited,
        )

    def finish(self, ended: str) -> dict[str, Any]:
        """Train the head on what is stored; return what is known of the run."""
        config, common = self.config, self.common
        assert common is not None  # noqa: S101 - all embeddings are here
        trained = train_head(
            config,
            self.head,
            table=self.table,
            common=common,
            stored=self.stored,
            log=self._log,
        )
        (each,) = self.plan.cut
        width = each * len(config.peers)
        keep_head(self.folder, trained, width=width, classes=self.classes)
        self.folder.write(HISTORY, {str(part["epoch"]): part for part in trained.history})
        results = {
            "party": config.name,
            "role": config.role,
            "ended": ended,
            **silent_results(
                config,
                dataset=self.table.name,
                classes=self.classes,
                head=trained.record(),
                pretrain=(),
                width=width,
                history=trained.history,
                test=trained.test,
            ),
            "version": config.version,
            "common": len(common),
            "matching_rounds": self.rounds.number,
            "state": str(self.folder.path),
        }
        self._log(results["verdict"]["text"])
        self.folder.write("results.json", {"format": 1, **results})
        return results

    def _check_rows(self, count: int) -> None:
        """Refuse so few rows that no head can be trained on them."""
        (width,) = self.plan.cut
        if count < width:
            raise UsageError(
                f"{count} rows in common are fewer than width = {width}: an embedding of each has "
                "more numbers than there are rows; take a smaller width on both sides, or more rows"
            )
        HeadRows.of(self.config, count)

    def _matching(self, peers: tuple[str, ...]) -> Matching:
        matching = matching_of(self.config, self.folder, self.table, self.rounds, self._log)
        return replace(matching, peers=peers)

    def _take(self, common: Alignment) -> None:
        """Take the rows that are common, and what is stored of them."""
        form = UploadForm.of(self.plan, len(common))
        self.common = common
        self.stored = [
            StoredEmbeddings(self.folder, peer, common=common.digest, form=form)
            for peer in self.config.peers
        ]
        for held in self.stored:
            held.check_form()

    def _awaited(self) -> tuple[str, ...]:
        """Return the feature parties that do not know yet that all is here."""
        if self.common is None:
            return self.config.peers
        return tuple(held.peer for held in self.stored if not held.dismissed)

    def _complete(self) -> bool:
        return self.common is not None and all(held.complete for held in self.stored)

    def _converse(
        self, acceptor: Acceptor, peers: list[PeerSession], done: Callable[[int, int], None]
    ) -> None:
        connections = [peer.connection for peer in peers]
        for peer in peers:
            peer.connection.send(acceptor.answer(peer.connection, peer.hello, 0))
        names = tuple(peer.hello.party for peer in peers)
        matching = self._matching(names)  # an error in it is this party's own
        try:
            common = find_common(connections, matching, self._settle)
        except UsageError as error:  # the peers brought other examples: no reason to end here
            raise PeerError(str(error)) from error
        keep_matching(self.folder, self.table, common)
        self._take(common)
        acceptor.waiting.over()
        self._log(
            f"version {self.config.version}: {', '.join(names)} here, {len(common)} rows in "
            f"common, {self.plan.cut[0]} numbers of each to come"
        )
        stored = [held for held in self.stored if held.peer in names]

        def told(_: StoredEmbeddings) -> None:
            done(sum(held.due for held in self.stored), sum(h.form.parts for h in self.stored))

        receive_embeddings(connections, stored, told=told)
        for connection, held in zip(connections, stored, strict=True):
            connection.receive(Bye)
            held.dismiss()
        self._log(f"{', '.join(names)} let go: all embeddings are here")

    def _settle(self, common: Alignment) -> None:
        """Refuse common rows that will not do; those of an upload that has begun stay."""
        before = self.common
        begun = before is not None and any(held.bottom is not None for held in self.stored)
        if begun and before is not None and before.digest != common.digest:
            raise UsageError(
                f"this upload began with other common examples than today's {len(common)}: bring "
                "back the tables of that time on both sides, or raise version on both"
            )
        self._check_rows(len(common))
