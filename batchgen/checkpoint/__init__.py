"""Models on this disk: found, fetched, and brought into one form."""
