"""The upload of embeddings: the feature party sends them part by part, the label party keeps them.

The label party says which part comes next, so that after a restart on either side the upload goes
on where it was. What it says depends on what has come, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tacit.party.embeddings import StoredEmbeddings, UploadForm
from tacit.pretrain import Grid, packed
from tacit.wire.protocol.connection import Connection
from tacit.wire.protocol.messages import Upload

Embed = Callable[[Tensor], Tensor]
"""What makes embeddings of rows by their positions in the common order."""
Told = Callable[[int, int], None]


def send_embeddings(
    connection: Connection,
    embed: Embed,
    *,
    form: UploadForm,
    bottom: str,
    grid: Grid | None,
    told: Told = lambda _done, _parts: None,
) -> None:
    """Upload what the label party lacks; return when it has all of it on disk.

    Args:
        connection: to the label party.
        embed: makes embeddings of rows, before they are put on the grid.
        form: what the upload consists of.
        bottom: the digest of what makes the embeddings.
        grid: on which they are sent; None sends them as they are.
        told: hears how many parts the label party has, of how many.
    """
    connection.send(Upload(part=0, bottom=bottom))
    while True:
        due = connection.receive(Upload).part
        if due > form.parts:
            raise connection.wrong(f"there are {form.parts} parts, the label party asks for {due}")
        told(due, form.parts)
        if due == form.parts:
            return
        connection.send(_part(embed, due, form=form, grid=grid))


def _part(embed: Embed, part: int, *, form: UploadForm, grid: Grid | None) -> Upload:
    if grid is not None and part == 0:
        return Upload(part=part, values=torch.stack([grid.low, grid.step]))
    values = embed(torch.arange(*form.span(part)))
    if grid is None:
        return Upload(part=part, values=values)
    return Upload(part=part, codes=packed(grid.codes(values), grid.bits))


def receive_embeddings(
    connections: Sequence[Connection],
    stored: Sequence[StoredEmbeddings],
    *,
    anew: bool = False,
    told: Callable[[StoredEmbeddings], None] = lambda _: None,
) -> None:
    """Take all embeddings from several feature parties, one part of each in turn.

    No part is taken before all have named their bottom, and so have kept the matching. None hears
    that all of its own is here, and leaves, before everything is: who has left does not come back.
    """
    pairs = list(zip(connections, stored, strict=True))
    due = []
    for connection, held in pairs:
        first = connection.receive(Upload)
        if first.bottom is None:
            raise connection.wrong("an upload begins with the name of its bottom")
        with connection.blamed():
            due.append(held.begin(first.bottom, anew=anew))
    for (connection, held), part in zip(pairs, due, strict=True):
        told(held)
        if not held.complete:
            connection.send(Upload(part=part))
    missing = [(c, held) for c, held in pairs if not held.complete]
    while missing:
        for connection, held in missing:
            upload = connection.receive(Upload)
            if upload.bottom is not None:
                raise connection.wrong("the name of the bottom comes once, before the first part")
            with connection.blamed():
                part = held.take(upload)
            told(held)
            if not held.complete:
                connection.send(Upload(part=part))
        missing = [(c, held) for c, held in missing if not held.complete]
    for connection, held in pairs:
        connection.send(Upload(part=held.due))
