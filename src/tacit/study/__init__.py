"""Studies: configured training runs and what is measured in them."""
