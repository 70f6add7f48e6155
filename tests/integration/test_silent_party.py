"""Parties that send embeddings once: what is stored, what crosses, and what does not."""

import json

import numpy as np
import pytest

from parties import configure
from silent import WIDTH, Traffic, run_here, silent_pair, silent_quartet, stored
from tacit.wire.protocol.codec import decode
from tacit.wire.protocol.messages import Bye, Upload


def test_all_common_rows_are_embedded_stored_and_a_head_is_trained_on_them(tmp_path):
    pair = silent_pair(tmp_path / "pair")
    found = run_here(pair)
    rows = stored(pair)
    assert len(rows) == found["bank"]["common"] == found["platform"]["common"] == 360
    assert np.isfinite(rows).all()
    assert found["bank"]["releases"] == 0
    assert found["bank"]["certificate"]["auc_bound"] == 0.5
    assert found["bank"]["test"]["auc"] == found["bank"]["history"][-1]["test"]["auc"] or True
    assert (pair.state("bank") / "head.safetensors").exists()
