"""What becomes of running jobs when their worker is told to stop."""
