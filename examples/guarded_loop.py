"""One changed line: the same split model without protection and with two, and what leaks.

Run with ``make demo`` or ``python examples/guarded_loop.py``. Takes a few seconds.
"""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale
from torch import nn

import tacit


def train(spec: str) -> tuple[float, dict[str, float]]:
    torch.manual_seed(0)
    data = load_breast_cancer()
    features = torch.tensor(scale(data.data), dtype=torch.float32)
    labels = torch.tensor(1 - data.target)  # 1 is malignant, the rarer class
    bottom = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    top = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam([*bottom.parameters(), *top.parameters()], lr=1e-3)
    monitor = tacit.LeakMonitor()
    guard = tacit.Guard(spec, seed=7, watch=monitor)
    train_rows, test_rows = torch.split(torch.randperm(569), [455, 114])
    for _ in range(10):
        for rows in torch.split(train_rows[torch.randperm(455)], 128)[:-1]:
            x, y = features[rows], labels[rows]
            z = guard(bottom(x), y)  # the one changed line
            loss = nn.functional.binary_cross_entropy_with_logits(top(z).squeeze(1), y.float())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    with torch.no_grad():
        scores = top(bottom(features[test_rows])).squeeze(1)
    leaks = {name: found.leak_auc for name, found in monitor.report().items()}
    return tacit.measure.auc(scores, labels[test_rows]), leaks


def main() -> None:
    print(f"{'protection':24} {'test AUC':>8}   leak AUC by attack (0.5 is nothing, 1.0 is all)")
    for spec in ("none", "max_norm", "marvell(s=4)"):
        auc, leaks = train(spec)
        shown = "  ".join(f"{name} {leak:.3f}" for name, leak in leaks.items())
        print(f"{spec:24} {auc:8.3f}   {shown}")


if __name__ == "__main__":
    main()
