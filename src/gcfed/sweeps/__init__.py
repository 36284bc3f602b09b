"""Sweeps: a grid of settings, its cells over several devices, and what is selected of them."""
