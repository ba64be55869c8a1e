"""Descriptions of the routines of linear algebra: one for each, read by every interface."""
