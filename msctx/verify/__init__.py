"""Runs the same training twice and names the first operator whose inputs agree and whose outputs differ."""
