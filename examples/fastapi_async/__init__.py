"""A web application with an async engine, and its worker."""
