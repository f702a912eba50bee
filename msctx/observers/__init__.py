"""Watch what runs, for as long as an option asks: steps and profiles."""
