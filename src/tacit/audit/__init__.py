"""The audit of a tape: attacks on what was recorded, judged against labels and features."""

from tacit.audit.feature_table import FeatureTable
from tacit.audit.gallery import Images
from tacit.audit.input_leak import InputAudit, InputRow, audit_inputs
from tacit.audit.result import AuditResult
from tacit.audit.run import run_audit

__all__ = [
    "AuditResult",
    "FeatureTable",
    "Images",
    "InputAudit",
    "InputRow",
    "audit_inputs",
    "run_audit",
]
