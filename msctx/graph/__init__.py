"""Graph mode: torch.compile, governed by options, explained and cached."""
