"""The evaluator's side of an attack: side information, cross-fitting, baselines, remedies."""

from tacit.evaluate.crossfit import cross_fit, cross_fit_probabilities, prediction_baseline
from tacit.evaluate.side_information import reveal

__all__ = ["cross_fit", "cross_fit_probabilities", "prediction_baseline", "reveal"]
