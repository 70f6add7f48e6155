"""What a training with a depth must come to, worked out the long way."""

import copy


def stale_training(bottoms, optimizers, parts, *, depth, embed, loss_of):
    """Train on parts of batches: step t of a part uses the weights after its step t - depth.

    All weights that ever were are kept, so nothing here depends on an order of work. ``embed`` maps
    the bottoms and rows to embeddings, ``loss_of`` embeddings and rows to a loss.
    """
    for batches in parts:
        history = [copy.deepcopy(bottoms)]
        for step, rows in enumerate(batches):
            used = copy.deepcopy(history[max(step - depth + 1, 0)])
            loss = loss_of(embed(used, rows), rows)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for bottom, old in zip(bottoms, used, strict=True):
                for weight, was in zip(bottom.parameters(), old.parameters(), strict=True):
                    weight.grad = was.grad
            for optimizer in optimizers:
                optimizer.step()
            history.append(copy.deepcopy(bottoms))
