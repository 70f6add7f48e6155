"""A feature party that sends embeddings once: it learns alone, uploads, and is let go."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, final

from tacit import data
from tacit.errors import PeerError
from tacit.party.alignment_cache import keep_matching, matching_of, rounds_of
from tacit.party.bottom import SentBottom, kept_before, kept_bottom
from tacit.party.calling import Caller, dialler
from tacit.party.config import PartyConfig
from tacit.party.embeddings import UPLOADED, UploadForm
from tacit.party.greeting import greet
from tacit.party.state_files import ENCODING, TABLES, Log, check_rows, encoding_of, waiting_for
from tacit.party.upload import send_embeddings
from tacit.state_dir import StateFolder
from tacit.wire.protocol.connection import Connection
from tacit.wire.protocol.messages import Bye
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.psi.align import Alignment, join_common

_FORMAT = 1


@final
class SilentFeatureSession:
    """A feature party whose bottom learns without labels; what it sends shows its inputs.

    Args:
        config: of this party.
        folder: the state folder of this version.
        log: hears what happens, line by line.
    """

    def __init__(self, config: PartyConfig, folder: StateFolder, *, log: Log) -> None:
        self.config, self.folder, self._log = config, folder, log
        self.plan: TrainingPlan = config.plan(classes=config.classes)
        self.table = _table_of(config, folder)
        check_rows(config, len(self.table))
        encoding_of(folder, self.table)
        self._common: Alignment | None = None
        self._parts = 0
        with ExitStack() as opened:
            self._rounds = opened.enter_context(rounds_of(folder, self.table))
            self._open = opened.pop_all()

    def close(self) -> None:
        """Close the record of what was matched."""
        self._open.close()

    def run(self, done: Callable[[int, int], None]) -> dict[str, Any]:
        """Learn, upload and say goodbye; return what this party knows of it.

        ``done`` hears how many parts the label party has, of how many.
        """
        bottom = kept_bottom(self.config, self.folder, self.table, log=self._log)
        uploaded = self.folder.read(UPLOADED)
        if uploaded is None:
            uploaded, ended = self._upload(bottom, done)
        else:
            ended = "finished"
            self._log(
                "all embeddings of this version were uploaded before; for new rows raise version "
                "on both sides"
            )
        config = self.config
        results = {
            "party": config.name,
            "role": config.role,
            "ended": ended,
            "version": config.version,
            "common": None if uploaded is None else uploaded["common"],
            "width": config.width,
            "embed_bits": config.embed_bits,
            "embed_noise": config.embed_noise,
            "matching_rounds": self._rounds.number,
            "state": str(self.folder.path),
        }
        self.folder.write("results.json", {"format": 1, **results})
        return results

    def _upload(
        self, bottom: SentBottom, done: Callable[[int, int], None]
    ) -> tuple[dict[str, Any] | None, str]:
        waiting = waiting_for(self.config, self._log)

        def told(parts: int, of: int) -> None:
            waiting.over()  # only now: a label party that never answers is not there
            self._parts = parts
            done(parts, of)

        def converse(connection: Connection) -> bool:
            start = greet(
                connection,
                name=self.config.name,
                number=self.config.number,
                plan=self.plan,
                offer=0,
            )
            if start:
                raise PeerError(f"an upload begins at 0, the label party wants step {start}")
            common = self._align(connection)
            send_embeddings(
                connection,
                bottom.embedder(self.table, common.order),
                form=UploadForm.of(self.plan, len(common)),
                bottom=bottom.name,
                grid=bottom.grid,
                told=told,
            )
            self.folder.write(UPLOADED, {"format": _FORMAT, "common": len(common)})
            connection.send(Bye())
            self._log(
                f"the label party has the embeddings of all {len(common)} common rows and lets "
                "this party go"
            )
            return True

        caller = Caller(
            plan=self.plan, connect=dialler(self.config), waiting=waiting, log=self._log
        )
        ended = caller.talk(
            converse,
            position=lambda: self._parts,
            finished=lambda: self.folder.read(UPLOADED) is not None,
        )
        return self.folder.read(UPLOADED), ended

    def _align(self, connection: Connection) -> Alignment:
        matching = matching_of(self.config, self.folder, self.table, self._rounds, self._log)
        common = join_common(connection, matching)
        keep_matching(self.folder, self.table, common)
        self._common = common
        self._log(
            f"version {self.config.version}: {len(common)} rows in common, of {len(self.table)}; "
            f"{self.config.width} numbers of each are uploaded, which show its inputs"
        )
        return common


def _table_of(config: PartyConfig, folder: StateFolder) -> data.PartyTable:
    """Return the table, coded as that of the version before where its bottom is used again."""
    encoding = None
    if config.version > 1 and not config.refit:
        held = kept_before(config, ENCODING)
        encoding = data.Encoding.from_json(
            json.loads(held), where=f"{ENCODING} of the version before"
        )
    return data.load_party(
        config.data, role="feature", encoding=encoding, own_cache=folder.folder(TABLES)
    )
