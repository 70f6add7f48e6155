"""Parties are killed while a bottom learns, while embeddings are sent, while a head trains."""

import signal

import pytest
from safetensors.numpy import load_file

from parties import same_bits
from party_processes import Training, train
from silent_parties import silent_differences, silent_pair

METHOD = "concat(masked(epochs=6), random)"
LEARNING, SENDING, HEAD = r"pass \d+ of", r"part \d+ of", r"head: epoch \d+ of"


@pytest.mark.slow
def test_a_silent_run_ends_as_if_nobody_had_been_killed(tmp_path):
    pair = silent_pair(
        tmp_path / "pair",
        rows=3000,
        width=1024,
        bank={"epochs": 12},
        platform={"pretrain": METHOD},
        threads=1,
    )
    alone = pair.copy(tmp_path / "alone")
    moments = [
        ("platform", "platform", LEARNING),
        ("bank", "platform", LEARNING),
        ("platform", "platform", SENDING),
        ("bank", "bank", SENDING),
        ("bank", "bank", HEAD),
    ]
    killed = 0
    with Training(pair) as training:
        for victim, watched, pattern in moments:
            training.running[watched].wait_for(pattern)
            if training.running[victim].ended() is None:
                training.running[victim].signal(signal.SIGKILL)
            if training.running[victim].end() == -signal.SIGKILL:  # else it was done before
                killed += 1
                training.start(victim)
        training.finish()
    train(alone)
    assert killed >= 3
    assert not silent_differences(pair, alone)
    heads = [load_file(each.state("bank") / "head.safetensors") for each in (pair, alone)]
    assert same_bits(*heads)
