"""The application's rows and the jobs, in the same transactions."""
