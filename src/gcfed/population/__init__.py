"""Who can be drawn in a round, who is, and what goes wrong with them."""
