"""The scripts that reproduce the papers, and their common code."""
