"""What a divergence between the two classes allows any attacker: bounds and reference values.

``sum_kl`` is the symmetrised Kullback-Leibler divergence ``KL(P1 || P0) + KL(P0 || P1)`` of the
released gradients of the two classes.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tacit.errors import InputError, ParameterError
from tacit.measure._arrays import as_floats

_Array = npt.NDArray[np.float64]
_EPS = float(np.finfo(np.float64).eps)


def auc_bound(sum_kl: float) -> float:
    """Return the AUC that no score of one release exceeds.

    ``1/2 + sqrt(e)/2 - e/8`` for ``e = sum_kl < 4``, and 1 from there on.

    Guarantee:
        Holds for every score if ``sum_kl`` is the divergence of the two class distributions of the
        released gradients; a score may use nothing else about the example. A feature party that
        chooses the embeddings does: a certificate's bound is for honest batches.

    References:
        Li et al., "Label Leakage and Protection in Two-party Split Learning" (ICLR 2022),
        Theorem 1, proof in A.3. For ``e >= 4`` the theorem is silent; 1 is trivially true.

    >>> auc_bound(0.0), auc_bound(1.0), auc_bound(4.0)
    (0.5, 0.875, 1.0)
    """
    e = _divergence(sum_kl)
    return 0.5 + math.sqrt(e) / 2 - e / 8 if e < 4 else 1.0


def gaussian_auc(sum_kl: float) -> float:
    """Return the AUC of the best score for two Gaussians of equal covariance.

    ``Phi(sqrt(sum_kl / 2))``: the means are then ``sqrt(sum_kl)`` standard deviations apart.

    Guarantee:
        None: a reference value, not a bound. Other pairs of distributions with the same
        ``sum_kl`` can be told apart better, up to ``auc_bound``.

    >>> gaussian_auc(0.0), round(gaussian_auc(2.0), 4)
    (0.5, 0.8413)
    """
    return math.erfc(-math.sqrt(_divergence(sum_kl)) / 2) / 2


def error_bound(sum_kl: float, p: float = 0.5) -> float:
    """Return the mixture error ``p FNR + (1 - p) FPR`` that no attacker gets below.

    ``max(0, min(p, 1 - p) (1 - sqrt(sum_kl) / 2))``; calling all examples the more frequent class
    has ``min(p, 1 - p)``.

    Guarantee:
        As for ``auc_bound``: every set of gradients called positive, one release.

    References:
        Technical Report of Label Leakage and Protection in Federated Learning, lower bound of
        ``Error_0.5`` by Pinsker's and Jensen's inequalities. It states ``M_p`` without a bound;
        the same steps give this one, since ``min(p f1, (1 - p) f0) >= min(p, 1 - p) min(f1, f0)``.

    >>> error_bound(0.0), error_bound(1.0), error_bound(4.0), error_bound(1.0, p=0.1)
    (0.5, 0.25, 0.0, 0.05)
    """
    return max(0.0, _lesser(p) * (1 - math.sqrt(_divergence(sum_kl)) / 2))


def sum_kl_for_error(error: float, p: float = 0.5) -> float:
    """Return the largest ``sum_kl`` that keeps ``error_bound`` at ``error``.

    ``4 (1 - error / min(p, 1 - p))^2``, the inverse of ``error_bound``; ``(2 - 4 error)^2`` where
    both errors weigh the same.

    References:
        Technical Report of Label Leakage and Protection in Federated Learning, the same bound
        solved for ``sumKL``.

    >>> sum_kl_for_error(0.25), error_bound(sum_kl_for_error(0.4)), sum_kl_for_error(0.05, p=0.1)
    (1.0, 0.4, 1.0)
    """
    most = _lesser(p)
    if not 0 <= error < most:
        raise ParameterError(
            f"error must be at least 0 and below {most:g}, got {error}; "
            f"{most:g} means guessing and would need infinite noise"
        )
    return 4 * (1 - error / most) ** 2


def _lesser(p: float) -> float:
    if not 0 < p < 1:
        raise ParameterError(f"p must be above 0 and below 1, got {p}")
    return min(p, 1 - p)


def sum_kl(
    mean1: npt.ArrayLike, cov1: npt.ArrayLike, mean0: npt.ArrayLike, cov0: npt.ArrayLike
) -> float:
    """Return the symmetrised KL divergence of two Gaussians.

    ``sum over directions of (a1 - a0)^2 / (2 a1 a0) + z^2 (1 / a1 + 1 / a0) / 2``, where a1 and a0
    are the variances and z is the difference of the means in the directions that diagonalise both
    covariances. This equals ``(tr(S0^-1 S1) + tr(S1^-1 S0) - 2 d + D'(S1^-1 + S0^-1) D) / 2`` but
    never takes the difference of two nearly equal numbers, so nearly equal covariances do no harm.

    A covariance is a number (times the identity), a vector (diagonal) or a matrix; the kinds may
    differ. Directions in which both are singular and the means agree carry nothing; a direction
    singular in one only, or with different means, gives infinity.

    Guarantee:
        Numbers and vectors: accurate to rounding, and only zero counts as singular. Matrices: after
        scaling each coordinate to unit variance, a variance that rounding could have made (below
        ``d * 2.2e-16`` of the largest) counts as zero. For one class alone that gives infinity; for
        both together it gives nothing, so pass what is known to be diagonal as a vector.

    >>> sum_kl([1.0, 0.0], 1.0, [0.0, 0.0], 1.0)
    1.0
    >>> sum_kl(0.0, 2.0, 0.0, 1.0)
    0.25
    >>> sum_kl([0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]])
    inf
    """
    m1, m0 = _mean(mean1, name="mean1"), _mean(mean0, name="mean0")
    if m1.size != m0.size:
        raise InputError(
            f"mean1 and mean0 must have equal length, got {m1.size} and {m0.size}; "
            f"flatten both the same way"
        )
    s1 = _covariance(cov1, m1.size, name="cov1")
    s0 = _covariance(cov0, m1.size, name="cov0")
    if s1.ndim == s0.ndim == 1:
        return _sum_over_directions(s1, s0, s1 - s0, m1 - m0)
    return _sum_kl_dense(m1, _dense(s1), m0, _dense(s0))


def _sum_kl_dense(m1: _Array, s1: _Array, m0: _Array, s0: _Array) -> float:
    """Scale each coordinate to unit variance, so that only correlations decide what is singular."""
    scale = np.sqrt(np.diag(s1) + np.diag(s0))
    keep = scale > 0
    if (m1[~keep] != m0[~keep]).any():
        return math.inf
    if not keep.any():
        return 0.0
    unit = scale[keep]
    s1, s0 = (s[np.ix_(keep, keep)] / unit / unit[:, None] for s in (s1, s0))
    return _sum_kl_scaled(m1[keep] / unit, s1, m0[keep] / unit, s0)


def _sum_kl_scaled(m1: _Array, s1: _Array, m0: _Array, s0: _Array) -> float:
    """Whiten the sum of both covariances, then diagonalise their difference."""
    values, vectors = np.linalg.eigh(s1 + s0)
    rounding = len(m1) * _EPS * values[-1]
    live = values > rounding
    agree = len(m1) * _EPS * (np.linalg.norm(m1) + np.linalg.norm(m0))
    if np.linalg.norm((m1 - m0) @ vectors[:, ~live]) > agree:
        return math.inf
    white = vectors[:, live] / np.sqrt(values[live])
    share, turn = np.linalg.eigh(white.T @ (s1 - s0) @ white)
    white = white @ turn
    stretch = (white**2).sum(axis=0)
    variances = np.stack([1 + share, 1 - share]) / 2
    _require_semidefinite(min(values[0], (variances / stretch).min()) / values[-1])
    # Whitening stretches a direction and the rounding error in it: below that is zero.
    a1, a0 = np.where(variances > rounding * stretch, variances, 0.0)
    return _sum_over_directions(a1, a0, share, (m1 - m0) @ white)


def _sum_over_directions(a1: _Array, a0: _Array, gap: _Array, z: _Array) -> float:
    """Add up directions with variances a1, a0, their difference and the difference of means."""
    if ((a1 == 0) ^ (a0 == 0)).any() or (z[(a1 == 0) & (a0 == 0)] != 0).any():
        return math.inf
    live = a1 > 0
    a1, a0, gap, z = a1[live], a0[live], gap[live], z[live]
    # Quotients first: the product of two variances near 1e-200 would vanish.
    with np.errstate(over="ignore"):
        spread = (gap / a1) * (gap / a0)
        shift = (z / np.sqrt(a1)) ** 2 + (z / np.sqrt(a0)) ** 2
        return float((spread + shift).sum() / 2)


def _divergence(value: float) -> float:
    e = float(value)
    if not e >= 0:
        raise ParameterError(
            f"sum_kl must be at least 0, got {e}; a divergence is never negative or NaN, "
            f"infinity is fine"
        )
    return e


def _require_semidefinite(smallest: float) -> None:
    if smallest < -math.sqrt(_EPS):
        raise InputError(
            f"covariances must be positive semi-definite, got a relative eigenvalue of "
            f"{smallest:.3g}; pass covariance matrices"
        )


def _mean(values: npt.ArrayLike, *, name: str) -> _Array:
    mean = np.atleast_1d(_floats(values, name=name))
    if mean.ndim != 1 or mean.size == 0:
        raise InputError(f"{name} must be a number or a vector, got shape {mean.shape}; flatten it")
    return mean


def _covariance(values: npt.ArrayLike, d: int, *, name: str) -> _Array:
    """Return a diagonal ``[d]`` or a symmetric matrix ``[d, d]``."""
    cov = _floats(values, name=name)
    if cov.ndim == 0:
        cov = np.full(d, float(cov))
    if cov.shape not in ((d,), (d, d)):
        raise InputError(
            f"{name} must be a number, [{d}] or [{d}, {d}] for means of length {d}, "
            f"got shape {cov.shape}; match the means"
        )
    diagonal = cov if cov.ndim == 1 else np.diag(cov)
    if (diagonal < 0).any():
        raise InputError(
            f"variances in {name} must not be negative, got {diagonal.min()}; "
            f"pass variances, not logarithms"
        )
    if cov.ndim == 2 and np.abs(cov - cov.T).max() > math.sqrt(_EPS) * np.abs(cov).max():
        raise InputError(f"{name} must be symmetric, got a matrix that is not; use (C + C.T) / 2")
    return cov


def _dense(cov: _Array) -> _Array:
    return np.diag(cov) if cov.ndim == 1 else (cov + cov.T) / 2


def _floats(values: npt.ArrayLike, *, name: str) -> _Array:
    return as_floats(values, name=name).astype(np.float64)
