"""A benchmark's results, or anything else, as one self-contained HTML page."""

from dose_ood.report.html import code, figure, page, section, table

__all__ = ["code", "figure", "page", "section", "table"]
