"""How well a grouping without names agrees with the classes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tacit.measure._arrays import Values, require_same_length, whole_ids


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
    table, pairs = _matched(clusters, labels)
    return float(table[pairs].sum() / table.sum())


def clustering_confusion(clusters: Values, labels: Values) -> npt.NDArray[np.int64]:
    """Return how many examples of each class (row) were recovered as each class (column).

    Clusters are named as for :func:`clustering_accuracy`; those without a name are one more column
    at the end, if there are any.

    >>> clustering_confusion([7, 7, 3, 3], [0, 0, 1, 0])
    array([[2, 1],
           [0, 1]])
    """
    table, (named, kinds) = _matched(clusters, labels)
    found = np.zeros((table.shape[1], table.shape[1]), dtype=np.int64)
    found[:, kinds] = table[named].T
    rest = np.delete(table, named, axis=0).sum(axis=0)
    return np.column_stack([found, rest]) if rest.any() else found


def clustering_names(clusters: Values, labels: Values) -> npt.NDArray[np.int64]:
    """Return the class that each example is recovered as, -1 where its cluster has no name.

    Clusters are named as for :func:`clustering_accuracy`, which is the share of names that are
    right.

    >>> clustering_names([7, 7, 3, 3, 5], [0, 0, 1, 0, 1])
    array([ 0,  0,  1,  1, -1])
    """
    _, (named, kinds) = _matched(clusters, labels)
    groups, group = np.unique(whole_ids(clusters, name="clusters"), return_inverse=True)
    names = np.full(groups.size, -1, dtype=np.int64)
    names[named] = np.unique(whole_ids(labels, name="labels"))[kinds]
    return names[group]


def _matched(
    clusters: Values, labels: Values
) -> tuple[npt.NDArray[np.int64], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Return the counts of clusters by classes, and the best pairs of the two."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - half a second to load

    groups, classes = whole_ids(clusters, name="clusters"), whole_ids(labels, name="labels")
    require_same_length(groups, classes, names="clusters and labels")
    names, group = np.unique(groups, return_inverse=True)
    kinds, kind = np.unique(classes, return_inverse=True)
    cells = np.bincount(group * kinds.size + kind, minlength=names.size * kinds.size)
    table = cells.reshape(names.size, kinds.size)
    return table, linear_sum_assignment(table, maximize=True)
