"""Seconds, memory and scores beside other programs."""
