"""The native core seen from Python: built and loaded when an option first needs it, steered by a policy, asked what ran."""
