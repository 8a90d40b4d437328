"""The page on which runs can be seen: one file that opens offline (`write_report`), or live on loopback (server.py)."""

from divopd.report.page.static import write_report

__all__ = ["write_report"]
