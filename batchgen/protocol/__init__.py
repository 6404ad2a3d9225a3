"""Request lines in, result rows out."""
