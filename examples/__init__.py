"""Applications that use proletarian-sa, each of which is also a test."""
