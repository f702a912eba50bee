"""Watch what runs, for as long as an option asks: steps, dumps, overflow, the recorder, printed values, checked gradients."""
