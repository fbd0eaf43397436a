"""Workers and producers in processes of their own, many at a time, and killed."""
