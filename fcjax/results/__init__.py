"""Finished runs: the results folder, exported models, tables and figures."""

__all__: list[str] = []
