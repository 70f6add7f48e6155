"""Measures: scores, samples and probabilities judged against the truth.

Pure functions of arrays; a thin stateful class (``LeakMeter``) where batches arrive one by one.
They take tensors, arrays and lists, and nothing here loads torch.
"""

from __future__ import annotations

from tacit.measure.bounds import auc_bound, error_bound, gaussian_auc, sum_kl, sum_kl_for_error
from tacit.measure.clustering import clustering_accuracy, clustering_confusion, clustering_names
from tacit.measure.intervals import Interval, bootstrap_auc, null_band
from tacit.measure.label_auc import (
    bayes_combined_auc,
    flip_for_epsilon,
    gaussian_combined_auc,
    gaussian_delta,
    label_sum_kl,
    randomized_label_auc,
)
from tacit.measure.leak import (
    auc,
    best_threshold_accuracy,
    detection_error,
    leak_auc,
    quantile_over_steps,
    top_fraction,
)
from tacit.measure.pooled import LeakMeter, OneVsRest, PooledLeak, meter_for, pooled_leak
from tacit.measure.tvd import tvd
from tacit.measure.utility import accuracy, ace, log_loss, nce

__all__ = [
    "Interval",
    "LeakMeter",
    "OneVsRest",
    "PooledLeak",
    "accuracy",
    "ace",
    "auc",
    "auc_bound",
    "bayes_combined_auc",
    "best_threshold_accuracy",
    "bootstrap_auc",
    "clustering_accuracy",
    "clustering_confusion",
    "clustering_names",
    "detection_error",
    "error_bound",
    "flip_for_epsilon",
    "gaussian_auc",
    "gaussian_combined_auc",
    "gaussian_delta",
    "label_sum_kl",
    "leak_auc",
    "log_loss",
    "meter_for",
    "nce",
    "null_band",
    "pooled_leak",
    "quantile_over_steps",
    "randomized_label_auc",
    "sum_kl",
    "sum_kl_for_error",
    "top_fraction",
    "tvd",
]
