"""Algorithm choices compared: what each costs and gains for a workload, a model or an experiment."""
