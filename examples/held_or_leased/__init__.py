"""The two kinds of claim, seen from outside, and how each survives its worker."""
