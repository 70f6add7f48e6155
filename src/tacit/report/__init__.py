"""Pages and figures from plain records."""

from tacit.report.figures import bars, lines
from tacit.report.page import Figure, Heading, Paragraph, TableBlock, write_page

__all__ = ["Figure", "Heading", "Paragraph", "TableBlock", "bars", "lines", "write_page"]
