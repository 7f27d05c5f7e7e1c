"""The scripts of the papers, and what they share."""
