"""The web page: one file with the whole run in it, opened from disk in any browser, without a network."""

from torch_vis.views.page.page import html, save

__all__ = ["html", "save"]
