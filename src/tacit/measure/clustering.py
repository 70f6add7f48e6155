"""How well a grouping without names agrees with the classes."""

from __future__ import annotations

import numpy as np

from tacit.measure._arrays import Values, require_same_length, whole_ids

__all__ = ["clustering_accuracy"]


def clustering_accuracy(clusters: Values, labels: Values) -> float:
    """Return the accuracy under the best one-to-one naming of clusters by classes.

    ``max over matchings m of mean(m(cluster) == label)``, found by the Hungarian method. Ids are
    any whole numbers; with more clusters than classes (or fewer) the rest stays unnamed and counts
    as wrong.

    References:
        Kariyappa and Qureshi, "ExPLOit: Extracting Private Labels in Split Learning", section 5,
        "Evaluation Metric".

    >>> clustering_accuracy([7, 7, 3, 3], [0, 0, 1, 1])
    1.0
    >>> clustering_accuracy([0, 1, 2, 3], [0, 0, 1, 1])
    0.5
    """
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - half a second to load

    groups, classes = whole_ids(clusters, name="clusters"), whole_ids(labels, name="labels")
    require_same_length(groups, classes, names="clusters and labels")
    names, group = np.unique(groups, return_inverse=True)
    kinds, kind = np.unique(classes, return_inverse=True)
    cells = np.bincount(group * kinds.size + kind, minlength=names.size * kinds.size)
    table = cells.reshape(names.size, kinds.size)
    matched = table[linear_sum_assignment(table, maximize=True)].sum()
    return float(matched / groups.size)
