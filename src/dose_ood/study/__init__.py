"""A benchmark from data to results: what is asked, what is missing, and the work that makes it."""
