"""Pages made for people, from plain records: one self-contained HTML file each."""

from tacit.report.audit import audit_page
from tacit.report.axes import three_axes
from tacit.report.blocks import (
    Badge,
    Facts,
    Figure,
    Heading,
    Items,
    Paragraph,
    SideBySide,
    TableBlock,
    Verdict,
)
from tacit.report.figures import Plot, bars, lines
from tacit.report.page import write_page
from tacit.report.paper import paper_page, table_text
from tacit.report.runs import runs_page
from tacit.report.sweep import sweep_page, sweep_plots, sweep_svg

__all__ = [
    "Badge",
    "Facts",
    "Figure",
    "Heading",
    "Items",
    "Paragraph",
    "Plot",
    "SideBySide",
    "TableBlock",
    "Verdict",
    "audit_page",
    "bars",
    "lines",
    "paper_page",
    "runs_page",
    "sweep_page",
    "sweep_plots",
    "sweep_svg",
    "table_text",
    "three_axes",
    "write_page",
]
