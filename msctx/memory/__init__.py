"""Where the memory of a model is beside the device: activations on the host or computed again, parameters on the host or in files."""
