"""What is measured, one scenario a file: a function of the database's URL and the settings, which returns numbers."""
