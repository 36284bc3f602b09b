"""Laws that every algorithm obeys, to be tried on one of your own."""
