"""The audit of a tape: attacks on what was recorded, judged against the labels."""

from tacit.audit.gallery import Images
from tacit.audit.result import AuditResult
from tacit.audit.run import run_audit

__all__ = ["AuditResult", "Images", "run_audit"]
