"""What the documents say, held against what the code does."""
