"""Record what leaves a loop that knows nothing of tacit, then ask what it gives away.

Run it with the folder to write to: ``python examples/record_foreign_loop.py /tmp/mine``
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import tacit

place = Path(sys.argv[1] if len(sys.argv) > 1 else "recorded")
torch.manual_seed(0)
x, y = torch.randn(4096, 10), (torch.rand(4096) < 0.2).float()
bottom = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
top = nn.Linear(32, 1)
optimizer = torch.optim.Adam([*bottom.parameters(), *top.parameters()], lr=1e-3)

with tacit.TapeWriter(place / "mine.tape") as tape:
    for _epoch in range(2):
        for rows in torch.split(torch.randperm(4096), 512):
            z = bottom(x[rows])
            z.retain_grad()  # the gradient at the cut is what the other side would send
            loss = nn.functional.binary_cross_entropy_with_logits(top(z).squeeze(1), y[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            assert z.grad is not None
            tape.append(rows, z.grad, embeddings=z)

# Whoever holds the labels judges; the tape itself has none.
labels = np.column_stack([np.arange(4096), y.numpy()])
np.savetxt(place / "labels.csv", labels, fmt="%d", delimiter=",", header="id,label", comments="")
result = tacit.run_audit(place / "mine.tape", place / "labels.csv", ["norm", "energy", "memory"])
print(result.record["verdict"])
result.to_html(place / "report.html")
