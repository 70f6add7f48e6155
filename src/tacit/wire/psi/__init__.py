"""Private set intersection: which examples both parties hold."""
