"""What shows the inside of a run: printed values, checked gradients."""
