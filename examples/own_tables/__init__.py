"""Jobs in tables of the application's own."""
