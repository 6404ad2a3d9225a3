"""Files: readers of requests, writers of results."""
