"""Clusters of real servers, of which one is killed while workers are busy: `make clusters`."""
