"""Watch what runs, for as long as an option asks: dumps, overflow, recorder, watchdog, profiles, prints, checked gradients."""
